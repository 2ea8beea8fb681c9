//! Compressed bodies. Unpacking measures the size first, so a body that is too large costs no memory.

use std::io::{self, Read};

use actix_web::http::header::{self, HeaderMap};
use bytes::Bytes;
use flate2::read::{MultiGzDecoder, ZlibDecoder};

use super::error::{ApiError, Kind, quoted};

/// How a body is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Identity,
    Gzip,
    /// `deflate` as RFC 9110 defines it: deflated data in the zlib format.
    Deflate,
}

impl Encoding {
    /// Reads the `content-encoding` headers. Refuses more than one encoding.
    pub fn of(headers: &HeaderMap) -> Result<Self, ApiError> {
        let mut encoding = Self::Identity;
        for value in headers.get_all(header::CONTENT_ENCODING) {
            let name = value.to_str().unwrap_or("?").trim().to_ascii_lowercase();
            let next = match name.as_str() {
                "" | "identity" => continue,
                "gzip" | "x-gzip" => Self::Gzip,
                "deflate" => Self::Deflate,
                _ => return Err(refused(&name, "use gzip, deflate or none")),
            };
            if encoding != Self::Identity {
                return Err(refused(&name, "only one encoding is allowed"));
            }
            encoding = next;
        }
        Ok(encoding)
    }

    fn reader<'a>(self, packed: &'a [u8]) -> Box<dyn Read + 'a> {
        match self {
            Self::Identity => Box::new(packed),
            Self::Gzip => Box::new(MultiGzDecoder::new(packed)),
            Self::Deflate => Box::new(ZlibDecoder::new(packed)),
        }
    }

    /// Unpacks at most `limit` bytes. This takes up to one second per gigabyte: call it off the event loop.
    pub fn unpack(self, packed: Bytes, limit: usize) -> Result<Bytes, ApiError> {
        if self == Self::Identity {
            return Ok(packed);
        }
        let failed = |error: io::Error| ApiError::new(Kind::MalformedBody, format!("the body could not be decompressed: {error}"));
        let size = io::copy(&mut self.reader(&packed).take(limit as u64 + 1), &mut io::sink()).map_err(failed)? as usize;
        if size > limit {
            return Err(too_large(limit));
        }
        let mut body = Vec::with_capacity(size);
        self.reader(&packed).take(limit as u64).read_to_end(&mut body).map_err(failed)?;
        Ok(body.into())
    }
}

fn refused(name: &str, hint: &str) -> ApiError {
    ApiError::new(Kind::MediaType, format!("content-encoding `{}` is not supported: {hint}", quoted(name)))
}

pub fn too_large(limit: usize) -> ApiError {
    ApiError::new(Kind::TooLarge, format!("the body is larger than {limit} bytes"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use actix_web::http::header::HeaderValue;
    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};

    use super::*;

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn unpacked_bodies_equal_the_originals() {
        let text = b"{\"model\": \"m\"}".repeat(1000);
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::best());
        zlib.write_all(&text).unwrap();
        assert_eq!(Encoding::Gzip.unpack(gzip(&text).into(), text.len()).unwrap(), text);
        assert_eq!(Encoding::Deflate.unpack(zlib.finish().unwrap().into(), text.len()).unwrap(), text);
        let members = [gzip(&text[..100]), gzip(&text[100..])].concat();
        assert_eq!(Encoding::Gzip.unpack(members.into(), text.len()).unwrap(), text);
    }

    #[test]
    fn large_truncated_and_corrupt_bodies_have_their_own_errors() {
        let packed = gzip(&[b' '; 1001]);
        assert_eq!(Encoding::Gzip.unpack(packed.clone().into(), 1000).unwrap_err().kind, Kind::TooLarge);
        let cut = packed[..packed.len() - 4].to_vec();
        assert_eq!(Encoding::Gzip.unpack(cut.into(), 2000).unwrap_err().kind, Kind::MalformedBody);
        assert_eq!(Encoding::Deflate.unpack(packed.into(), 2000).unwrap_err().kind, Kind::MalformedBody);
    }

    #[test]
    fn known_encodings_are_read_and_others_are_refused() {
        let of = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            values.iter().for_each(|value| headers.append(header::CONTENT_ENCODING, HeaderValue::from_static(value)));
            Encoding::of(&headers).map_err(|error| (error.kind, error.message))
        };
        assert_eq!(of(&[]), Ok(Encoding::Identity));
        assert_eq!(of(&["identity", "GZIP"]), Ok(Encoding::Gzip));
        assert_eq!(of(&["deflate"]), Ok(Encoding::Deflate));
        for (values, named) in [(&["zstd"][..], "zstd"), (&["gzip, gzip"], "gzip, gzip"), (&["gzip", "gzip"], "gzip")] {
            let (kind, message) = of(values).unwrap_err();
            assert_eq!(kind, Kind::MediaType);
            assert!(message.contains(&format!("`{named}`")), "{message}");
        }
    }
}

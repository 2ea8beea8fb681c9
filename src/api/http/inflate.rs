//! Compressed bodies. The size is measured before decompression, so a body that is too large takes no memory.

use std::io::{self, Read};

use actix_web::http::header::{self, HeaderMap};
use bytes::Bytes;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use zstd::stream::read::Decoder;

use super::error::{ApiError, Kind, quoted};

/// The largest window of a zstd frame, as a power of two [bytes]. A decoder takes that much memory besides the body. RFC 8878 asks for
/// 8 MiB to be supported.
const MAX_WINDOW_LOG: u32 = 23;

/// The compression of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Identity,
    Gzip,
    /// `deflate` as defined by RFC 9110: DEFLATE data in the zlib format.
    Deflate,
    Zstd,
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
                "zstd" => Self::Zstd,
                _ => return Err(refused(&name, "use gzip, deflate, zstd or none")),
            };
            if encoding != Self::Identity {
                return Err(refused(&name, "only one encoding is allowed"));
            }
            encoding = next;
        }
        Ok(encoding)
    }

    fn reader<'a>(self, packed: &'a [u8]) -> io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Self::Identity => Box::new(packed),
            Self::Gzip => Box::new(MultiGzDecoder::new(packed)),
            Self::Deflate => Box::new(ZlibDecoder::new(packed)),
            Self::Zstd => {
                let mut decoder = Decoder::with_buffer(packed)?;
                decoder.window_log_max(MAX_WINDOW_LOG)?;
                Box::new(decoder)
            }
        })
    }

    /// Measures the decompressed size of a body, at most `limit`. Takes up to one second per gigabyte, so call this off the event loop.
    pub fn unpacked_size(self, packed: &[u8], limit: usize) -> Result<usize, ApiError> {
        if self == Self::Identity {
            return Ok(packed.len());
        }
        let reader = self.reader(packed).map_err(malformed)?;
        let size = io::copy(&mut reader.take(limit as u64 + 1), &mut io::sink()).map_err(malformed)?;
        if size > limit as u64 { Err(too_large(limit)) } else { Ok(size as usize) }
    }

    /// Decompresses a body to `size` bytes. Call this off the event loop as well.
    pub fn unpack(self, packed: Bytes, size: usize) -> Result<Bytes, ApiError> {
        if self == Self::Identity {
            return Ok(packed);
        }
        let mut body = Vec::with_capacity(size);
        let reader = self.reader(&packed).map_err(malformed)?;
        reader.take(size as u64).read_to_end(&mut body).map_err(malformed)?;
        Ok(body.into())
    }
}

fn malformed(error: io::Error) -> ApiError {
    ApiError::new(Kind::BrokenBody, format!("the body could not be decompressed: {error}"))
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
        let members = [gzip(&text[..100]), gzip(&text[100..])].concat();
        for (encoding, packed) in [
            (Encoding::Gzip, gzip(&text)),
            (Encoding::Deflate, zlib.finish().unwrap()),
            (Encoding::Gzip, members),
            (Encoding::Zstd, zstd::encode_all(&text[..], 3).unwrap()),
            (Encoding::Zstd, [zstd::encode_all(&text[..100], 1).unwrap(), zstd::encode_all(&text[100..], 1).unwrap()].concat()),
            (Encoding::Identity, text.clone()),
        ] {
            assert_eq!(encoding.unpacked_size(&packed, text.len()).unwrap(), text.len());
            assert_eq!(encoding.unpack(packed.into(), text.len()).unwrap(), text);
        }
    }

    #[test]
    fn large_truncated_and_corrupt_bodies_have_their_own_errors() {
        let packed = gzip(&[b' '; 1001]);
        let kind = |encoding: Encoding, packed: &[u8], limit| encoding.unpacked_size(packed, limit).unwrap_err().kind;
        assert_eq!(kind(Encoding::Gzip, &packed, 1000), Kind::TooLarge);
        assert_eq!(kind(Encoding::Gzip, &packed[..packed.len() - 4], 2000), Kind::BrokenBody);
        assert_eq!(kind(Encoding::Deflate, &packed, 2000), Kind::BrokenBody);
        let bomb = zstd::encode_all(&vec![0; 10_000_000][..], 19).unwrap();
        assert!(bomb.len() < 10_000);
        assert_eq!(kind(Encoding::Zstd, &bomb, 1_000_000), Kind::TooLarge);
        assert_eq!(kind(Encoding::Zstd, &bomb[..bomb.len() / 2], 1 << 30), Kind::BrokenBody);
        assert_eq!(kind(Encoding::Zstd, b"{\"model\": 1}", 1000), Kind::BrokenBody);
        let mut wide = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
        wide.window_log(27).unwrap();
        wide.write_all(&[b'x'; 1000]).unwrap();
        assert_eq!(kind(Encoding::Zstd, &wide.finish().unwrap(), 2000), Kind::BrokenBody, "a window of 128 MiB");
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
        assert_eq!(of(&["zstd"]), Ok(Encoding::Zstd));
        for (values, named) in [(&["br"][..], "br"), (&["gzip, gzip"], "gzip, gzip"), (&["gzip", "gzip"], "gzip")] {
            let (kind, message) = of(values).unwrap_err();
            assert_eq!(kind, Kind::MediaType);
            assert!(message.contains(&format!("`{named}`")), "{message}");
        }
    }
}

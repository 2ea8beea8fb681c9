//! Reads the pictures of requests, in the forms that the dialects share: base64, `data:` URLs and addresses of the web.
//!
//! A field that holds no picture is no error yet: agents send their whole history with every request, and a model that takes no pictures
//! leaves out those in results of tools, whatever they are.

use std::borrow::Cow;

use base64::Engine;
use base64::alphabet;
use base64::engine::general_purpose::GeneralPurpose;
use base64::engine::{DecodePaddingMode, GeneralPurposeConfig};
use serde_json::Value;

use super::error::ApiError;
use super::fields::Fields;
use super::omitted_content;
use chat::{Part, Picture, PictureSource};

/// What a client may put around base64 or leave out of it.
const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent).with_decode_allow_trailing_bits(true);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

/// The place of a picture in a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PicturePlace {
    /// In a message of the user. A model that takes no pictures refuses the request.
    Message,
    /// In the result of a tool. A model that takes no pictures gets a text in its place.
    Result,
}

/// Reads a picture from a field that holds a `data:` URL or an address of the web, or an object with such a `url`. `detail` beside it is
/// checked and has no effect: every picture is read in the size that the model was trained with.
///
/// # Errors
/// `detail` is none of the known values.
pub fn of_url(fields: &Fields, name: &str, place: PicturePlace) -> Result<Part, ApiError> {
    let (field, value) = (fields.path(name), fields.get(name));
    let source = match value {
        Some(Value::String(url)) => {
            check_detail(fields)?;
            (field.clone(), source_of_url(url))
        }
        Some(object @ Value::Object(_)) => {
            let object = fields.within(object, &field)?;
            check_detail(&object)?;
            match object.string("url")? {
                Some(url) => (object.path("url"), source_of_url(url)),
                None => (object.path("url"), invalid("is required")),
            }
        }
        Some(_) => (field, invalid("has to be a string, or an object with a `url`")),
        None => (field, invalid("is required")),
    };
    Ok(part(source, place))
}

/// Reads a picture from a text in base64, with or without the head of a `data:` URL.
pub fn of_base64(field: &str, text: &str, place: PicturePlace) -> Part {
    let source = if text.starts_with("data:") { source_of_url(text) } else { source_of_base64(text) };
    part((field.to_owned(), source), place)
}

/// A field of a picture from which no picture can be had.
pub fn of_nothing(field: &str, reason: &str, place: PicturePlace) -> Part {
    part((field.to_owned(), invalid(reason)), place)
}

fn part((field, source): (String, PictureSource), place: PicturePlace) -> Part {
    let substitute = (place == PicturePlace::Result).then_some(omitted_content::IMAGE);
    Part::Picture(Picture { source, field: field.into(), substitute })
}

fn check_detail(fields: &Fields) -> Result<(), ApiError> {
    match fields.string("detail")? {
        None | Some("auto" | "low" | "high" | "original") => Ok(()),
        Some(_) => Err(fields.invalid("detail", "must be auto, low, high or original")),
    }
}

fn source_of_url(url: &str) -> PictureSource {
    let scheme = |name: &str| url.get(..name.len()).is_some_and(|head| head.eq_ignore_ascii_case(name));
    if scheme("http://") || scheme("https://") {
        return PictureSource::Url(url.into());
    }
    if !scheme("data:") {
        return invalid("is no address: send an https URL, or the picture itself as `data:image/png;base64,…`");
    }
    match url.split_once(',') {
        Some((head, data)) if head.to_ascii_lowercase().ends_with(";base64") => source_of_base64(data),
        _ => invalid("is a `data:` URL without `;base64,`: send the picture's bytes in base64"),
    }
}

fn source_of_base64(text: &str) -> PictureSource {
    let is_space = |byte: u8| byte.is_ascii_whitespace();
    let text = match text.bytes().any(is_space) {
        true => Cow::Owned(text.bytes().filter(|byte| !is_space(*byte)).map(char::from).collect::<String>()),
        false => Cow::Borrowed(text),
    };
    let engine = if text.contains(['-', '_']) { URL_SAFE } else { STANDARD };
    match engine.decode(text.as_bytes()) {
        Ok(bytes) => PictureSource::File(bytes.into()),
        Err(error) => invalid(&format!("is not base64: {error}")),
    }
}

fn invalid(reason: &str) -> PictureSource {
    PictureSource::Invalid(reason.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn source(value: Value) -> PictureSource {
        let body = json!({"image_url": value});
        match of_url(&Fields::root(&body).unwrap(), "image_url", PicturePlace::Message).unwrap() {
            Part::Picture(picture) => picture.source,
            Part::Text(text) => panic!("{text}"),
        }
    }

    #[test]
    fn pictures_come_in_base64_or_from_an_address() {
        let bytes = || PictureSource::File([0xfb, 0xff, 0x00].as_slice().into());
        for text in ["data:image/png;base64,+/8A", "DATA:;base64,-_8A", "data:image/png;x=y;BASE64,+/8A\n", "data:;base64, +/ 8A "] {
            assert_eq!(source(json!(text)), bytes(), "{text}");
            assert_eq!(source(json!({"url": text, "detail": "low"})), bytes(), "{text}");
        }
        assert_eq!(source(json!("HTTPS://a/b")), PictureSource::Url("HTTPS://a/b".into()));
        for (value, due) in [
            (json!("file:///etc/passwd"), "is no address"),
            (json!("data:image/png,%89PNG"), "without `;base64,`"),
            (json!("data:image/png;base64,a$=="), "is not base64: "),
            (json!({"detail": "high"}), "is required"),
            (json!(7), "has to be a string"),
        ] {
            let PictureSource::Invalid(reason) = source(value.clone()) else { panic!("{value} was accepted") };
            assert!(reason.contains(due), "{value}: {reason}");
        }
    }

    #[test]
    fn only_a_results_picture_may_be_left_out() {
        let [said, result] = [PicturePlace::Message, PicturePlace::Result].map(|place| of_base64("images[0]", "aGk", place));
        assert_eq!(said.as_picture().map(|picture| (&*picture.field, picture.substitute)), Some(("images[0]", None)));
        assert_eq!(result.as_picture().and_then(|picture| picture.substitute), Some(omitted_content::IMAGE));
    }

    #[test]
    fn an_unknown_detail_is_refused() {
        let body = json!({"image_url": {"url": "https://a", "detail": "sharp"}});
        let error = of_url(&Fields::root(&body).unwrap(), "image_url", PicturePlace::Message).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("image_url.detail"));
    }
}

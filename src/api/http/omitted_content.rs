//! What stands in the result of a tool in place of something that the model does not take. Agents send their whole history again each time:
//! if such a result were refused, one picture would end a conversation for good.

pub const IMAGE: &str = "[an image was left out: this model takes none]";
pub const DOCUMENT: &str = "[a document was left out: this model takes only documents of text]";
pub const FILE: &str = "[a file was left out: this model takes only text]";

/// The text in place of a part of a tool's result, whatever the dialect calls the part. `None`: the part has no such text.
pub fn in_result(kind: &str) -> Option<&'static str> {
    match kind {
        "image" | "image_url" | "input_image" => Some(IMAGE),
        "file" | "input_file" => Some(FILE),
        _ => None,
    }
}

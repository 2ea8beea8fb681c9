//! Texts that replace those parts of a tool result that the model cannot read. Agents send their whole history with every request, so
//! refusing such a part would end a conversation at its first image.

pub const IMAGE: &str = "[an image was left out: this model takes none]";
pub const DOCUMENT: &str = "[a document was left out: this model takes only documents of text]";
pub const FILE: &str = "[a file was left out: this model takes only text]";

/// Returns the text that replaces a part of a tool's result, whatever the dialect calls the part. `None` if the part has no such text.
pub fn in_result(kind: &str) -> Option<&'static str> {
    match kind {
        "file" | "input_file" => Some(FILE),
        _ => None,
    }
}

//! Streams of JSON objects, one per line.

use bytes::Bytes;
use serde::Serialize;

use http::stream::Framing;

/// The stream format. It has no keep-alive frame, because JSON lines have no comments.
pub const FRAMING: Framing = Framing { content_type: "application/x-ndjson", keep_alive: None };

/// Writes an object as a line. JSON escapes line breaks.
pub fn line(value: &impl Serialize) -> Bytes {
    // Serialising our own types cannot fail, because all keys of their maps are strings.
    let mut text = serde_json::to_vec(value).expect("a line is JSON");
    text.push(b'\n');
    text.into()
}

//! Streams as lines of JSON.

use bytes::Bytes;
use serde::Serialize;

use http::stream::Framing;

/// A line has no comment that could be sent while there is nothing to say.
pub const FRAMING: Framing = Framing { content_type: "application/x-ndjson", keep_alive: None };

/// An object on a line of its own. JSON escapes line breaks.
pub fn line(value: &impl Serialize) -> Bytes {
    // Our own types always serialise: their maps have string keys.
    let mut text = serde_json::to_vec(value).expect("a line is JSON");
    text.push(b'\n');
    text.into()
}

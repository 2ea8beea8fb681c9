//! The framing of server-sent events.

use bytes::Bytes;
use serde::Serialize;

use super::stream::Framing;

pub const FRAMING: Framing = Framing { content_type: "text/event-stream; charset=utf-8", keep_alive: Some(b": ping\n\n") };

/// Frames an event as `data: …` and a blank line. JSON escapes line breaks, so the data is one line.
pub fn data(value: &impl Serialize) -> Bytes {
    let mut frame = b"data: ".to_vec();
    // Serialising our own types cannot fail, because all keys of their maps are strings.
    serde_json::to_writer(&mut frame, value).expect("an event is JSON");
    frame.extend_from_slice(b"\n\n");
    frame.into()
}

/// Frames an event as `event: …`, `data: …` and a blank line.
pub fn named(name: &str, value: &impl Serialize) -> Bytes {
    [format!("event: {name}\n").as_bytes(), &data(value)].concat().into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_events_data_is_one_line() {
        assert_eq!(data(&json!({"text": "a\nb\r\n\n"})), "data: {\"text\":\"a\\nb\\r\\n\\n\"}\n\n");
        assert_eq!(named("x.y", &json!([1])), "event: x.y\ndata: [1]\n\n");
    }
}

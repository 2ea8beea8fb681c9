//! Server-sent events: their framing and their description in OpenAPI.

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};

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

/// Frames an event like [`named`], for data that is JSON already.
pub fn named_json(name: &str, json: &str) -> Bytes {
    format!("event: {name}\ndata: {json}\n\n").into()
}

/// Adds the event around the data to a derived OpenAPI document, which describes only the JSON inside a stream's events. The data of an
/// event is the operation's type, an error, or `end_mark`.
pub fn describe_streams(document: &mut Value, error_schema: &str, end_mark: Option<&str>) {
    match document {
        Value::Array(items) => items.iter_mut().for_each(|item| describe_streams(item, error_schema, end_mark)),
        Value::Object(map) => {
            if let Some(schema) = map.get_mut("text/event-stream").and_then(|media| media.get_mut("schema")) {
                let content = json!({"anyOf": [schema.take(), {"$ref": format!("#/components/schemas/{error_schema}")}]});
                let mut kinds = vec![json!({"type": "string", "contentMediaType": "application/json", "contentSchema": content})];
                kinds.extend(end_mark.map(|mark| json!({"const": mark})));
                let data = json!({"anyOf": kinds});
                *schema =
                    json!({"type": "object", "description": "a server-sent event", "required": ["data"], "properties": {"data": data}});
            }
            map.values_mut().for_each(|value| describe_streams(value, error_schema, end_mark));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_events_data_is_one_line() {
        assert_eq!(data(&json!({"text": "a\nb\r\n\n"})), "data: {\"text\":\"a\\nb\\r\\n\\n\"}\n\n");
        assert_eq!(named("x.y", &serde_json::json!([1])), "event: x.y\ndata: [1]\n\n");
    }
}

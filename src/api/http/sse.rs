//! Server-sent events: how an event is framed and described.

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};

use super::stream::Framing;

pub const FRAMING: Framing = Framing { content_type: "text/event-stream; charset=utf-8", keep_alive: Some(b": ping\n\n") };

/// `data: …` and a blank line. JSON escapes line breaks, so the event's data is one line.
pub fn data(value: &impl Serialize) -> Bytes {
    let mut frame = b"data: ".to_vec();
    // Our own types always serialise: their maps have string keys.
    serde_json::to_writer(&mut frame, value).expect("an event is JSON");
    frame.extend_from_slice(b"\n\n");
    frame.into()
}

/// `event: …`, `data: …` and a blank line.
pub fn named(name: &str, value: &impl Serialize) -> Bytes {
    [format!("event: {name}\n").as_bytes(), &data(value)].concat().into()
}

/// [`named`], for data that is JSON already.
pub fn named_json(name: &str, json: &str) -> Bytes {
    format!("event: {name}\ndata: {json}\n\n").into()
}

/// A derived OpenAPI document describes the JSON in an event of a stream; this adds the event around it. The data of an event is what the
/// operation states, an error, or `end_mark`.
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

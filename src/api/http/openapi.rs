//! A part of the OpenAPI document: what the types describe, with the error envelope and the framing of streams.

use serde_json::{Value, json};
use utoipa::OpenApi;

/// The paths and types of one dialect.
pub struct Document {
    pub json: Value,
    /// The name of the error envelope's schema.
    pub error_schema: &'static str,
}

impl Document {
    /// Builds the document that `T` derives. `end_mark` is the data of the event that ends a stream, if there is one.
    pub fn of<T: OpenApi>(error_schema: &'static str, end_mark: Option<&str>) -> Self {
        let mut json = serde_json::to_value(T::openapi()).expect("the document is JSON");
        add_default_errors(&mut json, error_schema);
        describe_streams(&mut json, error_schema, end_mark);
        Self { json, error_schema }
    }
}

/// Adds the error envelope to every operation.
fn add_default_errors(value: &mut Value, schema: &str) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| add_default_errors(item, schema)),
        Value::Object(map) => {
            if let Some(responses) = map.get_mut("responses").and_then(Value::as_object_mut) {
                let content = json!({"application/json": {"schema": {"$ref": format!("#/components/schemas/{schema}")}}});
                responses.insert("default".into(), json!({"description": "any other error", "content": content}));
            }
            map.values_mut().for_each(|value| add_default_errors(value, schema));
        }
        _ => {}
    }
}

/// Adds the event around the data to a derived document, which describes only the JSON inside a stream's events. The data of an event is
/// the operation's type, an error, or `end_mark`.
fn describe_streams(document: &mut Value, error_schema: &str, end_mark: Option<&str>) {
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

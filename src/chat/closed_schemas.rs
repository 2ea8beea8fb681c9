//! Closes the schemas of arguments. Without this, a model could invent names of arguments that no function has.

use serde_json::{Map, Value};

/// Keywords whose presence means that `properties` may not list all names.
pub const OTHER_NAMES: [&str; 12] = [
    "additionalProperties",
    "unevaluatedProperties",
    "patternProperties",
    "propertyNames",
    "minProperties",
    "dependentSchemas",
    "allOf",
    "anyOf",
    "oneOf",
    "if",
    "not",
    "$ref",
];

/// Adds `additionalProperties: false` to each object that lists its properties and says nothing about further ones.
pub fn closed(mut schema: Value) -> Value {
    close(&mut schema);
    schema
}

fn close(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    if is_open(map) {
        map.insert("additionalProperties".into(), false.into());
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(close);
    }
    for key in ["items", "additionalProperties"] {
        map.get_mut(key).into_iter().for_each(close);
    }
    // If an object has properties of its own, its alternatives describe parts of it and must stay open. The same may hold for `allOf` and
    // definitions, so they are left alone.
    let alternatives = if map.contains_key("properties") { [None, None] } else { ["anyOf", "oneOf"].map(Some) };
    for key in alternatives.into_iter().flatten() {
        map.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten().for_each(close);
    }
}

fn is_open(map: &Map<String, Value>) -> bool {
    let Some(Value::Object(properties)) = map.get("properties") else { return false };
    let required = map.get("required").and_then(Value::as_array);
    let all_listed = required.is_none_or(|names| names.iter().all(|name| name.as_str().is_some_and(|name| properties.contains_key(name))));
    all_listed && !OTHER_NAMES.iter().any(|key| map.contains_key(*key))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_that_list_their_properties_are_closed() {
        let inner = json!({"type": "object", "properties": {"b": {}}});
        let inner_closed = json!({"type": "object", "properties": {"b": {}}, "additionalProperties": false});
        let schema = |inner: &Value| json!({"properties": {"a": {"items": inner}, "c": {"anyOf": [inner, {"type": "null"}]}}});
        let mut due = schema(&inner_closed);
        due["additionalProperties"] = false.into();
        assert_eq!(closed(schema(&inner)), due);
        for open in [
            json!({"type": "object"}),
            json!({"properties": {"a": {}}, "additionalProperties": true}),
            json!({"properties": {"a": {}}, "required": ["b"]}),
            json!({"properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}}]}),
            json!({"allOf": [{"properties": {"b": {}}}]}),
            json!(true),
        ] {
            assert_eq!(closed(open.clone()), open);
        }
    }
}

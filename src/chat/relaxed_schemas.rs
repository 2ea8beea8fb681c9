//! Relaxes schemas that no grammar can follow. A tool that is not `strict` is offered with a looser schema instead of being refused.

use serde_json::{Map, Value, json};

use super::closed_schemas::OTHER_NAMES;

/// Keywords that grammars cannot follow.
const NEVER: [&str; 15] = [
    "not",
    "if",
    "then",
    "else",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
];
/// The keywords that a schema's outline keeps.
const OUTLINE: [&str; 12] = [
    "type",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "enum",
    "const",
    "anyOf",
    "$ref",
    "$defs",
    "definitions",
    "description",
];
/// Keywords that combine schemas. The combined schemas may list names of members.
const COMBINING: [&str; 7] = ["anyOf", "oneOf", "allOf", "not", "if", "then", "else"];

/// The part of a schema that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Relaxation {
    /// The keywords that no grammar follows.
    Followable,
    /// Everything except types, names and values.
    Outline,
    /// Everything: any object is allowed.
    Open,
}

impl Relaxation {
    pub fn next(self) -> Self {
        if self == Self::Followable { Self::Outline } else { Self::Open }
    }
}

/// Removes from a schema what `looseness` leaves out. The result allows everything that the schema allows.
pub fn loosened(schema: &Value, looseness: Relaxation) -> Value {
    match looseness {
        Relaxation::Open => json!({"type": "object"}),
        _ => part(schema, looseness == Relaxation::Outline),
    }
}

fn part(schema: &Value, outline: bool) -> Value {
    let Value::Object(map) = schema else { return schema.clone() };
    let is_typed = map.contains_key("type") || map.contains_key("properties");
    let stays = |key: &str| match key {
        "anyOf" | "oneOf" if outline => !is_typed,
        key if outline => OUTLINE.contains(&key),
        key => !NEVER.contains(&key),
    };
    let mut out = Map::new();
    let mut loses_names = false;
    for (key, value) in map {
        if stays(key) {
            // A grammar follows exclusive alternatives only if the schema shows that they exclude each other, and an outline may not show
            // that.
            let name = if outline && key == "oneOf" { "anyOf" } else { key };
            out.insert(name.to_owned(), inner(key, value, outline));
        } else {
            loses_names |= if COMBINING.contains(&key.as_str()) { lists_names(value) } else { OTHER_NAMES.contains(&key.as_str()) };
        }
    }
    // Otherwise the remaining names would be taken for the complete list.
    if loses_names && out.contains_key("properties") && !out.contains_key("additionalProperties") {
        out.insert("additionalProperties".into(), true.into());
    }
    Value::Object(out)
}

/// A keyword's value with its schemas relaxed.
fn inner(key: &str, value: &Value, outline: bool) -> Value {
    match (key, value) {
        ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(named)) => {
            named.iter().map(|(name, schema)| (name.clone(), part(schema, outline))).collect()
        }
        ("items" | "prefixItems" | "anyOf" | "oneOf" | "allOf", Value::Array(list)) => {
            list.iter().map(|schema| part(schema, outline)).collect()
        }
        ("items" | "additionalProperties" | "additionalItems", schema) => part(schema, outline),
        (_, other) => other.clone(),
    }
}

/// Whether a schema inside the value may list names of members.
fn lists_names(value: &Value) -> bool {
    match value {
        Value::Object(map) => {
            ["properties", "patternProperties", "$ref"].iter().any(|key| map.contains_key(*key)) || map.values().any(lists_names)
        }
        Value::Array(list) => list.iter().any(lists_names),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cannot_be_followed_is_left_out() {
        let schema = json!({
            "type": "object", "not": {"required": ["b"]}, "required": ["a"],
            "properties": {"a": {"type": "array", "uniqueItems": true, "maxItems": 3}, "not": {"enum": [{"not": 1}]}},
        });
        let due = json!({
            "type": "object", "required": ["a"], "properties": {"a": {"type": "array", "maxItems": 3}, "not": {"enum": [{"not": 1}]}},
        });
        assert_eq!(loosened(&schema, Relaxation::Followable), due);
        assert_eq!(loosened(&schema, Relaxation::Open), json!({"type": "object"}));
    }

    #[test]
    fn an_outline_has_types_names_and_values() {
        let schema = json!({
            "$schema": "x", "properties": {"a": {"type": "string", "pattern": "["}, "b": {"oneOf": [{"type": "null"}, {"const": 3}]}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        });
        let due = json!({"properties": {"a": {"type": "string"}, "b": {"anyOf": [{"type": "null"}, {"const": 3}]}}});
        assert_eq!(loosened(&schema, Relaxation::Outline), due);
    }

    #[test]
    fn an_object_whose_other_names_are_left_out_stays_open() {
        for (key, value) in [
            ("if", json!({"properties": {"b": {}}})),
            ("dependentSchemas", json!({"a": {}})),
            ("anyOf", json!([{"$ref": "#/$defs/x"}])),
            ("patternProperties", json!({"^x": {}})),
        ] {
            let mut schema = json!({"properties": {"a": {}}});
            schema[key] = value;
            assert_eq!(loosened(&schema, Relaxation::Outline)["additionalProperties"], true, "{key}");
        }
    }
}

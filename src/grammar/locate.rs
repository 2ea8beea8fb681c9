//! Finds the part of a schema that causes a refusal.

use serde_json::{Map, Value};

/// The most parts of a schema that are compiled to find the cause.
const MAX_TRIALS: usize = 200;

pub const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];
/// Keywords whose value is a schema (`ONE`), a list of schemas (`LIST`), or an object of schemas by name (`NAMED`).
pub const ONE: [&str; 4] = ["items", "additionalProperties", "additionalItems", "not"];
pub const LIST: [&str; 5] = ["items", "prefixItems", "anyOf", "oneOf", "allOf"];
pub const NAMED: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// The JSON pointer of the innermost schema within `root` that fails for the same reason as `root`. `why` returns the reason for which a
/// schema fails, if it does.
pub fn locate(root: &Value, reason: &str, why: impl Fn(&Value) -> Option<String>) -> String {
    let (mut at, mut path, mut trials) = (root, String::from("#"), 0);
    'deeper: loop {
        for (step, child) in children(at) {
            trials += 1;
            if trials > MAX_TRIALS {
                return path;
            }
            if why(&with_definitions(child, root)).as_deref() == Some(reason) {
                path.push_str(&step);
                at = child;
                continue 'deeper;
            }
        }
        return path + &keyword(at, reason);
    }
}

/// The schema's first keyword that the reason quotes, as a step of a JSON pointer.
fn keyword(schema: &Value, reason: &str) -> String {
    let quoted = |key: &&String| reason.contains(&format!("\"{key}\""));
    let key = schema.as_object().and_then(|map| map.keys().find(quoted));
    key.map_or_else(String::new, |key| format!("/{}", escaped(key)))
}

fn children(schema: &Value) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    let Some(map) = schema.as_object() else { return found };
    for (key, value) in map {
        let key = key.as_str();
        match value {
            Value::Object(named) if NAMED.contains(&key) => {
                found.extend(named.iter().map(|(name, child)| (format!("/{key}/{}", escaped(name)), child)));
            }
            Value::Array(items) if LIST.contains(&key) => {
                found.extend(items.iter().enumerate().map(|(i, child)| (format!("/{key}/{i}"), child)));
            }
            Value::Object(_) if ONE.contains(&key) => found.push((format!("/{key}"), value)),
            _ => {}
        }
    }
    // Definitions come last, because a property that fails by itself is the better answer.
    found.sort_by_key(|(step, _)| DEFINITIONS.iter().any(|name| step.starts_with(&format!("/{name}/"))));
    found
}

/// A part of `root` as a schema of its own, with the definitions to which it may refer.
fn with_definitions(part: &Value, root: &Value) -> Value {
    let Some(part) = part.as_object() else { return part.clone() };
    let mut whole: Map<String, Value> = part.clone();
    for name in DEFINITIONS.into_iter().chain(["$schema", "$id"]) {
        if let Some(value) = root.get(name) {
            whole.entry(name).or_insert_with(|| value.clone());
        }
    }
    Value::Object(whole)
}

/// Escapes a name for a JSON pointer (RFC 6901).
pub fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_pointer_leads_to_the_innermost_failing_schema() {
        let bad = |schema: &Value| schema.to_string().contains("\"not\"").then(|| "no \"not\" here".to_owned());
        let cases = [
            (json!({"not": {}}), "#/not"),
            (json!({"properties": {"a": {}, "b/c": {"items": {"not": {}}}}}), "#/properties/b~1c/items/not"),
            (json!({"anyOf": [{}, {"allOf": [{}, {"not": {}}]}]}), "#/anyOf/1/allOf/1/not"),
            (json!({"$defs": {"d": {"prefixItems": [{"not": {}}]}}}), "#/$defs/d/prefixItems/0/not"),
        ];
        for (schema, path) in cases {
            assert_eq!(locate(&schema, "no \"not\" here", bad), path, "{schema}");
        }
    }
}

//! [`Parameters`]: a tool's parameters one by one, for families whose calls do not hold JSON.

use serde_json::{Value, json};

use super::closed_schemas::closed;
use super::literal;
use super::schema_budget::SchemaBudget;

/// The longest chain of references that is followed.
const MAX_REFS: usize = 16;
/// Keywords of the list of parameters that calls of these families can follow.
const OF_LISTS: [&str; 14] = [
    "type",
    "properties",
    "required",
    "additionalProperties",
    "$defs",
    "definitions",
    "description",
    "title",
    "default",
    "examples",
    "strict",
    "$schema",
    "$id",
    "$comment",
];

/// The arguments that a call of a tool may hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    pub listed: Vec<Parameter>,
    /// Whether names that are not listed may come.
    pub open: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameter {
    pub name: String,
    pub required: bool,
    /// The parameter's whole schema, with the definitions to which it refers.
    pub schema: Value,
    /// The schemas of the parameter's alternatives that are strings.
    pub strings: Vec<Value>,
    /// The schemas of the parameter's other alternatives.
    pub others: Vec<Value>,
}

impl Parameters {
    /// Reads the schema of a tool's arguments. Copies are charged to `budget`. The error names the keyword that such calls cannot follow.
    pub fn of(schema: &Value, budget: &mut SchemaBudget) -> Result<Self, String> {
        let root_value = closed(referred(schema, schema)?.clone());
        let Value::Object(root) = &root_value else { return Ok(Self { open: true, ..Self::default() }) };
        if let Some(key) = root.keys().find(|key| !OF_LISTS.contains(&key.as_str())) {
            return Err(format!("#/{key}: this model's calls name each argument, so only `properties` can say what they hold"));
        }
        let required = |name: &str| root.get("required").and_then(Value::as_array).is_some_and(|names| names.iter().any(|n| n == name));
        let mut listed = Vec::new();
        for (name, schema) in root.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let at = |error: String| format!("#/properties/{name}: {error}");
            if name.is_empty() || name.contains(['<', '>', '"', '\n']) {
                return Err(at("this model's calls cannot hold such a name".into()));
            }
            let map = schema.as_object().map(|map| budget.part(&root_value, map)).transpose().map_err(at)?;
            let schema_of = map.map_or_else(|| json!({}), Value::Object);
            let mut parameter = Parameter { name: name.clone(), required: required(name), schema: schema_of, ..Parameter::default() };
            parameter.add(&root_value, schema, 0, budget).map_err(at)?;
            listed.push(parameter);
        }
        Ok(Self { listed, open: root.get("additionalProperties") != Some(&Value::Bool(false)) })
    }

    /// Converts a parameter's value to JSON. `is_text`: whether the value's tag calls it a string, if the tag tells.
    pub fn value(&self, name: &str, text: &str, is_text: Option<bool>) -> String {
        let parameter = self.listed.iter().find(|parameter| parameter.name == name);
        let parsed = serde_json::from_str::<Value>(text.trim()).ok();
        let fits = match (is_text, parameter, &parsed) {
            (Some(true), ..) | (_, _, None) => false,
            (Some(false), ..) | (None, None, Some(_)) => true,
            (None, Some(parameter), Some(value)) => parameter.takes(value),
        };
        // Templates print Python's constants and lists.
        let is_other = parameter.is_some_and(|parameter| !parameter.takes_text(text));
        let literal = || literal::json_if_any(text).filter(|_| is_other);
        match fits {
            true => text.trim().to_owned(),
            false if is_text != Some(true) => literal().unwrap_or_else(|| Value::from(text).to_string()),
            _ => Value::from(text).to_string(),
        }
    }
}

impl Parameter {
    /// Reads what a single schema allows. The schema's references are resolved within the schema itself.
    pub fn of(schema: &Value) -> Result<Self, String> {
        let mut parameter = Self { schema: schema.clone(), ..Self::default() };
        parameter.add(schema, schema, 0, &mut SchemaBudget::default())?;
        Ok(parameter)
    }

    /// The part that `pick` finds in a schema, or else in the first of its alternatives that has one, with the definitions to which the
    /// part may refer.
    pub fn part(schema: &Value, pick: impl Fn(&Value) -> Option<Value> + Copy) -> Option<Value> {
        let mut budget = SchemaBudget::default();
        let part = find(schema, schema, &pick, 0, &mut budget)?;
        match (part, schema) {
            (Value::Object(part), Value::Object(_)) => budget.part(schema, &part).ok().map(Value::Object),
            (part, _) => Some(part),
        }
    }

    /// Whether the string `text` is allowed.
    fn takes_text(&self, text: &str) -> bool {
        let fits =
            |schema: &Value| schema.get("enum").and_then(Value::as_array).is_none_or(|values| values.iter().any(|value| value == text));
        self.strings.iter().any(fits)
    }

    pub fn takes(&self, value: &Value) -> bool {
        let of_type = |schema: &Value| match (schema.get("enum").and_then(Value::as_array), &schema["type"]) {
            (Some(values), _) => values.contains(value),
            (None, Value::String(name)) => is_of(value, name),
            (None, Value::Array(names)) => names.iter().filter_map(Value::as_str).any(|name| is_of(value, name)),
            (None, _) => !value.is_string(),
        };
        self.others.iter().any(of_type)
    }

    /// Adds what a schema allows.
    fn add(&mut self, root: &Value, schema: &Value, depth: usize, budget: &mut SchemaBudget) -> Result<(), String> {
        budget.step()?;
        let schema = referred(root, schema)?;
        let Value::Object(map) = schema else {
            self.strings.push(json!({}));
            return Ok(());
        };
        if depth > MAX_REFS {
            return Err("alternatives are nested too deeply".into());
        }
        let says = |key: &str| map.contains_key(key);
        if let Some(key) = ["anyOf", "oneOf", "allOf"].into_iter().find(|key| says(key)) {
            let branches = map[key].as_array().map(Vec::as_slice).unwrap_or_default();
            if says("type") || says("enum") || (key == "allOf" && branches.len() != 1) {
                return Err(format!("{key}: this model's calls can hold alternatives only, each with its own type"));
            }
            return branches.iter().try_for_each(|branch| self.add(root, branch, depth + 1, budget));
        }
        let values = map.get("enum").and_then(Value::as_array).map(Vec::as_slice).or_else(|| map.get("const").map(std::slice::from_ref));
        if let Some(values) = values {
            let values = values.iter().map(|value| budget.copy(value)).collect::<Result<Vec<_>, _>>()?;
            let (strings, others): (Vec<Value>, Vec<Value>) = values.into_iter().partition(Value::is_string);
            self.strings.extend((!strings.is_empty()).then(|| json!({"enum": strings})));
            self.others.extend((!others.is_empty()).then(|| json!({"enum": others})));
            return Ok(());
        }
        let names: Vec<&str> = match map.get("type") {
            Some(Value::String(name)) => vec![name],
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            _ if says("properties") => vec!["object"],
            _ if says("items") => vec!["array"],
            _ => vec!["string", "number", "boolean", "null", "object", "array"],
        };
        if names.contains(&"string") {
            self.strings.push(budget.copy(schema)?);
        }
        let others: Vec<&str> = names.into_iter().filter(|name| *name != "string").collect();
        if !others.is_empty() {
            let mut other = budget.part(root, map)?;
            other.insert("type".into(), others.into());
            self.others.push(Value::Object(other));
        }
        Ok(())
    }
}

/// The first part that `pick` finds in a schema or in its alternatives.
fn find(root: &Value, schema: &Value, pick: &dyn Fn(&Value) -> Option<Value>, depth: usize, budget: &mut SchemaBudget) -> Option<Value> {
    budget.step().ok()?;
    let schema = referred(root, schema).ok()?;
    let branches = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|key| schema.get(key)?.as_array());
    let mut deeper = |branch| if depth > MAX_REFS { None } else { find(root, branch, pick, depth + 1, budget) };
    pick(schema).or_else(|| branches.flatten().find_map(&mut deeper))
}

/// Follows a schema's local references.
fn referred<'a>(root: &'a Value, mut schema: &'a Value) -> Result<&'a Value, String> {
    for _ in 0..MAX_REFS {
        let Some(reference) = schema.get("$ref").and_then(Value::as_str) else { return Ok(schema) };
        let target = reference.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        schema = target.ok_or_else(|| format!("$ref: nothing is at {reference}"))?;
    }
    Err("$ref: the references do not end".into())
}

fn is_of(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    #[test]
    fn values_have_the_type_of_their_schema() {
        let schema = json!({
            "$defs": {"Unit": {"enum": ["C", "F"]}},
            "properties": {
                "text": {"type": "string"}, "count": {"type": "integer"}, "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "unit": {"$ref": "#/$defs/Unit"}, "on": {"type": "boolean"}, "list": {"type": ["array", "string"]},
            },
        });
        let parameters = Parameters::of(&schema, &mut SchemaBudget::default()).unwrap();
        assert!(!parameters.open);
        for (name, text, due) in [
            ("text", "7", "\"7\""),
            ("text", "a\"b\n", "\"a\\\"b\\n\""),
            ("count", "7", "7"),
            ("count", "x", "\"x\""),
            ("maybe", "null", "null"),
            ("maybe", "7", "\"7\""),
            ("unit", "C", "\"C\""),
            ("on", "True", "true"),
            ("list", "[1]", "[1]"),
            ("list", "{}", "\"{}\""),
            ("other", "7", "7"),
            ("other", "x", "\"x\""),
        ] {
            assert_eq!(parameters.value(name, text, None), due, "{name} {text}");
        }
        assert_eq!(parameters.value("count", "7", Some(true)), "\"7\"");
        for schema in [json!({"anyOf": []}), json!({"properties": {"a": {"type": "object", "allOf": [{}]}}})] {
            assert!(Parameters::of(&schema, &mut SchemaBudget::default()).unwrap_err().contains("this model's calls"), "{schema}");
        }
    }

    #[test]
    fn alternatives_that_double_at_each_reference_end_where_the_room_does() {
        let both = |i: usize| json!({"anyOf": [{"$ref": format!("#/$defs/d{i}")}, {"$ref": format!("#/$defs/d{i}")}]});
        let defs: Map<String, Value> = (0..14).map(|i| (format!("d{i}"), both(i + 1))).collect();
        let mut schema = json!({"properties": {"a": both(0)}, "$defs": defs});
        schema["$defs"]["d14"] = json!({"enum": ["x".repeat(1000)]});
        assert!(Parameters::of(&schema, &mut SchemaBudget::default()).unwrap_err().contains("too large"));
        assert_eq!(Parameter::part(&schema["properties"]["a"], |_| None), None);
        let shared = json!({"enum": (0..1000).map(|i| format!("value {i}")).collect::<Vec<_>>()});
        let many: Map<String, Value> = (0..400).map(|i| (format!("p{i}"), json!({"$ref": "#/$defs/shared"}))).collect();
        let wide = json!({"properties": many, "$defs": {"shared": shared}});
        assert!(Parameters::of(&wide, &mut SchemaBudget::default()).unwrap_err().contains("too large"));
    }
}

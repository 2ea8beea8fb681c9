//! Replaces numbers in a schema by placeholders if they depend on large ones.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::combined::check_combined;
use super::decimal::{holds_large, is_large};
use super::placeholder::Placeholder;
use super::read::{IN_PLACE, OF_NUMBERS, Reader, constants};
use super::step::Step;
use super::text::texts;
use crate::locate::{DEFINITIONS, LIST, NAMED, ONE, escaped};

/// The types of values other than numbers.
const OTHER_TYPES: [&str; 5] = ["null", "boolean", "string", "array", "object"];
/// Keywords that restrict a value. When a schema is split into alternatives, the others stay next to these: names, definitions,
/// annotations, and what llguidance refuses.
const OF_VALUES: [&str; 22] = [
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "const",
    "enum",
    "type",
    "items",
    "additionalItems",
    "prefixItems",
    "minItems",
    "maxItems",
    "properties",
    "additionalProperties",
    "patternProperties",
    "required",
    "minProperties",
    "maxProperties",
    "minLength",
    "maxLength",
    "pattern",
    "format",
];

/// A schema without large numbers, and its placeholders.
pub struct Rewritten {
    pub schema: Value,
    pub placeholders: Vec<Placeholder>,
}

/// Rewrites a schema. `None` if it needs no placeholder. `first`: the number of placeholders in other schemas of the grammar. `taken`: the
/// numbers that no placeholder may equal, to which the new ones are added.
///
/// # Errors
/// The JSON pointer of a part that cannot be followed exactly, and why.
pub fn rewrite(schema: &Value, first: usize, taken: &mut HashSet<u64>) -> Result<Option<Rewritten>, String> {
    if !schema.is_object() || !depends(schema) {
        return Ok(None);
    }
    let mut rewriter = Rewriter { reader: Reader::new(schema), taken, first, placeholders: Vec::new(), name: name_for(schema) };
    let mut rewritten = rewriter.schema(schema, "#")?;
    let placeholders = rewriter.placeholders;
    if placeholders.is_empty() && rewritten == *schema {
        return Ok(None);
    }
    if let Value::Object(map) = &mut rewritten {
        let definitions = placeholders.iter().map(|one| json!({"const": one.id}));
        let definitions: Map<String, Value> = definitions.enumerate().map(|(at, one)| (format!("{}{at}", rewriter.name), one)).collect();
        match map.entry("$defs").or_insert_with(|| json!({})) {
            Value::Object(all) => all.extend(definitions),
            other => return Err(format!("#/$defs is {other}, expected an object")),
        }
    }
    check_references(schema, "#")?;
    Ok(Some(Rewritten { schema: rewritten, placeholders }))
}

/// Whether a schema holds a large number, several `multipleOf`, or one that llguidance cannot follow, so that it may need placeholders.
pub fn depends(schema: &Value) -> bool {
    fn walk(value: &Value, steps: &mut usize) -> bool {
        match value {
            Value::Number(number) => is_large(number),
            Value::Array(items) => items.iter().any(|item| walk(item, steps)),
            Value::Object(map) => {
                let step = map.get("multipleOf").and_then(Value::as_number);
                *steps += usize::from(step.is_some());
                step.is_some_and(|step| Step::of(step).is_none()) || map.values().any(|item| walk(item, steps))
            }
            _ => false,
        }
    }
    let mut steps = 0;
    walk(schema, &mut steps) || steps > 1
}

/// A prefix for names of definitions that no definition of the schema has.
fn name_for(schema: &Value) -> String {
    let taken = |name: &str| schema["$defs"].as_object().is_some_and(|all| all.keys().any(|key| key.starts_with(name)));
    let mut name = "large-number-".to_owned();
    while taken(&name) {
        name.insert(0, '-');
    }
    name
}

/// Refuses references into alternatives, because rewriting moves alternatives.
fn check_references(value: &Value, path: &str) -> Result<(), String> {
    match value {
        Value::Array(items) => items.iter().enumerate().try_for_each(|(at, item)| check_references(item, &format!("{path}/{at}"))),
        Value::Object(map) => {
            let steps = map.get("$ref").and_then(Value::as_str).unwrap_or_default().split('/');
            if let Some(step) = steps.into_iter().find(|step| IN_PLACE.contains(step) || ["const", "enum"].contains(step)) {
                return Err(format!("{path}/$ref leads into \"{step}\" beside large numbers: expected a reference to #/$defs/NAME"));
            }
            map.iter().try_for_each(|(key, item)| check_references(item, &format!("{path}/{}", escaped(key))))
        }
        _ => Ok(()),
    }
}

struct Rewriter<'a> {
    reader: Reader<'a>,
    /// The numbers that no placeholder may equal.
    taken: &'a mut HashSet<u64>,
    first: usize,
    placeholders: Vec<Placeholder>,
    /// The prefix of the placeholders' names.
    name: String,
}

impl Rewriter<'_> {
    fn schema(&mut self, schema: &Value, path: &str) -> Result<Value, String> {
        let at = |error: String| format!("{path} cannot be used: {error}");
        let Value::Object(map) = schema else { return Ok(schema.clone()) };
        self.reader.step(0).map_err(at)?;
        check_combined(&mut self.reader, map).map_err(at)?;
        let says = |key: &str| map.contains_key(key);
        let narrows = OF_NUMBERS.into_iter().chain(["const", "enum", "type", "allOf", "oneOf"]).any(says);
        // Only a reference or only alternatives: their targets are rewritten in place.
        let is_plain = !(narrows || says("$ref") && says("anyOf"));
        if is_plain || !self.reader.depends(schema, 0).map_err(at)? {
            return self.parts(map, path).map(Value::Object);
        }
        let numbers = self.reader.numbers(schema, 0).map_err(at)?;
        let mut alternatives = Vec::new();
        if let Some(texts) = texts(&numbers).map_err(at)? {
            alternatives.push(self.placeholder(texts));
        }
        alternatives.extend(self.without_numbers(map, path)?);
        let is_of_value = |key: &str| OF_NUMBERS.contains(&key) || OF_VALUES.contains(&key);
        let mut split: Map<String, Value> =
            map.iter().filter(|(key, _)| !is_of_value(key)).map(|(key, value)| (key.clone(), value.clone())).collect();
        split = self.parts(&split, path)?;
        match alternatives.is_empty() {
            true => split.insert("allOf".into(), json!([false])),
            false => split.insert("anyOf".into(), alternatives.into()),
        };
        Ok(Value::Object(split))
    }

    fn placeholder(&mut self, texts: llguidance::derivre::RegexAst) -> Value {
        let at = self.placeholders.len();
        let one = Placeholder::new(self.first + at, self.taken, texts);
        self.placeholders.push(one);
        json!({"$ref": format!("#/$defs/{}{at}", self.name)})
    }

    /// The values other than numbers that a schema permits. `None` if there are none.
    fn without_numbers(&mut self, map: &Map<String, Value>, path: &str) -> Result<Option<Value>, String> {
        let of_types: Vec<&str> = match map.get("type") {
            None => OTHER_TYPES.to_vec(),
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            Some(name) => name.as_str().into_iter().collect(),
        };
        let types: Vec<&str> = of_types.into_iter().filter(|name| !["integer", "number"].contains(name)).collect();
        let mut rest = map.clone();
        rest.retain(|key, _| OF_VALUES.contains(&key.as_str()));
        let values: Vec<Value> = constants(map).filter(|value| !value.is_number()).cloned().collect();
        let has_values = map.contains_key("const") || map.contains_key("enum");
        if types.is_empty() || has_values && values.is_empty() {
            return Ok(None);
        }
        rest.insert("type".into(), types.into());
        if has_values && !map.contains_key("const") {
            rest.insert("enum".into(), values.into());
        }
        self.parts(&rest, path).map(|rest| Some(Value::Object(rest)))
    }

    /// Rewrites the parts of a schema.
    fn parts(&mut self, map: &Map<String, Value>, path: &str) -> Result<Map<String, Value>, String> {
        let mut all = Map::new();
        let mut spelt = Vec::new();
        for (key, value) in map {
            let below = format!("{path}/{}", escaped(key));
            let value = match (key.as_str(), value) {
                ("const" | "enum", _) if constants(map).any(holds_large) => {
                    spelt = constants(map)
                        .map(|value| self.constant(value))
                        .collect::<Result<Vec<_>, _>>()
                        .map_err(|error| format!("{below}: {error}"))?;
                    continue;
                }
                (key, Value::Object(named)) if NAMED.contains(&key) || DEFINITIONS.contains(&key) => {
                    let part = |(name, part): (&String, &Value)| {
                        self.schema(part, &format!("{below}/{}", escaped(name))).map(|part| (name.clone(), part))
                    };
                    Value::Object(named.iter().map(part).collect::<Result<_, _>>()?)
                }
                (key, Value::Array(items)) if LIST.contains(&key) => {
                    let part = |(at, part): (usize, &Value)| self.schema(part, &format!("{below}/{at}"));
                    Value::Array(items.iter().enumerate().map(part).collect::<Result<_, _>>()?)
                }
                (key, Value::Object(_)) if ONE.contains(&key) => self.schema(value, &below)?,
                _ => value.clone(),
            };
            all.insert(key.clone(), value);
        }
        if !spelt.is_empty() {
            let values = json!({"anyOf": spelt});
            match all.entry("allOf").or_insert_with(|| json!([])) {
                Value::Array(list) => list.push(values),
                other => return Err(format!("{path}/allOf is {other}, expected an array")),
            }
        }
        Ok(all)
    }

    /// Converts a constant to a schema. Large numbers in it become placeholders.
    fn constant(&mut self, value: &Value) -> Result<Value, String> {
        Ok(match value {
            _ if !holds_large(value) => json!({"const": value}),
            Value::Number(number) => {
                let numbers = super::set::Numbers::of_values(std::iter::once(number));
                texts(&numbers)?.map_or(Value::Bool(false), |texts| self.placeholder(texts))
            }
            Value::Array(items) => {
                let parts: Vec<Value> = items.iter().map(|item| self.constant(item)).collect::<Result<_, _>>()?;
                json!({"type": "array", "minItems": parts.len(), "maxItems": parts.len(), "prefixItems": parts, "items": false})
            }
            Value::Object(map) => {
                let parts: Map<String, Value> =
                    map.iter().map(|(name, item)| self.constant(item).map(|item| (name.clone(), item))).collect::<Result<_, _>>()?;
                let names: Vec<&String> = map.keys().collect();
                json!({"type": "object", "required": names, "properties": parts, "additionalProperties": false})
            }
            other => json!({"const": other}),
        })
    }
}

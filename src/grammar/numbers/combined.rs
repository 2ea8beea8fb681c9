//! Refuses schemas that llguidance would have to combine with each other inside an array or an object. To llguidance, a placeholder is a
//! constant like any other, so it would combine the numbers wrongly.

use serde_json::{Map, Value};

use super::decimal::holds_large;
use super::read::{IN_PLACE, OF_NUMBERS, Reader};

/// The requirements of one schema for the parts of a value, and whether they depend on large numbers.
#[derive(Default)]
struct Parts<'a> {
    /// By the member's name.
    named: Vec<(&'a str, bool)>,
    /// Members that match a pattern, and all members that are not named.
    other: Option<bool>,
    items: Option<bool>,
}

/// Refuses a schema if several of its parts apply to the same member or item and one of them depends on large numbers.
pub fn check_combined(reader: &mut Reader, map: &Map<String, Value>) -> Result<(), String> {
    let mut sources = vec![own(reader, map, 0)?];
    let pattern = ["patternProperties"].iter().any(|key| map.contains_key(*key));
    if pattern && sources[0].named.iter().any(|(_, large)| *large || sources[0].other == Some(true)) {
        return Err("\"patternProperties\" beside \"properties\" with large numbers is not supported".into());
    }
    for key in IN_PLACE {
        let branches = map.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        match key {
            "allOf" => {
                for branch in branches {
                    sources.push(of(reader, branch, 1)?);
                }
            }
            _ => {
                let mut any = Parts::default();
                for branch in branches {
                    any.add(of(reader, branch, 1)?);
                }
                sources.push(any);
            }
        }
    }
    if let Some(target) = reader.target(map).filter(|_| map.len() > 1) {
        sources.push(of(reader, target, 1)?);
    }
    sources.extend(["const", "enum"].iter().filter_map(|key| map.get(*key)).map(Parts::of_constants));
    for (at, source) in sources.iter().enumerate() {
        if sources[..at].iter().any(|before| before.meets(source)) {
            return Err("large numbers cannot be combined with another schema of the same member or item".into());
        }
    }
    Ok(())
}

/// Everything that a schema, and the schemas that apply to the same value, require of the value's parts.
fn of<'a: 'b, 'b>(reader: &mut Reader<'a>, schema: &'b Value, depth: usize) -> Result<Parts<'b>, String> {
    let Value::Object(map) = schema else { return Ok(Parts::default()) };
    let mut all = own(reader, map, depth)?;
    let target = reader.target(map);
    let branches = IN_PLACE.into_iter().filter_map(|key| map.get(key)?.as_array()).flatten();
    for schema in branches.chain(target) {
        all.add(of(reader, schema, depth + 1)?);
    }
    ["const", "enum"].iter().filter_map(|key| map.get(*key)).for_each(|value| all.add(Parts::of_constants(value)));
    Ok(all)
}

/// The requirements of a schema's own keywords for the value's parts.
fn own<'b>(reader: &mut Reader, map: &'b Map<String, Value>, depth: usize) -> Result<Parts<'b>, String> {
    reader.step(depth)?;
    let mut parts = Parts::default();
    for (key, value) in map {
        match (key.as_str(), value) {
            ("properties", Value::Object(named)) => {
                for (name, schema) in named {
                    parts.named.push((name, reaches_large(reader, schema, &mut Vec::new())?));
                }
            }
            ("patternProperties" | "additionalProperties", Value::Object(_)) => {
                parts.other = Some(parts.other == Some(true) || reaches_large(reader, value, &mut Vec::new())?);
            }
            ("items" | "prefixItems" | "additionalItems", Value::Object(_) | Value::Array(_)) => {
                parts.items = Some(parts.items == Some(true) || reaches_large(reader, value, &mut Vec::new())?);
            }
            _ => {}
        }
    }
    Ok(parts)
}

/// Whether a schema, or a schema to which it refers, holds a large number.
fn reaches_large(reader: &mut Reader, value: &Value, seen: &mut Vec<*const Value>) -> Result<bool, String> {
    reader.step(0)?;
    match value {
        Value::Array(items) => {
            for item in items {
                if reaches_large(reader, item, seen)? {
                    return Ok(true);
                }
            }
        }
        Value::Object(map) => {
            for (key, item) in map {
                let holds = match key.as_str() {
                    "default" | "examples" => false,
                    "const" | "enum" => holds_large(item),
                    key if OF_NUMBERS.contains(&key) => holds_large(item),
                    _ => reaches_large(reader, item, seen)?,
                };
                if holds {
                    return Ok(true);
                }
            }
            if let Some(target) = reader.target(map).filter(|target| !seen.contains(&std::ptr::from_ref(*target))) {
                seen.push(target);
                return reaches_large(reader, target, seen);
            }
        }
        _ => {}
    }
    Ok(false)
}

impl<'a> Parts<'a> {
    fn of_constants(value: &'a Value) -> Self {
        let mut parts = Self::default();
        let listed = value.as_array().map(Vec::as_slice).unwrap_or_default();
        for value in listed.iter().chain([value]) {
            match value {
                Value::Object(map) => parts.named.extend(map.iter().map(|(name, value)| (name.as_str(), holds_large(value)))),
                Value::Array(items) => parts.items = Some(parts.items == Some(true) || items.iter().any(holds_large)),
                _ => {}
            }
        }
        parts
    }

    fn add(&mut self, other: Self) {
        let either = |a: Option<bool>, b: Option<bool>| if a.is_none() { b } else { Some(a == Some(true) || b == Some(true)) };
        self.named.extend(other.named);
        self.other = either(self.other, other.other);
        self.items = either(self.items, other.items);
    }

    /// Whether both restrict the same member or item, and one of them depends on large numbers.
    fn meets(&self, other: &Self) -> bool {
        let both = |a: Option<bool>, b: Option<bool>| a.is_some() && b.is_some() && (a == Some(true) || b == Some(true));
        let any = |parts: &Self| (!parts.named.is_empty()).then(|| parts.named.iter().any(|(_, large)| *large));
        let same = self.named.iter().any(|(name, large)| other.named.iter().any(|(also, too)| name == also && (*large || *too)));
        same || both(self.other, any(other))
            || both(any(self), other.other)
            || both(self.other, other.other)
            || both(self.items, other.items)
    }
}

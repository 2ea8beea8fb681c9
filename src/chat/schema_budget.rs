//! [`SchemaBudget`]: bounds the memory of the copied parts of a request's schemas.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// The most memory for all copies [bytes].
const MOST: usize = 16 << 20;
/// The memory of a value besides its text [bytes].
const PER_VALUE: usize = 100;
/// The keywords under which a schema keeps its definitions.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// The memory left for copies of schemas. A part of a schema is copied with the definitions to which it refers, and many parts may refer
/// to the same definition, so a text of a megabyte could become gigabytes. Everything is measured before it is copied.
#[derive(Debug)]
pub struct SchemaBudget(usize);

impl Default for SchemaBudget {
    fn default() -> Self {
        Self(MOST)
    }
}

impl SchemaBudget {
    /// Takes the memory of one value.
    ///
    /// # Errors
    /// No memory is left.
    pub fn step(&mut self) -> Result<(), String> {
        self.take(PER_VALUE)
    }

    fn take(&mut self, bytes: usize) -> Result<(), String> {
        let left = self.0.checked_sub(bytes);
        self.0 = left.unwrap_or(0);
        left.map(drop).ok_or_else(|| {
            let most = MOST >> 20;
            format!("the schema is too large for this model's calls: its arguments with the definitions of each take more than {most} MiB")
        })
    }

    fn measure(&mut self, value: &Value) -> Result<(), String> {
        self.step()?;
        match value {
            Value::String(text) => self.take(text.len()),
            Value::Array(items) => items.iter().try_for_each(|item| self.measure(item)),
            Value::Object(map) => self.measure_map(map),
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
        }
    }

    fn measure_map(&mut self, map: &Map<String, Value>) -> Result<(), String> {
        map.iter().try_for_each(|(key, value)| {
            self.take(key.len())?;
            self.measure(value)
        })
    }

    /// Copies a value.
    ///
    /// # Errors
    /// The same as for [`SchemaBudget::step`].
    pub fn copy(&mut self, value: &Value) -> Result<Value, String> {
        self.measure(value)?;
        Ok(value.clone())
    }

    /// Copies a part of `root` with the definitions to which the part refers.
    ///
    /// # Errors
    /// The same as for [`SchemaBudget::step`].
    pub fn part(&mut self, root: &Value, part: &Map<String, Value>) -> Result<Map<String, Value>, String> {
        self.measure_map(part)?;
        let mut out = part.clone();
        let mut named = SchemaRef::default();
        part.values().for_each(|value| named.find(value));
        named.see(part);
        let definitions = DEFINITIONS.map(|key| root.get(key).and_then(Value::as_object));
        let definition = |(key, name): &(usize, String)| Some((*key, definitions[*key]?.get_key_value(name)?));
        while let Some(next) = named.open.pop_first() {
            named.seen.insert(next.clone());
            if let Some((key, (name, found))) = definition(&next).filter(|_| !named.all) {
                self.take(name.len())?;
                self.measure(found)?;
                insert(&mut out, DEFINITIONS[key], name, found);
                named.find(found);
            }
        }
        for (key, all) in DEFINITIONS.iter().zip(definitions).filter(|_| named.all) {
            if let Some(all) = all {
                self.measure_map(all)?;
                out.insert((*key).to_owned(), Value::Object(all.clone()));
            }
        }
        Ok(out)
    }
}

fn insert(out: &mut Map<String, Value>, key: &str, name: &str, definition: &Value) {
    // A part's references lead into the root, not into the part's own definitions.
    let of_key = out.entry(key).or_insert_with(|| Value::Object(Map::new()));
    if let Value::Object(map) = of_key {
        map.insert(name.to_owned(), definition.clone());
    }
}

/// The definitions to which a part refers, each as its keyword's index and its name.
#[derive(Default)]
struct SchemaRef {
    open: BTreeSet<(usize, String)>,
    seen: BTreeSet<(usize, String)>,
    /// Whether a reference may lead to any definition.
    all: bool,
}

impl SchemaRef {
    fn find(&mut self, value: &Value) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.find(item)),
            Value::Object(map) => {
                self.see(map);
                map.values().for_each(|value| self.find(value));
            }
            _ => {}
        }
    }

    /// Records the reference of one schema.
    fn see(&mut self, map: &Map<String, Value>) {
        for (_, reference) in map.iter().filter(|(key, _)| key.starts_with('$') && key.ends_with("ef")) {
            let known = reference.as_str().and_then(|reference| {
                let (keyword, rest) = reference.strip_prefix("#/")?.split_once('/')?;
                let key = DEFINITIONS.iter().position(|known| *known == keyword)?;
                let name = rest.split('/').next().filter(|name| !name.contains('%'))?;
                Some((key, name.replace("~1", "/").replace("~0", "~")))
            });
            match known {
                Some(known) if self.seen.contains(&known) => {}
                Some(known) => drop(self.open.insert(known)),
                None => self.all = true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn part(root: &Value, part: Value) -> Result<Value, String> {
        SchemaBudget::default().part(root, part.as_object().unwrap()).map(Value::Object)
    }

    #[test]
    fn a_part_brings_the_definitions_to_which_it_refers() {
        let root = json!({
            "$defs": {"a": {"$ref": "#/$defs/b/items"}, "b": {"items": {"$ref": "#/definitions/c~1d"}}, "e": {}},
            "definitions": {"c/d": {"$ref": "#/$defs/a"}, "f": {}},
        });
        let all = json!({"a": {"$ref": "#/$defs/b/items"}, "b": {"items": {"$ref": "#/definitions/c~1d"}}});
        let due = json!({"items": {"$ref": "#/$defs/a"}, "$defs": all, "definitions": {"c/d": {"$ref": "#/$defs/a"}}});
        assert_eq!(part(&root, json!({"items": {"$ref": "#/$defs/a"}})).unwrap(), due);
        assert_eq!(part(&root, json!({"type": "string"})).unwrap(), json!({"type": "string"}));
        for reference in ["#", "#/$defs/%61", "#/properties/x", "#name"] {
            let part = part(&root, json!({"$ref": reference})).unwrap();
            assert_eq!((&part["$defs"], &part["definitions"]), (&root["$defs"], &root["definitions"]), "{reference}");
        }
    }

    #[test]
    fn what_has_no_room_is_not_copied() {
        let root = json!({"$defs": {"a": {"enum": ["x".repeat(1 << 20)]}}});
        let mut budget = SchemaBudget::default();
        let one = json!({"$ref": "#/$defs/a"});
        let copies = (0..20).map_while(|_| budget.part(&root, one.as_object().unwrap()).ok()).count();
        assert_eq!(copies, 15);
        assert!(budget.step().unwrap_err().contains("16 MiB"));
    }
}

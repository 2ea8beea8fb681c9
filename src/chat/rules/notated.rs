//! Rules for arguments in a family's own notation, built from the schema of each value at any depth.

use std::collections::HashMap;
use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::tagged::{Literals, constraints, string};
use crate::closed_schemas::closed;
use crate::dialect::{Notation, Tagged};
use grammar::{GrammarError, Source};

/// The most members whose names the schema does not list.
const MAX_FURTHER: usize = 32;
/// The most rules per tool. A schema that needs more is refused.
const MAX_RULES: usize = 2000;
/// The longest rules of all tools together [bytes]. Each reference leads to rules of its own, so the rules may be many times as long as
/// the schema.
const MAX_BYTES: usize = 1 << 20;
const TOO_LARGE: &str = ": the schema is too large for this model's calls";
/// Keywords that such rules cannot follow.
const REFUSED: [&str; 16] = [
    "allOf",
    "contains",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "else",
    "if",
    "maxProperties",
    "minProperties",
    "not",
    "patternProperties",
    "prefixItems",
    "propertyNames",
    "then",
    "unevaluatedProperties",
    "uniqueItems",
];
/// The types that a value may have.
const TYPES: [&str; 6] = ["string", "number", "boolean", "null", "array", "object"];
/// The keywords that constrain a number.
const OF_NUMBERS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// The rules `arguments_I` of tools, and the values in them that are written as JSON.
#[derive(Default)]
pub struct NotatedRules {
    pub lark: String,
    values: Vec<(String, Value)>,
}

impl NotatedRules {
    /// Adds the values that are written as JSON, as the named grammars to which the rules refer.
    pub fn with_values(&self, source: Source) -> Result<Source, GrammarError> {
        self.values.iter().try_fold(source, |source, (name, schema)| source.with_schema(name, schema))
    }

    /// Adds the rule `arguments_I`. The error names the keyword that such rules cannot follow.
    pub fn add(&mut self, writer: &Literals, notation: &Notation, tool: usize, schema: &Value) -> Result<(), String> {
        let root = closed(schema.clone());
        let mut builder = Builder { rules: self, writer, notation, root: &root, tool, count: 0, named: HashMap::new() };
        let schema = referred(&root, &root)?;
        let empty = Map::new();
        let members = builder.members(schema.as_object().unwrap_or(&empty)).map_err(|error| format!("#{error}"))?;
        builder.rule(&format!("arguments_{tool}"), &members)
    }
}

struct Builder<'a> {
    rules: &'a mut NotatedRules,
    writer: &'a Literals<'a>,
    notation: &'a Notation,
    root: &'a Value,
    tool: usize,
    count: usize,
    /// The names of rules for references, which may be recursive, and for any value.
    named: HashMap<String, String>,
}

impl<'a> Builder<'a> {
    fn rule(&mut self, name: &str, body: &str) -> Result<(), String> {
        if self.rules.lark.len() + name.len() + body.len() > MAX_BYTES {
            return Err(TOO_LARGE.into());
        }
        let _ = writeln!(self.rules.lark, "{name}: {body}");
        Ok(())
    }

    fn new_name(&mut self) -> Result<String, String> {
        self.count += 1;
        match self.count > MAX_RULES {
            true => Err(TOO_LARGE.into()),
            false => Ok(format!("part_{}_{}", self.tool, self.count)),
        }
    }

    fn literal(&self, text: &str) -> String {
        (self.writer.literal)(text)
    }

    /// The name of a rule for a value. An error begins with the place in the schema.
    fn value(&mut self, schema: &Value) -> Result<String, String> {
        let key = match schema.get("$ref").and_then(Value::as_str) {
            Some(reference) => reference.to_owned(),
            None if is_any(schema) => String::new(),
            None => {
                let name = self.new_name()?;
                let body = self.body(schema)?;
                self.rule(&name, &body)?;
                return Ok(name);
            }
        };
        if let Some(name) = self.named.get(&key) {
            return Ok(name.clone());
        }
        let name = self.new_name()?;
        self.named.insert(key, name.clone());
        let any = json!({"type": TYPES});
        let root = self.root;
        let target = if is_any(schema) { &any } else { referred(root, schema)? };
        let body = if is_any(target) || target.get("$ref").is_some() { self.value(target)? } else { self.body(target)? };
        self.rule(&name, &body)?;
        Ok(name)
    }

    fn body(&mut self, schema: &Value) -> Result<String, String> {
        let Value::Object(map) = schema else { return Err(": the schema is no object".into()) };
        if let Some(key) = map.keys().find(|key| REFUSED.contains(&key.as_str())) {
            return Err(format!("/{key}: this model's calls cannot follow it"));
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(branches) = map.get(key).and_then(Value::as_array) {
                if map.contains_key("type") || map.contains_key("properties") {
                    return Err(format!("/{key}: this model's calls can hold alternatives only, each with its own type"));
                }
                let names: Result<Vec<String>, String> = branches
                    .iter()
                    .enumerate()
                    .map(|(i, branch)| self.value(branch).map_err(|error| format!("/{key}/{i}{error}")))
                    .collect();
                return Ok(names?.join(" | "));
            }
        }
        let values = map.get("enum").and_then(Value::as_array).map(Vec::as_slice).or_else(|| map.get("const").map(std::slice::from_ref));
        if let Some(values) = values {
            let texts: Vec<String> = values.iter().map(|value| self.closed(self.literal(&self.notation.value(value)))).collect();
            return Ok(texts.join(" | "));
        }
        let types: Vec<&str> = match map.get("type") {
            Some(Value::String(name)) => vec![name],
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            _ if map.contains_key("properties") => vec!["object"],
            _ if map.contains_key("items") => vec!["array"],
            _ => TYPES.to_vec(),
        };
        // A repeated type would add only rules.
        let types: Vec<&str> = types.iter().enumerate().filter(|(i, name)| !types[..*i].contains(name)).map(|(_, name)| *name).collect();
        let forms: Result<Vec<String>, String> = types.into_iter().map(|kind| self.of_type(kind, map)).collect();
        Ok(forms?.join(" | "))
    }

    fn of_type(&mut self, kind: &str, map: &Map<String, Value>) -> Result<String, String> {
        let notation = self.notation;
        match kind {
            "object" => {
                let members = self.members(map)?;
                Ok(self.closed([&self.literal(notation.object[0]), " ", &members, " ", &self.literal(notation.object[1])].concat()))
            }
            "array" => self.list(map).map(|list| self.closed(list)),
            "string" => self.string(map),
            _ => {
                let mut leaf = Map::from_iter([("type".to_owned(), kind.into())]);
                leaf.extend(OF_NUMBERS.iter().filter_map(|key| Some(((*key).to_owned(), map.get(*key)?.clone()))));
                let name = self.new_name()?.replace("part", "leaf");
                self.rules.values.push((name.clone(), Value::Object(leaf)));
                Ok(self.closed(format!("@{name}")))
            }
        }
    }

    fn list(&mut self, map: &Map<String, Value>) -> Result<String, String> {
        let notation = self.notation;
        let item = self.value(map.get("items").unwrap_or(&Value::Bool(true))).map_err(|error| format!("/items{error}"))?;
        let item = [&self.literal(notation.item[0]), " ", &item, " ", &self.literal(self.end(notation.item[1]))].concat();
        let bound = |key: &str| map.get(key).and_then(Value::as_u64);
        let (min, max) = (bound("minItems").unwrap_or(0), bound("maxItems"));
        let more = format!("({} {item})", self.literal(notation.comma));
        let further = format!("{{{},{}}}", min.saturating_sub(1), max.map_or(String::new(), |max| max.saturating_sub(1).to_string()));
        let items = match (min, max) {
            (_, Some(0)) => String::from("\"\""),
            (0, _) => format!("({item} {more}{further})?"),
            _ => format!("{item} {more}{further}"),
        };
        Ok([&self.literal(notation.list[0]), " ", &items, " ", &self.literal(notation.list[1])].concat())
    }

    /// A string with the mark after it, which no string can hold.
    fn string(&mut self, map: &Map<String, Value>) -> Result<String, String> {
        let (notation, name) = (self.notation, self.new_name()?);
        let mark = Tagged { before: "", text: "", json: "", after: notation.mark };
        let constraints = constraints(&mark, &Value::Object(map.clone())).map_err(|error| format!("/{error}"))?;
        let (regex, more) = constraints.unwrap_or(("(?s:.*)".into(), String::new()));
        let rule = string(self.writer, &mark, &name, &regex, &more);
        if self.rules.lark.len() + rule.len() > MAX_BYTES {
            return Err(TOO_LARGE.into());
        }
        self.rules.lark += &rule;
        Ok([&self.literal(notation.string[0]), " ", &name].concat())
    }

    /// A value that is no string. If values are between tags, the rule of each value includes the mark after the value, as with strings.
    fn closed(&self, value: String) -> String {
        if self.notation.is_tags() { format!("{value} {}", self.literal(self.notation.mark)) } else { value }
    }

    /// A tag without the mark, which belongs to the rule of the value before it.
    fn end<'b>(&self, tag: &'b str) -> &'b str {
        if self.notation.is_tags() { tag.strip_prefix(self.notation.mark).unwrap_or(tag) } else { tag }
    }

    /// The members of an object. `first_J` are the members with index J and above if none came before, and `next_J` if some did.
    fn members(&mut self, map: &Map<String, Value>) -> Result<String, String> {
        if let Some(key) = map.keys().find(|key| REFUSED.contains(&key.as_str()) || ["anyOf", "oneOf"].contains(&key.as_str())) {
            return Err(format!("/{key}: this model's calls cannot follow it beside `properties`"));
        }
        let notation = self.notation;
        let empty = Map::new();
        let listed = map.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let required = |name: &str| map.get("required").and_then(Value::as_array).is_some_and(|names| names.iter().any(|n| n == name));
        let base = self.new_name()?;
        let comma = self.literal(notation.comma);
        let keys = notation.order(listed.keys());
        for (j, key) in keys.iter().enumerate() {
            if key.is_empty() || key.contains(['<', '>', '"', '\n', ':', ',', '{', '}']) {
                return Err(format!("/properties/{key}: this model's calls cannot hold such a name"));
            }
            let value = self.value(&listed[*key]).map_err(|error| format!("/properties/{key}{error}"))?;
            let head = self.literal(&[notation.key[0], key, notation.key[1]].concat());
            let end = self.literal(&self.end(notation.member_end).replace("{name}", key));
            let (member, after) = (format!("{head} {value} {end}"), j + 1);
            let skipped = |kind: &str| if required(key) { String::new() } else { format!(" | {base}_{kind}_{after}") };
            self.rule(&format!("{base}_first_{j}"), &format!("{member} {base}_next_{after}{}", skipped("first")))?;
            self.rule(&format!("{base}_next_{j}"), &format!("{comma} {member} {base}_next_{after}{}", skipped("next")))?;
        }
        let end = keys.len();
        let further = match map.get("additionalProperties") {
            Some(Value::Bool(false)) => None,
            Some(schema @ Value::Object(_)) => Some(self.value(schema).map_err(|error| format!("/additionalProperties{error}"))?),
            _ => Some(self.value(&Value::Bool(true))?),
        };
        let (first, next) = match further {
            Some(value) => {
                // The tag after a member repeats the member's key, which no grammar of this kind can follow. Only the tag's end counts.
                let key = "/[A-Za-z_][A-Za-z0-9_.-]{0,63}/";
                let end = match self.end(notation.member_end).split_once("{name}") {
                    Some((before, after)) => format!("{} {key} {}", self.literal(before), self.literal(after)),
                    None => String::new(),
                };
                let member = format!("{} {key} {} {value} {end}", self.literal(notation.key[0]), self.literal(notation.key[1]));
                (format!("({member} ({comma} {member}){{0,{MAX_FURTHER}}})?"), format!("({comma} {member}){{0,{MAX_FURTHER}}}"))
            }
            None => ("\"\"".into(), "\"\"".into()),
        };
        self.rule(&format!("{base}_first_{end}"), &first)?;
        self.rule(&format!("{base}_next_{end}"), &next)?;
        Ok(format!("{base}_first_0"))
    }
}

/// Follows a schema's reference, if the schema is one.
fn referred<'a>(root: &'a Value, schema: &'a Value) -> Result<&'a Value, String> {
    let Some(reference) = schema.get("$ref").and_then(Value::as_str) else { return Ok(schema) };
    let target = reference.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
    target.ok_or_else(|| format!("/$ref: nothing is at {reference}"))
}

/// Whether a schema allows anything.
fn is_any(schema: &Value) -> bool {
    match schema {
        Value::Bool(open) => *open,
        Value::Object(map) => map.keys().all(|key| ["description", "title", "default", "examples"].contains(&key.as_str())),
        _ => false,
    }
}

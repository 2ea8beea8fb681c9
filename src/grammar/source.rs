//! A grammar before it is compiled: a main one in Lark's syntax, and those that it names.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Map, Value, json};

use super::GrammarError;
use super::locate::DEFINITIONS;

/// Bytes of a schema or grammar, as JSON.
const MAX_BYTES: usize = 1 << 20;
/// Values in a schema: compiling takes about a microsecond for each, and more for some.
const MAX_VALUES: usize = 100_000;
/// Members of an object: their order is a part of the grammar, whose size grows with the square. Definitions have none.
const MAX_MEMBERS: usize = 500;
/// References, each of which may lead to another: the stack must hold their chain.
const MAX_REFS: usize = 5000;

/// Of JSON Schema, whose keywords are told apart.
const DRAFTS: [&str; 5] = ["draft-04", "draft-06", "draft-07", "draft/2019-09", "draft/2020-12"];

/// White space between JSON's tokens: as people and programs write it, and no endless run that a small model may fall into.
const WHITE_SPACE: &str = r"[ \t]{1,2}|\r?\n[ \t]{0,40}";

/// Rules of a grammar. The first is `start`; `@name` in one stands for a grammar of that name.
#[derive(Clone, Debug, Default)]
pub struct Source {
    lark: String,
    named: Vec<(String, Named)>,
}

#[derive(Clone, Debug)]
enum Named {
    Lark(String),
    Schema(Value),
}

impl Source {
    /// The main grammar, in Lark's syntax.
    pub fn new(lark: impl Into<String>) -> Self {
        Self { lark: lark.into(), named: Vec::new() }
    }

    /// Adds a grammar of a client's own.
    pub fn with_lark(mut self, name: &str, lark: &str) -> Result<Self, GrammarError> {
        if lark.len() > MAX_BYTES {
            return Err(GrammarError::Invalid(format!("it has {} bytes, more than {MAX_BYTES}", lark.len())));
        }
        self.named.push((name.into(), Named::Lark(lark.into())));
        Ok(self)
    }

    /// Adds a regular expression; `\d` is 0 to 9.
    pub fn with_regex(self, name: &str, regex: &str) -> Result<Self, GrammarError> {
        self.with_lark(name, &format!("start: /{}/", llguidance::regex_to_lark(regex, "d")))
    }

    /// Adds JSON that a schema describes.
    pub fn with_schema(mut self, name: &str, schema: &Value) -> Result<Self, GrammarError> {
        check_size(schema)?;
        let mut schema = match schema {
            Value::Object(map) => map.clone(),
            Value::Bool(true) => Map::new(),
            Value::Bool(false) => return Err(GrammarError::Invalid("nothing satisfies the schema `false`".into())),
            other => return Err(GrammarError::Invalid(format!("a schema is an object or a boolean, not {other}"))),
        };
        if let Some(draft) = schema.get("$schema").and_then(Value::as_str).filter(|draft| !DRAFTS.iter().any(|known| draft.contains(known)))
        {
            return Err(GrammarError::Invalid(format!(
                "#/$schema names a draft that is not known: {}",
                draft.chars().take(100).collect::<String>()
            )));
        }
        // How JSON is written is not the client's to say: this key takes the place of one of theirs.
        schema.insert("x-guidance".into(), json!({"whitespace_pattern": WHITE_SPACE}));
        self.named.push((name.into(), Named::Schema(Value::Object(schema))));
        Ok(self)
    }

    /// All of it as text: two that are equal are the same grammar.
    pub(super) fn key(&self) -> String {
        let named = self.named.iter().map(|(name, grammar)| match grammar {
            Named::Lark(lark) => json!([name, "lark", lark]),
            Named::Schema(schema) => json!([name, "schema", schema]),
        });
        Value::from_iter(std::iter::once(json!(self.lark)).chain(named)).to_string()
    }

    pub(super) fn schemas(&self) -> impl Iterator<Item = &Value> {
        self.named.iter().filter_map(|(_, grammar)| match grammar {
            Named::Schema(schema) => Some(schema),
            Named::Lark(_) => None,
        })
    }

    pub(super) fn grammar(&self) -> TopLevelGrammar {
        let named = self.named.iter().map(|(name, grammar)| {
            let grammar = match grammar {
                Named::Lark(lark) => GrammarWithLexer::from_lark(lark.clone()),
                Named::Schema(schema) => GrammarWithLexer::from_json_schema(schema.clone()),
            };
            GrammarWithLexer { name: Some(name.clone()), ..grammar }
        });
        let main = GrammarWithLexer::from_lark(self.lark.clone());
        TopLevelGrammar { grammars: std::iter::once(main).chain(named).collect(), max_tokens: None }
    }
}

/// A text as a literal of Lark's syntax.
pub fn lark_string(text: &str) -> String {
    Value::from(text).to_string()
}

#[derive(Default)]
struct Size {
    bytes: usize,
    values: usize,
    refs: usize,
    members: usize,
}

impl Size {
    fn add(&mut self, value: &Value) {
        self.values += 1;
        match value {
            Value::String(text) => self.bytes += text.len(),
            Value::Array(items) => items.iter().for_each(|item| self.add(item)),
            Value::Object(map) => {
                self.members = self.members.max(map.len());
                for (key, value) in map {
                    self.bytes += key.len();
                    self.refs += usize::from(key.ends_with("ef") && key.starts_with('$'));
                    match value {
                        Value::Object(definitions) if DEFINITIONS.contains(&key.as_str()) => {
                            self.values += 1;
                            self.bytes += definitions.keys().map(String::len).sum::<usize>();
                            definitions.values().for_each(|definition| self.add(definition));
                        }
                        other => self.add(other),
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// A body is nested less than 128 deep, so that this may recurse.
fn check_size(schema: &Value) -> Result<(), GrammarError> {
    let mut size = Size::default();
    size.add(schema);
    let bounds = [
        (size.bytes, MAX_BYTES, "bytes"),
        (size.values, MAX_VALUES, "values"),
        (size.members, MAX_MEMBERS, "members in one object"),
        (size.refs, MAX_REFS, "references"),
    ];
    match bounds.into_iter().find(|(count, most, _)| count > most) {
        Some((count, most, what)) => Err(GrammarError::Invalid(format!("it has {count} {what}, more than {most}"))),
        None => Ok(()),
    }
}

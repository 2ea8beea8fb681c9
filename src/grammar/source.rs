//! [`Source`]: a grammar before it is compiled. It consists of a main grammar in Lark's syntax and the named grammars that it refers to.

use llguidance::api::{GrammarInit, GrammarWithLexer, TopLevelGrammar};
use llguidance::{ParserFactory, TokenParser};
use serde_json::{Map, Value, json};

use crate::error::GrammarError;
use crate::gbnf;
use crate::locate::DEFINITIONS;
use crate::numbers::{Placeholder, replace, rewrite};
use crate::quoted;

/// Most bytes of strings in a schema, and longest Lark grammar.
const MAX_BYTES: usize = 1 << 20;
/// Most values in a schema. Compiling takes about a microsecond per value, and longer for some.
const MAX_VALUES: usize = 100_000;
/// Most members of an object, except of definitions. Their order is part of the grammar, whose size is quadratic in their number.
const MAX_MEMBERS: usize = 500;
/// Most items of a list, except of values (`enum`, `examples`). Alternatives are compared with each other.
const MAX_ITEMS: usize = 2000;
/// Most references. Each may lead to another, and the stack of the compiling thread must hold the chain.
const MAX_REFS: usize = 5000;

/// The known drafts of JSON Schema, which differ in some keywords.
const DRAFTS: [&str; 5] = ["draft-04", "draft-06", "draft-07", "draft/2019-09", "draft/2020-12"];

/// White space between JSON's tokens: what people and programs write, but without unlimited runs, which small models tend to get stuck in.
const WHITE_SPACE: &str = r"[ \t]{1,2}|\r?\n[ \t]{0,40}";

/// A grammar. Its first rule is `start`. In a rule, `@name` refers to the named grammar `name`.
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
    /// A source with the main grammar, in Lark's syntax.
    pub fn new(lark: impl Into<String>) -> Self {
        Self { lark: lark.into(), named: Vec::new() }
    }

    /// Adds a named grammar in Lark's syntax.
    pub fn with_lark(mut self, name: &str, lark: &str) -> Result<Self, GrammarError> {
        if lark.len() > MAX_BYTES {
            return Err(GrammarError::Invalid(format!("the grammar has {} bytes, expected at most {MAX_BYTES}", lark.len())));
        }
        self.named.push((name.into(), Named::Lark(lark.into())));
        Ok(self)
    }

    /// Adds a named grammar in GBNF.
    pub fn with_gbnf(self, name: &str, gbnf: &str) -> Result<Self, GrammarError> {
        if gbnf.len() > MAX_BYTES {
            return Err(GrammarError::Invalid(format!("the grammar has {} bytes, expected at most {MAX_BYTES}", gbnf.len())));
        }
        let lark = gbnf::to_lark(gbnf).map_err(GrammarError::Invalid)?;
        self.with_lark(name, &lark)
    }

    /// Adds a named regular expression. `\d` matches the digits 0 to 9 only.
    pub fn with_regex(self, name: &str, regex: &str) -> Result<Self, GrammarError> {
        if ends_in_escape(regex) {
            return Err(GrammarError::Invalid("the regex ends with a lone backslash".into()));
        }
        self.with_lark(name, &format!("start: /{}/", llguidance::regex_to_lark(regex, "d")))
    }

    /// Adds the named grammar of a text as it stands between a JSON string's quotes. The text follows a grammar in Lark's syntax.
    pub fn with_quoted_lark(self, name: &str, lark: &str) -> Result<Self, GrammarError> {
        if lark.len() > MAX_BYTES {
            return Err(GrammarError::Invalid(format!("the grammar has {} bytes, expected at most {MAX_BYTES}", lark.len())));
        }
        let quoted = quoted::lark(lark).map_err(GrammarError::Invalid)?;
        self.with_lark(name, &quoted)
    }

    /// The same for a text that a regular expression matches.
    pub fn with_quoted_regex(self, name: &str, regex: &str) -> Result<Self, GrammarError> {
        if ends_in_escape(regex) {
            return Err(GrammarError::Invalid("the regex ends with a lone backslash".into()));
        }
        self.with_quoted_lark(name, &format!("start: /{}/", llguidance::regex_to_lark(regex, "d")))
    }

    /// Adds a named JSON Schema.
    pub fn with_schema(mut self, name: &str, schema: &Value) -> Result<Self, GrammarError> {
        check_size(schema)?;
        let mut schema = match schema {
            Value::Object(map) => map.clone(),
            Value::Bool(true) => Map::new(),
            Value::Bool(false) => return Err(GrammarError::Invalid("nothing satisfies the schema `false`".into())),
            other => return Err(GrammarError::Invalid(format!("the schema is {other}, expected an object or a boolean"))),
        };
        if let Some(draft) = schema.get("$schema").and_then(Value::as_str).filter(|draft| !DRAFTS.iter().any(|known| draft.contains(known)))
        {
            return Err(GrammarError::Invalid(format!(
                "#/$schema names an unknown draft: {}",
                draft.chars().take(100).collect::<String>()
            )));
        }
        // Clients do not control white space: this replaces their key of the same name.
        schema.insert("x-guidance".into(), json!({"whitespace_pattern": WHITE_SPACE}));
        let schema = Value::Object(schema);
        rewrite(&schema, 0).map_err(GrammarError::Invalid)?;
        self.named.push((name.into(), Named::Schema(schema)));
        Ok(self)
    }

    /// The whole source as JSON. Equal texts of it are the same grammar.
    pub(super) fn parts(&self) -> Value {
        let named = self.named.iter().map(|(name, grammar)| match grammar {
            Named::Lark(lark) => json!([name, "lark", lark]),
            Named::Schema(schema) => json!([name, "schema", schema]),
        });
        std::iter::once(json!(self.lark)).chain(named).collect()
    }

    /// The inverse of [`Source::parts`]. None if `parts` is malformed.
    pub(super) fn of_parts(parts: &Value) -> Option<Self> {
        let (lark, named) = parts.as_array()?.split_first()?;
        let named = named.iter().map(|part| {
            let grammar = match part[1].as_str()? {
                "lark" => Named::Lark(part[2].as_str()?.to_owned()),
                "schema" => Named::Schema(part[2].clone()),
                _ => return None,
            };
            Some((part[0].as_str()?.to_owned(), grammar))
        });
        Some(Self { lark: lark.as_str()?.to_owned(), named: named.collect::<Option<_>>()? })
    }

    pub(super) fn schemas(&self) -> impl Iterator<Item = &Value> {
        self.named.iter().filter_map(|(_, grammar)| match grammar {
            Named::Schema(schema) => Some(schema),
            Named::Lark(_) => None,
        })
    }

    /// Compiles the source. Large numbers in schemas keep all of their digits (`numbers/`).
    pub(super) fn parser(&self, factory: &ParserFactory) -> anyhow::Result<TokenParser> {
        let (grammar, placeholders) = self.grammar()?;
        if placeholders.is_empty() {
            return factory.create_parser(grammar);
        }
        let environment = Some(factory.tok_env().clone());
        let (grammar, mut lexer) = GrammarInit::Serialized(grammar).to_internal(environment, factory.limits().clone())?;
        replace(&mut lexer, &placeholders)?;
        factory.create_parser_from_init_default(GrammarInit::Internal(grammar, lexer))
    }

    fn grammar(&self) -> anyhow::Result<(TopLevelGrammar, Vec<Placeholder>)> {
        let (mut grammars, mut placeholders) = (vec![GrammarWithLexer::from_lark(self.lark.clone())], Vec::new());
        for (name, grammar) in &self.named {
            let grammar = match grammar {
                Named::Lark(lark) => GrammarWithLexer::from_lark(lark.clone()),
                Named::Schema(schema) => GrammarWithLexer::from_json_schema(match rewrite(schema, placeholders.len()) {
                    Ok(Some(rewritten)) => {
                        placeholders.extend(rewritten.placeholders);
                        rewritten.schema
                    }
                    Ok(None) => schema.clone(),
                    Err(error) => anyhow::bail!(error),
                }),
            };
            grammars.push(GrammarWithLexer { name: Some(name.clone()), ..grammar });
        }
        Ok((TopLevelGrammar { grammars, max_tokens: None }, placeholders))
    }
}

/// Whether the last backslash of a regular expression escapes nothing. The compiler drops such a backslash instead of refusing it.
fn ends_in_escape(regex: &str) -> bool {
    let slashes = regex.len() - regex.trim_end_matches('\\').len();
    slashes % 2 == 1
}

#[derive(Default)]
struct Size {
    ends_in_escape: bool,
    bytes: usize,
    values: usize,
    refs: usize,
    members: usize,
    items: usize,
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
                    match (key.as_str(), value) {
                        // Each required name is a member, whether it is declared or not.
                        ("required", Value::Array(names)) => self.members = self.members.max(names.len()),
                        ("enum" | "examples", _) => {}
                        ("pattern", Value::String(pattern)) => self.ends_in_escape |= ends_in_escape(pattern),
                        ("patternProperties", Value::Object(patterns)) => {
                            self.ends_in_escape |= patterns.keys().any(|pattern| ends_in_escape(pattern));
                        }
                        (_, Value::Array(items)) => self.items = self.items.max(items.len()),
                        _ => {}
                    }
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

/// Checks the sizes of a schema. Recursion is safe, because request bodies are nested less than 128 levels deep.
fn check_size(schema: &Value) -> Result<(), GrammarError> {
    let mut size = Size::default();
    size.add(schema);
    if size.ends_in_escape {
        return Err(GrammarError::Invalid("a pattern of the schema ends with a lone backslash".into()));
    }
    let bounds = [
        (size.bytes, MAX_BYTES, "bytes"),
        (size.values, MAX_VALUES, "values"),
        (size.members, MAX_MEMBERS, "members in one object"),
        (size.items, MAX_ITEMS, "items in one list"),
        (size.refs, MAX_REFS, "references"),
    ];
    match bounds.into_iter().find(|(count, most, _)| count > most) {
        Some((count, most, what)) => Err(GrammarError::Invalid(format!("the schema has {count} {what}, expected at most {most}"))),
        None => Ok(()),
    }
}

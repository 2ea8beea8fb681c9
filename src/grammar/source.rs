//! [`Source`]: a grammar before compilation. It consists of a main grammar in Lark's syntax and the named grammars to which it refers.
//!
//! A source holds texts as clients wrote them. Everything that makes a text longer happens in [`Source::finished`], which the process that
//! compiles on trial calls within its budget (`trial.rs`).

use std::collections::HashSet;
use std::fmt::Write;

use llguidance::api::{GrammarInit, GrammarWithLexer, TopLevelGrammar};
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Logger, ParserFactory, TokenParser};
use serde_json::{Map, Value, json};

use crate::error::GrammarError;
use crate::gbnf;
use crate::numbers::{Placeholder, depends, replace, rewrite};
use crate::quoted;
use crate::size::{check_size, ends_in_escape, measured};

/// The longest text of one grammar, both as written and as finished [bytes].
pub const MAX_BYTES: usize = 1 << 20;
/// The most bytes of all grammars of a source together.
pub const MAX_ALL_BYTES: usize = 4 << 20;

/// The most expressions that the lexer may construct for one mask where a schema holds large numbers, about 0.1 µs each. A range of
/// multiples takes one for each remainder, number of digits left and next digit: up to 1.6 million with a vocabulary whose tokens have
/// three digits.
const MASK_FUEL_OF_LARGE_NUMBERS: u64 = 2_000_000;

/// The known drafts of JSON Schema, which differ in some keywords.
const DRAFTS: [&str; 5] = ["draft-04", "draft-06", "draft-07", "draft/2019-09", "draft/2020-12"];

/// White space between JSON's tokens: what people and programs write, but without unlimited runs, in which small models tend to get stuck.
const WHITE_SPACE: &str = r"[ \t]{1,2}|\r?\n[ \t]{0,40}";

/// A grammar. Its first rule is `start`. In a rule, `@name` refers to the named grammar `name`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Source {
    lark: String,
    named: Vec<(String, Named)>,
    /// The total size of all grammars, as [`Source::with`] counts them [bytes].
    bytes: usize,
}

#[derive(Clone, Debug, PartialEq)]
enum Named {
    Text(Syntax, String),
    Schema(Value),
}

/// The form in which a named grammar is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Syntax {
    Lark,
    Gbnf,
    Regex,
    /// A grammar in Lark's syntax for a text between a JSON string's quotes.
    QuotedLark,
    /// A regular expression for such a text.
    QuotedRegex,
}

impl Syntax {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Lark, "lark"),
        (Self::Gbnf, "gbnf"),
        (Self::Regex, "regex"),
        (Self::QuotedLark, "quoted lark"),
        (Self::QuotedRegex, "quoted regex"),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(syntax, _)| *syntax == self).map_or("", |(_, name)| name)
    }

    fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(syntax, _)| *syntax)
    }

    /// Converts a text to Lark's syntax, with at most [`MAX_BYTES`].
    fn finished(self, text: &str) -> Result<String, String> {
        let of_regex = || format!("start: /{}/", llguidance::regex_to_lark(text, "d"));
        match self {
            Self::Lark => Ok(text.to_owned()),
            Self::Gbnf => gbnf::to_lark(text, MAX_BYTES),
            Self::Regex => Ok(of_regex()),
            Self::QuotedLark => quoted::lark(text, MAX_BYTES),
            Self::QuotedRegex => quoted::lark(&of_regex(), MAX_BYTES),
        }
    }
}

impl Source {
    /// A source with the main grammar, in Lark's syntax.
    pub fn new(lark: impl Into<String>) -> Self {
        let lark = lark.into();
        Self { bytes: lark.len(), lark, named: Vec::new() }
    }

    /// Adds a named grammar in Lark's syntax.
    ///
    /// # Errors
    /// The grammar has more than 1 MiB, or the source would have more than 4 MiB. The same holds for the methods that follow.
    pub fn with_lark(self, name: &str, lark: &str) -> Result<Self, GrammarError> {
        self.with_text(name, Syntax::Lark, lark)
    }

    /// Adds a named grammar in GBNF.
    pub fn with_gbnf(self, name: &str, gbnf: &str) -> Result<Self, GrammarError> {
        self.with_text(name, Syntax::Gbnf, gbnf)
    }

    /// Adds a named regular expression. `\d` matches the digits 0 to 9 only.
    pub fn with_regex(self, name: &str, regex: &str) -> Result<Self, GrammarError> {
        self.with_text(name, Syntax::Regex, regex)
    }

    /// Adds a named grammar of a text between a JSON string's quotes. The text follows a grammar in Lark's syntax.
    pub fn with_quoted_lark(self, name: &str, lark: &str) -> Result<Self, GrammarError> {
        self.with_text(name, Syntax::QuotedLark, lark)
    }

    /// The same for a text that matches a regular expression.
    pub fn with_quoted_regex(self, name: &str, regex: &str) -> Result<Self, GrammarError> {
        self.with_text(name, Syntax::QuotedRegex, regex)
    }

    /// Returns the source if a grammar of at least `bytes` bytes may be added.
    pub fn with_room_for(self, bytes: usize) -> Result<Self, GrammarError> {
        check_length(bytes)?;
        Ok(self)
    }

    fn with_text(self, name: &str, syntax: Syntax, text: &str) -> Result<Self, GrammarError> {
        check_length(text.len())?;
        if matches!(syntax, Syntax::Regex | Syntax::QuotedRegex) && ends_in_escape(text) {
            return Err(GrammarError::Invalid("the regex ends with a lone backslash".into()));
        }
        Ok(self.counted(name, text.len())?.with(name, Named::Text(syntax, text.to_owned())))
    }

    /// Adds a further grammar's bytes to the count.
    fn counted(mut self, name: &str, bytes: usize) -> Result<Self, GrammarError> {
        self.bytes += name.len() + bytes;
        self.check()?;
        Ok(self)
    }

    fn with(mut self, name: &str, grammar: Named) -> Self {
        self.named.push((name.to_owned(), grammar));
        self
    }

    /// Checks the size of the whole source.
    pub(super) fn check(&self) -> Result<(), GrammarError> {
        match self.bytes > MAX_ALL_BYTES {
            true => Err(GrammarError::Invalid(format!(
                "the grammars of the request have more than {MAX_ALL_BYTES} bytes together: make them smaller"
            ))),
            false => Ok(()),
        }
    }

    /// Adds a named JSON Schema.
    pub fn with_schema(self, name: &str, schema: &Value) -> Result<Self, GrammarError> {
        let source = self.counted(name, check_size(schema)?)?;
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
        Ok(source.with(name, Named::Schema(Value::Object(schema))))
    }

    /// Converts every text to Lark's syntax, which [`Source::parser`] requires, and checks that the schemas' numbers can be followed
    /// exactly. `begins` is called with the name of each text before it is rewritten, and with the name of a schema that is refused.
    ///
    /// # Errors
    /// A text is wrong. The error holds the reason and the text's name.
    pub(super) fn finished(self, begins: &mut dyn FnMut(&str)) -> Result<Self, GrammarError> {
        let empty = Self::new(self.lark);
        self.named.into_iter().try_fold(empty, |all, (name, grammar)| match grammar {
            Named::Text(Syntax::Lark, text) => all.with_lark(&name, &text),
            Named::Text(syntax, text) => {
                begins(&name);
                let error = |error| GrammarError::Invalid(error).of_part(&name);
                let lark = syntax.finished(&text).map_err(error)?;
                all.with_lark(&name, &lark).map_err(|error| error.of_part(&name))
            }
            Named::Schema(schema) => {
                if let Err(error) = rewrite(&schema, 0, &mut HashSet::new()) {
                    begins(&name);
                    return Err(GrammarError::Invalid(error).of_part(&name));
                }
                let all = all.counted(&name, measured(&schema))?;
                Ok(all.with(&name, Named::Schema(schema)))
            }
        })
    }

    /// Whether [`Source::finished`] changes nothing.
    pub(super) fn is_finished(&self) -> bool {
        !self.named.iter().any(|(_, grammar)| matches!(grammar, Named::Text(syntax, _) if *syntax != Syntax::Lark))
    }

    /// The whole source as JSON in one line. Two sources are the same grammar if their texts are equal.
    pub(super) fn text(&self) -> String {
        let mut text = format!("[{}", Value::from(self.lark.as_str()));
        for (name, grammar) in &self.named {
            let _ = match grammar {
                Named::Text(syntax, lark) => write!(text, ",{}", json!([name, syntax.name(), lark])),
                Named::Schema(schema) => write!(text, ",[{},\"schema\",{schema}]", Value::from(name.as_str())),
            };
        }
        text + "]"
    }

    /// The inverse of [`Source::text`]. `None` if the text is malformed.
    pub(super) fn of_text(text: &str) -> Option<Self> {
        Self::of_value(serde_json::from_str(text).ok()?)
    }

    /// The same for text that is already parsed.
    pub(super) fn of_value(value: Value) -> Option<Self> {
        let Value::Array(parts) = value else { return None };
        let mut parts = parts.into_iter();
        let Some(Value::String(lark)) = parts.next() else { return None };
        let mut source = Self::new(lark);
        for part in parts {
            let Value::Array(part) = part else { return None };
            let [Value::String(name), Value::String(kind), grammar] = <[Value; 3]>::try_from(part).ok()? else { return None };
            let grammar = match (kind.as_str(), grammar) {
                ("schema", schema) => Named::Schema(schema),
                (syntax, Value::String(text)) => Named::Text(Syntax::of_name(syntax)?, text),
                _ => return None,
            };
            let bytes = match &grammar {
                Named::Text(_, text) => text.len(),
                Named::Schema(schema) => measured(schema),
            };
            source = source.with(&name, grammar);
            source.bytes += name.len() + bytes;
        }
        Some(source)
    }

    /// The names of the named grammars, each with its schema if it is one.
    pub(super) fn names(&self) -> impl Iterator<Item = (&str, Option<&Value>)> {
        self.named.iter().map(|(name, grammar)| match grammar {
            Named::Schema(schema) => (name.as_str(), Some(schema)),
            Named::Text(..) => (name.as_str(), None),
        })
    }

    /// One named grammar as a source.
    pub(super) fn alone(&self, name: &str) -> Self {
        let named = self.named.iter().filter(|(known, _)| known == name).cloned().collect();
        Self { named, ..Self::new(format!("start: @{name}")) }
    }

    /// Compiles a finished source. Large numbers in schemas keep all their digits (`numbers/`).
    ///
    /// # Errors
    /// llguidance refuses the grammar, or cannot handle its large numbers.
    pub(super) fn parser(&self, factory: &ParserFactory) -> anyhow::Result<TokenParser> {
        let (grammar, placeholders) = self.grammar()?;
        if placeholders.is_empty() {
            return factory.create_parser(grammar);
        }
        let environment = Some(factory.tok_env().clone());
        let mut limits = factory.limits().clone();
        limits.step_lexer_fuel = MASK_FUEL_OF_LARGE_NUMBERS;
        let (grammar, mut lexer) = GrammarInit::Serialized(grammar).to_internal(environment, limits.clone())?;
        replace(&mut lexer, &placeholders)?;
        let (logger, features) = (Logger::new(0, 0), InferenceCapabilities::default());
        factory.create_parser_from_init_ext(GrammarInit::Internal(grammar, lexer), logger, features, limits)
    }

    /// The numbers that no placeholder may equal: those with as many digits in the source's texts and schemas.
    fn taken(&self) -> HashSet<u64> {
        if !self.names().any(|(_, schema)| schema.is_some_and(depends)) {
            return HashSet::new();
        }
        let text = self.text();
        let runs = text.as_bytes().windows(Placeholder::DIGITS).filter(|run| run.iter().all(u8::is_ascii_digit));
        runs.filter_map(|run| std::str::from_utf8(run).ok()?.parse().ok()).collect()
    }

    /// The grammar for llguidance, and the placeholders that are to be replaced in it.
    fn grammar(&self) -> anyhow::Result<(TopLevelGrammar, Vec<Placeholder>)> {
        let mut grammars = vec![GrammarWithLexer::from_lark(self.lark.clone())];
        let mut placeholders = Vec::new();
        let mut taken = self.taken();
        for (name, grammar) in &self.named {
            let grammar = match grammar {
                Named::Text(_, lark) => GrammarWithLexer::from_lark(lark.clone()),
                Named::Schema(schema) => {
                    let rewritten = rewrite(schema, placeholders.len(), &mut taken).map_err(anyhow::Error::msg)?;
                    GrammarWithLexer::from_json_schema(rewritten.map_or_else(
                        || schema.clone(),
                        |rewritten| {
                            placeholders.extend(rewritten.placeholders);
                            rewritten.schema
                        },
                    ))
                }
            };
            grammars.push(GrammarWithLexer { name: Some(name.clone()), ..grammar });
        }
        Ok((TopLevelGrammar { grammars, max_tokens: None }, placeholders))
    }
}

/// Checks the length of one grammar.
fn check_length(bytes: usize) -> Result<(), GrammarError> {
    match bytes > MAX_BYTES {
        true => Err(GrammarError::Invalid(format!("the grammar has {bytes} bytes, expected at most {MAX_BYTES}"))),
        false => Ok(()),
    }
}

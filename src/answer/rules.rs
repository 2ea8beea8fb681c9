//! What an answer must follow, from a request's tools and format and a model's style.

use std::fmt::Write;
use std::sync::Arc;

use super::format::Structure;
use super::stages::{Preface, Staged, Tail, Until};
use super::style::Style;
use super::syntax::Syntax;
use super::tools::{Choice, Tools};
use crate::grammar::{Compiler, GrammarError, Source, lark_string};
use crate::logits::Grammar;

/// Calls in one answer.
const MAX_CALLS: usize = 32;

/// What rules are made of.
pub struct Rules<'a> {
    pub style: &'a Style,
    pub grammars: &'a Compiler,
    pub tools: Option<&'a Tools>,
    pub structure: Option<&'a Structure>,
    /// The prompt ends within reasoning.
    pub opened: bool,
}

/// The field that cannot be honoured, and why.
pub type RuleError = (&'static str, GrammarError);

impl Rules<'_> {
    /// None: the model may write what it likes. It may take seconds: call it off the event loop.
    pub fn grammar(&self) -> Result<Option<Arc<dyn Grammar>>, RuleError> {
        match (self.tools, self.structure) {
            (None, None) => Ok(None),
            (Some(tools), None) if tools.choice == Choice::Auto => self.when_called(tools).map(Some),
            _ => self.at_once().map(Some),
        }
    }

    /// A text, and calls once it has come to their tag.
    fn when_called(&self, tools: &Tools) -> Result<Arc<dyn Grammar>, RuleError> {
        let syntax = self.style.syntax;
        let source = Source::new(self.call_rules(tools, false)).with_tools(tools)?;
        let grammar = self.compile(&source)?;
        let mut stages = Vec::new();
        let mut preface = None;
        if let Some(thinking) = self.style.thinking {
            let until = Until { tag: thinking.close.into(), tail: Tail::Any };
            match self.opened {
                true => stages.push(until),
                false => preface = Some(Preface { open: thinking.open.into(), until }),
            }
        }
        let functions = tools.callable().map(|tool| tool.name.clone()).collect();
        let staged = if syntax.follows_text {
            let bare = self.compile(&Source::new(bare_rules(tools)).with_tools(tools)?)?;
            stages.push(Until { tag: syntax.trigger.into(), tail: Tail::Text([syntax.open, syntax.before].concat()) });
            self.staged(preface, stages, Some(grammar)).with_bare_calls(self.grammars, functions, bare, Tail::Call)
        } else {
            // Its calls are JSON alone, and JSON of another kind is an answer: only a function's name tells.
            let behind_name = syntax.between.strip_prefix('"').unwrap_or(syntax.between);
            self.staged(preface, stages, None).with_bare_calls(self.grammars, functions, grammar, Tail::Text(behind_name.into()))
        };
        Ok(Arc::new(staged))
    }

    /// Calls or an answer of a certain form, behind reasoning where the model does that.
    fn at_once(&self) -> Result<Arc<dyn Grammar>, RuleError> {
        let head = self.style.thinking.map_or("", |thinking| thinking.head);
        let calls = self.tools.map(|tools| (tools, self.call_rules(tools, true)));
        let mut lark = match (&calls, self.structure) {
            (Some((_, calls)), None) => calls.clone(),
            (Some((_, calls)), Some(_)) => calls.replacen("start:", "calls:", 1),
            (None, _) => String::new(),
        };
        let answer = format!("{} @answer", self.literal(head));
        let _ = match (&calls, self.structure) {
            (Some((tools, _)), Some(_)) if tools.choice == Choice::Auto => write!(lark, "\nstart: calls | {answer}"),
            (Some(_), Some(_)) => write!(lark, "\nstart: calls"),
            (Some(_), None) => Ok(()),
            (None, _) => write!(lark, "start: {answer}"),
        };
        if self.style.thinking.is_some() {
            lark = lark.replacen("start:", "start: SPACE? main\nSPACE: /[ \\t\\r\\n]{1,4}/\nmain:", 1);
        }
        let mut source = Source::new(lark);
        if let Some(structure) = self.structure {
            source = structure.format.add_to(source).map_err(|error| (structure.field, error))?;
        }
        if let Some((tools, _)) = &calls {
            source = source.with_tools(tools)?;
        }
        let grammar = self.compile(&source)?;
        let Some(thinking) = self.style.thinking else { return Ok(grammar) };
        let until = Until { tag: thinking.close.into(), tail: Tail::Space };
        Ok(Arc::new(match self.opened {
            true => self.staged(None, vec![until], Some(grammar)),
            false => self.staged(Some(Preface { open: thinking.open.into(), until }), Vec::new(), Some(grammar)),
        }))
    }

    fn staged(&self, preface: Option<Preface>, stages: Vec<Until>, grammar: Option<Arc<dyn Grammar>>) -> Staged {
        Staged::new(self.grammars, preface, stages, grammar)
    }

    /// The rule `start` for calls, from their trigger on or from behind it.
    fn call_rules(&self, tools: &Tools, with_trigger: bool) -> String {
        let Syntax { trigger, open, before, between, after, separator, close, .. } = self.style.syntax;
        let lead = if with_trigger { [*trigger, open].concat() } else { (*open).to_owned() };
        // A function that is named is called once.
        let several = tools.parallel && !matches!(tools.choice, Choice::Named(_));
        let more = match several && self.style.syntax.repeats() {
            true => format!("({} call){{0,{}}}", self.literal(separator), MAX_CALLS - 1),
            false => String::new(),
        };
        let mut lark = format!("start: {} call {more} {}\n", self.literal(&lead), self.literal(close));
        let names: Vec<String> = (0..tools.callable().count()).map(|i| format!("call_{i}")).collect();
        let _ = writeln!(lark, "call: {}", names.join(" | "));
        for (i, tool) in tools.callable().enumerate() {
            let head = self.literal(&[*before, &tool.name, between].concat());
            let _ = writeln!(lark, "call_{i}: {head} @tool_{i} {}", self.literal(after));
        }
        lark
    }

    /// A text in Lark's syntax, its control tokens as such.
    fn literal(&self, text: &str) -> String {
        let mut parts = vec![String::from("\"\"")];
        let mut plain = Vec::new();
        let flush = |plain: &mut Vec<u8>, parts: &mut Vec<String>| {
            if !plain.is_empty() {
                parts.push(lark_string(&String::from_utf8_lossy(&std::mem::take(plain))));
            }
        };
        for id in self.grammars.tokenizer().control_pieces(text) {
            match id {
                Ok(id) => {
                    flush(&mut plain, &mut parts);
                    parts.push(format!("<[{id}]>"));
                }
                Err(piece) => plain.extend_from_slice(piece.as_bytes()),
            }
        }
        flush(&mut plain, &mut parts);
        parts.join(" ")
    }

    fn compile(&self, source: &Source) -> Result<Arc<dyn Grammar>, RuleError> {
        self.grammars.compile(source).map_err(|error| self.blame(error))
    }

    /// Finds out whose fault it is: that of a tool, which is named, or of the format.
    fn blame(&self, error: GrammarError) -> RuleError {
        let GrammarError::Invalid(text) = &error else { return (self.structure.map_or("tools", |structure| structure.field), error) };
        for tool in self.tools.into_iter().flat_map(|tools| &tools.tools) {
            let alone = Source::new("start: @tool").with_schema("tool", &tool.schema()).and_then(|source| self.grammars.compile(&source));
            if let Err(GrammarError::Invalid(error)) = alone {
                return ("tools", GrammarError::Invalid(format!("{}: {error}", tool.path)));
            }
        }
        let field = self.structure.map_or("tools", |structure| structure.field);
        (field, GrammarError::Invalid(text.clone()))
    }
}

/// The rule `start` for a call by JSON alone, from its function's name on, and the end of a fence around it.
fn bare_rules(tools: &Tools) -> String {
    let names: Vec<String> = (0..tools.callable().count()).map(|i| format!("call_{i}")).collect();
    let mut lark = format!("start: ({}) FENCE?\nFENCE: /[ \\t\\r\\n]{{0,4}}```/\nSPACE: /[ \\t\\r\\n]{{1,100}}/\n", names.join(" | "));
    for (i, tool) in tools.callable().enumerate() {
        let name = lark_string(&format!("{}\"", tool.name));
        let key = r#"("\"arguments\"" | "\"parameters\"")"#;
        let _ = writeln!(lark, "call_{i}: {name} SPACE? \",\" SPACE? {key} SPACE? \":\" SPACE? @tool_{i} SPACE? \"}}\"");
    }
    lark
}

impl Source {
    /// The arguments of each tool that may be called, as `tool_0` and so on.
    fn with_tools(self, tools: &Tools) -> Result<Self, RuleError> {
        let add = |source: Self, (i, schema): (usize, serde_json::Value)| source.with_schema(&format!("tool_{i}"), &schema);
        let schemas = tools.callable().map(|tool| match tool.schema() {
            // Calls have objects for arguments, whatever their schema leaves open.
            serde_json::Value::Object(mut map) => {
                map.entry("type").or_insert_with(|| "object".into());
                serde_json::Value::Object(map)
            }
            other => other,
        });
        schemas.enumerate().try_fold(self, add).map_err(|error| ("tools", error))
    }
}

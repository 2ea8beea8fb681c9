//! What an answer must follow: a grammar made of a conversation's tools, the requested format and the model's dialect.

mod python;
mod stages;
mod tagged;
#[cfg(test)]
mod tests;

use std::fmt::Write;
use std::sync::Arc;

use serde_json::Value;

use super::closing::closed;
use super::dialect::{Arguments, Dialect, Syntax};
use super::format::Format;
use super::parameters::Parameters;
use super::subject::Subject;
use super::tools::{Tool, ToolChoice, Tools};
use grammar::{Compiler, GrammarError, Source, lark_string};
use logits::Grammar;
use stages::{Preface, Staged, Tail, Until};
use tagged::Literals;

/// The most calls in one answer.
const MAX_CALLS: usize = 32;

/// What the rules of an answer are made of.
pub struct Rules<'a> {
    pub dialect: &'a Dialect,
    pub grammars: &'a Compiler,
    pub tools: Option<&'a Tools>,
    pub format: Option<&'a Format>,
    /// Whether the prompt ends inside reasoning.
    pub opened: bool,
}

/// A rule that cannot be followed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{error}")]
pub struct RuleError {
    pub subject: Subject,
    pub error: GrammarError,
}

impl RuleError {
    fn of(subject: Subject) -> impl FnOnce(GrammarError) -> Self {
        move |error| Self { subject, error }
    }
}

impl Rules<'_> {
    /// `None`: the model may write anything. This may take seconds: call it off the event loop.
    pub fn grammar(&self) -> Result<Option<Arc<dyn Grammar>>, RuleError> {
        match (self.tools, self.format) {
            (None, None) => Ok(None),
            (Some(tools), None) if !tools.must_call() => self.when_called(tools).map(Some),
            _ => self.calls_or_format().map(Some),
        }
    }

    /// Free text, and rules from the tag of a call on.
    fn when_called(&self, tools: &Tools) -> Result<Arc<dyn Grammar>, RuleError> {
        let syntax = self.dialect.syntax;
        let source = self.with_arguments(Source::new(self.call_rules(tools, false)?), tools)?;
        let grammar = self.compile(&source)?;
        let mut stages = Vec::new();
        let mut preface = None;
        if let Some(thinking) = self.dialect.thinking {
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
            // Calls are bare JSON here, and other JSON is an answer. Only the function's name tells them apart.
            let after_name = syntax.between.strip_prefix('"').unwrap_or(syntax.between);
            self.staged(preface, stages, None).with_bare_calls(self.grammars, functions, grammar, Tail::Text(after_name.into()))
        };
        Ok(Arc::new(staged))
    }

    /// Calls or an answer in a format, after reasoning if the model's family reasons.
    fn calls_or_format(&self) -> Result<Arc<dyn Grammar>, RuleError> {
        let head = self.dialect.thinking.map_or("", |thinking| thinking.head);
        let calls = self.tools.map(|tools| Ok((tools, self.call_rules(tools, true)?))).transpose()?;
        let mut lark = match (&calls, self.format) {
            (Some((_, calls)), None) => calls.clone(),
            (Some((_, calls)), Some(_)) => calls.replacen("start:", "calls:", 1),
            (None, _) => String::new(),
        };
        let answer = format!("{} @answer", self.literal(head));
        let _ = match (&calls, self.format) {
            (Some((tools, _)), Some(_)) if !tools.must_call() => write!(lark, "\nstart: calls | {answer}"),
            (Some(_), Some(_)) => write!(lark, "\nstart: calls"),
            (Some(_), None) => Ok(()),
            (None, _) => write!(lark, "start: {answer}"),
        };
        if self.dialect.thinking.is_some() {
            lark = lark.replacen("start:", "start: SPACE? main\nSPACE: /[ \\t\\r\\n]{1,4}/\nmain:", 1);
        }
        let mut source = Source::new(lark);
        if let Some(format) = self.format {
            source = format.add_to(source).map_err(RuleError::of(Subject::Format))?;
        }
        if let Some((tools, _)) = &calls {
            source = self.with_arguments(source, tools)?;
        }
        let grammar = self.compile(&source)?;
        let Some(thinking) = self.dialect.thinking else { return Ok(grammar) };
        let until = Until { tag: thinking.close.into(), tail: Tail::Space };
        let staged = match self.opened {
            true => self.staged(None, vec![until], Some(grammar)),
            false => self.staged(Some(Preface { open: thinking.open.into(), until }), Vec::new(), Some(grammar)),
        };
        Ok(Arc::new(staged.without_early_end()))
    }

    fn staged(&self, preface: Option<Preface>, stages: Vec<Until>, grammar: Option<Arc<dyn Grammar>>) -> Staged {
        Staged::new(self.grammars, preface, stages, grammar)
    }

    /// The rule `start` for calls. It begins with their trigger or after it.
    fn call_rules(&self, tools: &Tools, with_trigger: bool) -> Result<String, RuleError> {
        let Syntax { trigger, open, before, between, after, separator, close, .. } = self.dialect.syntax;
        let lead = if with_trigger { [*trigger, open].concat() } else { (*open).to_owned() };
        // A function that the request names is called once.
        let several = tools.parallel && !matches!(tools.choice, ToolChoice::Named(_));
        let more = match several && self.dialect.syntax.repeats() {
            true => format!("({} call){{0,{}}}", self.literal(separator), MAX_CALLS - 1),
            false => String::new(),
        };
        let mut lark = format!("start: {} call {more} {}\n", self.literal(&lead), self.literal(close));
        let names: Vec<String> = (0..tools.callable().count()).map(|i| format!("call_{i}")).collect();
        let _ = writeln!(lark, "call: {}", names.join(" | "));
        for (i, tool) in tools.callable().enumerate() {
            let head = self.literal(&[*before, &tool.name, between].concat());
            let arguments = if matches!(self.dialect.syntax.arguments, Arguments::Json) { "@tool" } else { "arguments" };
            let _ = writeln!(lark, "call_{i}: {head} {arguments}_{i} {}", self.literal(after));
        }
        if self.dialect.syntax.arguments == Arguments::Python {
            lark += &python::rules(&|text| self.literal(text), &parameters(tools)?);
        }
        if let Some(tags) = self.dialect.syntax.tagged() {
            let closes_by_token = self.grammars.tokenizer().control_pieces(tags.close()).iter().any(Result::is_ok);
            let writer = Literals { literal: &|text| self.literal(text), closes_by_token };
            lark += &tagged::rules(&writer, tags, &parameters(tools)?).map_err(RuleError::of(Subject::Tools))?;
        }
        Ok(lark)
    }

    /// Adds the grammars that the rules of calls refer to.
    fn with_arguments(&self, source: Source, tools: &Tools) -> Result<Source, RuleError> {
        let source = match self.dialect.syntax.arguments {
            Arguments::Json => return source.with_tools(tools),
            Arguments::Tagged(_) => tagged::with_values(&parameters(tools)?, source),
            Arguments::Python => python::with_values(&parameters(tools)?, source),
        };
        source.map_err(RuleError::of(Subject::Tools))
    }

    /// A text in Lark's syntax, with its control tokens as tokens.
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

    /// Finds out which tool the error is about, or that it is about the format.
    fn blame(&self, error: GrammarError) -> RuleError {
        let subject = if self.format.is_some() { Subject::Format } else { Subject::Tools };
        // To compile the tools of an expensive grammar one by one would cost a multiple of the budget.
        if !matches!(error, GrammarError::Invalid(_)) {
            return RuleError { subject, error };
        }
        for (i, tool) in self.tools.into_iter().flat_map(|tools| &tools.tools).enumerate() {
            let alone = Source::new("start: @tool").with_schema("tool", &tool.schema()).and_then(|source| self.grammars.compile(&source));
            if let Err(error @ GrammarError::Invalid(_)) = alone {
                return RuleError { subject: Subject::ToolParameters(i), error };
            }
        }
        RuleError { subject, error }
    }
}

/// The parameters of each tool that may be called.
fn parameters(tools: &Tools) -> Result<Vec<Parameters>, RuleError> {
    let of = |tool: &Tool| {
        Parameters::of(&tool.schema()).map_err(|text| {
            let at = tools.tools.iter().position(|other| other.name == tool.name).unwrap_or(0);
            RuleError { subject: Subject::ToolParameters(at), error: GrammarError::Invalid(text) }
        })
    };
    tools.callable().map(of).collect()
}

/// The rule `start` for a bare call from its function's name on, with the end of a code fence around it.
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

/// Grammars whose leaves are the tools' arguments.
trait WithTools: Sized {
    /// Adds the arguments of each tool that may be called as `tool_0` and so on.
    fn with_tools(self, tools: &Tools) -> Result<Self, RuleError>;
}

impl WithTools for Source {
    fn with_tools(self, tools: &Tools) -> Result<Self, RuleError> {
        let add = |source: Self, (i, schema): (usize, Value)| source.with_schema(&format!("tool_{i}"), &schema);
        let schemas = tools.callable().map(|tool| match tool.schema() {
            // Arguments are objects, even if the schema leaves that open.
            Value::Object(mut map) => {
                map.entry("type").or_insert_with(|| "object".into());
                closed(Value::Object(map))
            }
            other => other,
        });
        schemas.enumerate().try_fold(self, add).map_err(RuleError::of(Subject::Tools))
    }
}

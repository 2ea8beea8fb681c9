//! [`Rules`] builds the grammar that an answer must follow, from a conversation's tools, the requested format and the model's dialect.

mod answer_rules;
mod input;
mod notated;
mod python;
mod stages;
mod tagged;
#[cfg(test)]
mod tests;

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::answer_start::AnswerStart;
use super::closed_schemas::closed;
use super::dialect::{Arguments, Dialect, MAX_SEPARATOR, Notation, Syntax, SyntaxPart, parts, split};
use super::format::Format;
use super::parameters::Parameters;
use super::schema_budget::SchemaBudget;
use super::subject::Subject;
use super::tools::{Tool, ToolChoice, Tools};
pub use answer_rules::AnswerRules;
use grammar::{Compiler, GrammarError, Source, check_schema_size, lark_string};
use logits::Grammar;
use stages::{Preface, Staged, Tail, Until};
use tagged::Literals;

/// The most calls in one answer.
const MAX_CALLS: usize = 32;
/// The time limit of the search for the tool that an error is about. Each candidate is compiled.
const SEARCH: Duration = Duration::from_secs(2);

/// The inputs of an answer's rules.
pub struct Rules<'a> {
    pub dialect: &'a Dialect,
    pub grammars: &'a Compiler,
    pub tools: Option<&'a Tools>,
    pub format: Option<&'a Format>,
    /// Where the answer begins.
    pub entry: AnswerStart,
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
    /// Compiles the grammar. `None`: the model may write anything. May take seconds: call this off the event loop.
    pub fn grammar(&self) -> Result<Option<Arc<dyn Grammar>>, RuleError> {
        match (self.tools, self.format) {
            (None, None) => Ok(None),
            (Some(tools), None) if !tools.must_call() => self.when_called(tools).map(Some),
            _ => self.calls_or_format().map(Some),
        }
    }

    /// Free text, in which the tag of a call begins the rules.
    fn when_called(&self, tools: &Tools) -> Result<Arc<dyn Grammar>, RuleError> {
        let syntax = self.dialect.syntax;
        let source = self.with_arguments(Source::new(self.call_rules(tools, false)?), tools)?;
        let grammar = self.compile(&source)?;
        let (preface, mut stages) = self.reasoning(Tail::Any);
        let functions = tools.callable().map(|tool| tool.name.clone()).collect();
        let staged = if syntax.follows_text {
            let bare = self.compile(&Source::new(bare_rules(tools)).with_tools(tools)?)?;
            stages.push(Until { tag: syntax.trigger.into(), tail: Tail::Text([syntax.open, split(syntax.before).0].concat()) });
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
        let thinking = self.dialect.thinking.filter(|_| self.entry != AnswerStart::Text);
        let (head, tail) = thinking.map_or(("", ""), |thinking| (thinking.head, thinking.tail));
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
        // A family that closes its texts may write an empty text before its calls.
        if calls.is_some() && !head.is_empty() && !tail.is_empty() {
            let empty = [head, tail].map(|tag| self.literal(tag)).concat();
            lark = lark.replacen("start:", &format!("start: ({empty})? body\nbody:"), 1);
        }
        let mut source = Source::new(lark);
        if let Some(format) = self.format {
            source = format.add_to(source).map_err(RuleError::of(Subject::Format))?;
        }
        if let Some((tools, _)) = &calls {
            source = self.with_arguments(source, tools)?;
        }
        let grammar = self.compile(&source)?;
        // If the tag begins with a space, the tag is the separator.
        let separator = if head.starts_with(' ') { 0 } else { MAX_SEPARATOR };
        let (preface, stages) = self.reasoning(Tail::Lines(separator));
        if preface.is_none() && stages.is_empty() {
            return Ok(grammar);
        }
        Ok(Arc::new(self.staged(preface, stages, Some(grammar)).with_separator(self.grammars, separator).without_early_end()))
    }

    /// The reasoning that may begin an answer, or the rest of the reasoning in which the answer begins.
    fn reasoning(&self, tail: Tail) -> (Option<Preface>, Vec<Until>) {
        let Some(thinking) = self.dialect.reasons() else { return (None, Vec::new()) };
        let until = Until { tag: thinking.close.into(), tail };
        match self.entry {
            AnswerStart::Turn => (Some(Preface { open: thinking.open.into(), until }), Vec::new()),
            AnswerStart::Reasoning { .. } => (None, vec![until]),
            AnswerStart::Text => (None, Vec::new()),
        }
    }

    fn staged(&self, preface: Option<Preface>, stages: Vec<Until>, grammar: Option<Arc<dyn Grammar>>) -> Staged {
        Staged::new(self.grammars, preface, stages, grammar)
    }

    /// The rule `start` for calls, which begins with or after their trigger.
    fn call_rules(&self, tools: &Tools, with_trigger: bool) -> Result<String, RuleError> {
        if let Some((subject, error)) = input::refused(self.dialect.syntax, tools) {
            return Err(RuleError { subject, error });
        }
        let Syntax { header, trigger, open, before, between, extra, after, close, .. } = *self.dialect.syntax;
        let lead = if with_trigger { [trigger, open].concat() } else { open.to_owned() };
        // A function that the request names is called once.
        let several = tools.parallel && !matches!(tools.choice, ToolChoice::Named(_));
        let more = match several && self.dialect.syntax.repeats() {
            true => format!("({}){{0,{}}}", self.further_calls(tools), MAX_CALLS - 1),
            false => String::new(),
        };
        let names: Vec<String> = (0..tools.callable().count()).map(|i| format!("call_{i}")).collect();
        let first: Vec<String> = match with_trigger && !header.is_empty() {
            true => tools
                .callable()
                .enumerate()
                .map(|(i, tool)| format!("({})? {} call_{i}", self.pattern(header, &tool.name), self.literal(&lead)))
                .collect(),
            false => vec![format!("{} call", self.literal(&lead))],
        };
        let mut lark = format!("start: ({}) {more} {}\n", first.join(" | "), self.literal(close));
        let _ = writeln!(lark, "call: {}", names.join(" | "));
        for (i, tool) in tools.callable().enumerate() {
            let head = [self.pattern(before, &tool.name), self.literal(&tool.name), self.pattern(between, &tool.name)].join(" ");
            let arguments = if self.dialect.syntax.arguments == Arguments::Json { "@tool" } else { "arguments" };
            let end = match extra.is_empty() {
                true => self.literal(after),
                false => format!("({})? {}", self.pattern(extra, &tool.name), self.literal(after)),
            };
            let _ = writeln!(lark, "call_{i}: {head} {arguments}_{i} {end}");
        }
        if let Arguments::Notated(notation) = self.dialect.syntax.arguments {
            lark += &self.notated(notation, tools)?.lark;
        }
        if self.dialect.syntax.arguments == Arguments::Python {
            lark += &python::rules(&|text| self.literal(text), &parameters(tools)?);
        }
        if let Some(tags) = self.dialect.syntax.tagged() {
            let writer = Literals { literal: &|text| self.literal(text), closes_by_token: self.has_control(tags.close()) };
            lark += &tagged::rules(&writer, tags, &parameters(tools)?).map_err(RuleError::of(Subject::Tools))?;
        }
        Ok(lark)
    }

    /// Adds the grammars to which the rules of calls refer.
    fn with_arguments(&self, source: Source, tools: &Tools) -> Result<Source, RuleError> {
        let source = match self.dialect.syntax.arguments {
            Arguments::Json => return source.with_tools(tools),
            Arguments::Tagged(_) => tagged::with_values(&parameters(tools)?, source),
            Arguments::Python => python::with_values(&parameters(tools)?, source),
            Arguments::Notated(notation) => self.notated(notation, tools)?.with_values(source),
        };
        source.map_err(RuleError::of(Subject::Tools))
    }

    /// A further call with its separator. The model may choose the white space between the tags of two calls.
    fn further_calls(&self, tools: &Tools) -> String {
        let separator = self.dialect.syntax.separator;
        if !split(separator).1.is_empty() {
            let of = |(i, tool): (usize, &Tool)| format!("{} call_{i}", self.pattern(separator, &tool.name));
            return tools.callable().enumerate().map(of).collect::<Vec<_>>().join(" | ");
        }
        let (space, next) = separator.split_at(separator.len() - separator.trim_start().len());
        match space.is_empty() || next.is_empty() {
            true => format!("{} call", self.literal(separator)),
            false => format!("({})? {} call", self.literal(space), self.literal(next)),
        }
    }

    /// The rules of arguments in the family's own notation.
    fn notated(&self, notation: &'static Notation, tools: &Tools) -> Result<notated::NotatedRules, RuleError> {
        let writer = Literals { literal: &|text| self.literal(text), closes_by_token: self.has_control(notation.mark) };
        let mut rules = notated::NotatedRules::default();
        for (i, tool) in tools.callable().enumerate() {
            let error = |text| RuleError { subject: tools.parameters_of(tool), error: GrammarError::Invalid(text) };
            let schema = tool.schema();
            check_schema_size(&schema).map_err(RuleError::of(tools.parameters_of(tool)))?;
            rules.add(&writer, notation, i, &schema).map_err(error)?;
        }
        Ok(rules)
    }

    fn has_control(&self, text: &str) -> bool {
        self.grammars.tokenizer().control_pieces(text).iter().any(Result::is_ok)
    }

    /// Converts a syntax's text, with its placeholders, to Lark's syntax.
    fn pattern(&self, text: &str, name: &str) -> String {
        let part = |part| match part {
            SyntaxPart::Text(text) => self.literal(text),
            SyntaxPart::Name => self.literal(name),
            SyntaxPart::Index | SyntaxPart::Number => "/[0-9]{1,4}/".to_owned(),
            SyntaxPart::Id => "/[A-Za-z0-9_-]{1,40}/".to_owned(),
            SyntaxPart::Type => "/[a-z]{4,7}/".to_owned(),
        };
        parts(text).into_iter().map(part).collect::<Vec<_>>().join(" ")
    }

    /// Converts a text to Lark's syntax, with its control tokens as tokens.
    fn literal(&self, text: &str) -> String {
        // A mark with which many tags begin is its own part, because the longest matching part is taken.
        if let Arguments::Notated(Notation { mark, .. }) = self.dialect.syntax.arguments
            && let Some((before, after)) = text.split_once(mark)
            && !(before.is_empty() && after.is_empty())
        {
            return [before, mark, after].map(|part| if part.is_empty() { "\"\"".to_owned() } else { self.literal(part) }).join(" ");
        }
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

    /// Finds the tool that an error is about. Without such a tool, the error is about the format or all tools.
    fn blame(&self, error: GrammarError) -> RuleError {
        let subject = if self.format.is_some() { Subject::Format } else { Subject::Tools };
        let (part, error) = error.split();
        if let Some(part) = part {
            return RuleError { subject: self.tools.and_then(|tools| of_named(tools, &part)).unwrap_or(subject), error };
        }
        // Compiling the tools of an expensive grammar one by one would cost a multiple of the budget.
        if !matches!(error, GrammarError::Invalid(_)) {
            return RuleError { subject, error };
        }
        let start = Instant::now();
        let tools = self.tools.into_iter().flat_map(|tools| &tools.tools);
        for (i, tool) in tools.enumerate().take_while(|_| start.elapsed() < SEARCH) {
            let alone = Source::new("start: @tool_0");
            let (subject, alone) = match &tool.input {
                Some(grammar) => (Subject::ToolInput(i), input::with_arguments(alone, 0, grammar)),
                None => (Subject::ToolParameters(i), alone.with_schema("tool_0", &tool.schema())),
            };
            let refused = alone.and_then(|source| self.grammars.compile(&source)).err().map(|error| error.split().1);
            if let Some(error @ GrammarError::Invalid(_)) = refused {
                return RuleError { subject, error };
            }
        }
        RuleError { subject, error }
    }
}

/// The subject of an error in a named grammar, if the grammar belongs to a tool. The grammar's name holds the tool's index among those
/// that may be called.
fn of_named(tools: &Tools, name: &str) -> Option<Subject> {
    let (kind, rest) = name.split_once('_')?;
    let index = rest.split('_').next()?.parse().ok()?;
    let tool = ["tool", "input", "value", "json", "leaf"].contains(&kind).then(|| tools.callable().nth(index))??;
    Some(if tool.input.is_some() { input::subject(tools, tool) } else { tools.parameters_of(tool) })
}

/// The parameters of each tool that may be called.
fn parameters(tools: &Tools) -> Result<Vec<Parameters>, RuleError> {
    let mut budget = SchemaBudget::default();
    let of = |tool: &Tool| {
        let error = |text| RuleError { subject: tools.parameters_of(tool), error: GrammarError::Invalid(text) };
        let schema = tool.schema();
        check_schema_size(&schema).map_err(RuleError::of(tools.parameters_of(tool)))?;
        Parameters::of(&schema, &mut budget).map_err(error)
    };
    tools.callable().map(of).collect()
}

/// The rule `start` for a bare call, which begins at the function's name and allows the end of a code fence.
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

/// Sources that can hold the tools' arguments as named grammars.
trait WithTools: Sized {
    /// Adds the arguments of each tool that may be called, as `tool_0`, `tool_1` and so on.
    fn with_tools(self, tools: &Tools) -> Result<Self, RuleError>;
}

impl WithTools for Source {
    fn with_tools(self, tools: &Tools) -> Result<Self, RuleError> {
        let schema = |tool: &Tool| match tool.schema() {
            // Arguments are objects, even if the schema leaves that open.
            Value::Object(mut map) => {
                map.entry("type").or_insert_with(|| "object".into());
                closed(Value::Object(map))
            }
            other => other,
        };
        let add = |source: Self, (i, tool): (usize, &Tool)| match &tool.input {
            Some(grammar) => input::with_arguments(source, i, grammar).map_err(RuleError::of(input::subject(tools, tool))),
            None => source.with_schema(&format!("tool_{i}"), &schema(tool)).map_err(RuleError::of(tools.parameters_of(tool))),
        };
        tools.callable().enumerate().try_fold(self, add)
    }
}

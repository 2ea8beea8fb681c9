//! Reads a dialect from a chat template: from the texts in its source, and from its rendering of a conversation with a call.

use serde_json::Value;

use super::conversation::{Call, Conversation, Message, Role};
use super::dialect::{Arguments, CallForm, Dialect, GENERIC, ResultForm, SYNTAXES, Syntax, THINKING, Thinking, ToolPlacement, filled};
use super::probe_levels::levels;
use super::probe_pictures::pictures;
use super::probe_turns::turns;
use super::tools::Tools;
use super::trial::{NAME, Trials, arguments, tools};
use template::ChatTemplate;
use tokenizer::Tokenizer;

/// An id that every template takes.
const CALL_ID: &str = "000000000";
/// The reasoning of the probe's assistant, and the result of its function.
const THOUGHT: &str = "penstock_thought";
const RESULT: &str = "penstock_result";
/// An id like those that clients and this server make.
const LONG_ID: &str = "call_0000000000000000";

impl Dialect {
    /// The dialect of a template.
    pub fn of(template: &ChatTemplate, tokenizer: &Tokenizer) -> Self {
        let mut dialect = without_tags(template);
        let has_control = |text: &str| tokenizer.control_pieces(text).iter().any(Result::is_ok);
        dialect.pictures = pictures(&Trials::new(template), &dialect, &has_control);
        dialect.tags = dialect.control_tokens(tokenizer);
        dialect
    }
}

/// The part of the dialect that does not depend on the vocabulary.
fn without_tags(template: &ChatTemplate) -> Dialect {
    let probe = Probe { template, trials: Trials::new(template) };
    let holds = |text: &str| template.source().contains(text);
    let family = |syntax: &&Syntax| syntax.marks.iter().all(|mark| holds(mark));
    let ways = [CallForm::Objects, CallForm::Strings].into_iter().flat_map(|form| [false, true].map(|null| (form, null)));
    let ways: Vec<(CallForm, bool)> = ways.collect();
    let shown = ways.iter().find_map(|(form, null)| {
        let text = probe.with_call(*form, *null)?;
        let find = |loosely| SYNTAXES.iter().filter(family).find(|syntax| shows(&text, syntax, loosely));
        Some((find(false).or_else(|| find(true))?, *form, *null))
    });
    let (syntax, calls, null_content) = match shown {
        Some(shown) => shown,
        // If a template shows calls in its own way, it would also teach the model to write them that way.
        None if ways.iter().any(|(form, null)| probe.mentions_call(*form, *null)) => (GENERIC, CallForm::Text, false),
        None => (SYNTAXES.iter().find(family).unwrap_or(GENERIC), CallForm::Text, false),
    };
    let placement = probe.placement(*syntax == *GENERIC);
    let plain = Dialect { null_content, ..Dialect::plain(syntax, placement, calls) };
    let reasoning_key = probe.reasoning_key(&plain);
    let plain = Dialect { reasoning_key, results: probe.results(&plain), ..plain };
    let short_ids = calls != CallForm::Text && probe.conversation(&plain, LONG_ID).is_none();
    let plain = Dialect { thinking: probe.thinking(&plain), short_ids, ..plain };
    let lists = Dialect { needs_lists: true, ..plain.clone() };
    let needs_lists = !probe.trials.shows("u", None, &plain) && probe.trials.shows("u", None, &lists);
    let plain = Dialect { needs_lists, ..plain };
    let plain = Dialect { turns: turns(&probe.trials, &plain), ..plain };
    Dialect { levels: levels(&probe.trials, &plain), ..plain }
}

/// Whether a rendering holds the probe's call in this family's form. `loosely`: ignore white space and the kind of quotation marks.
fn shows(text: &str, syntax: &Syntax, loosely: bool) -> bool {
    let squeezed = |text: &str| match loosely {
        true => text.split_whitespace().collect::<String>().replace('\'', "\""),
        false => text.to_owned(),
    };
    let text = squeezed(text);
    if syntax.arguments != Arguments::Json {
        return text.contains(&squeezed(&syntax.call(0, NAME, &arguments().to_string())));
    }
    let holds_arguments = |rest: &str| {
        let first = serde_json::Deserializer::from_str(rest).into_iter::<Value>().next();
        matches!(first, Some(Ok(value)) if value == arguments())
    };
    // Two forms may differ only in the texts around all calls. Then only an exact match counts.
    let around = if loosely { ["", ""] } else { [syntax.trigger, syntax.open] };
    let head = [around[0], around[1], &filled(syntax.before, 0, NAME), NAME, &filled(syntax.between, 0, NAME)].concat();
    let head = squeezed(&head);
    // gpt-oss's template names a call's function in the head of the message, while the model names it after the channel.
    let in_head = syntax.name == "gpt-oss" && text.contains(&format!("to=functions.{NAME}"));
    in_head || text.match_indices(&head).any(|(at, _)| holds_arguments(&text[at + head.len()..]))
}

struct Probe<'a> {
    template: &'a ChatTemplate,
    trials: Trials<'a>,
}

impl Probe<'_> {
    fn render(&self, messages: Vec<Message>, tools: Option<Tools>, dialect: &Dialect) -> Option<String> {
        self.trials.render(&Conversation { messages, tools, ..Conversation::default() }, dialect)
    }

    /// The rendering of a call with reasoning and of its result.
    fn conversation(&self, dialect: &Dialect, id: &str) -> Option<String> {
        let call = Call { id: id.into(), name: NAME.into(), arguments: arguments().to_string() };
        let messages = vec![
            Message::of_text(Role::User, "a"),
            Message { calls: vec![call], reasoning: Some(THOUGHT.into()), ..Message::new(Role::Assistant) },
            Message { call_id: Some(id.into()), name: Some(NAME.into()), ..Message::of_text(Role::Tool, RESULT) },
        ];
        self.render(messages, None, dialect)
    }

    fn with_call(&self, form: CallForm, null_content: bool) -> Option<String> {
        self.conversation(&Dialect { null_content, ..Dialect::plain(GENERIC, ToolPlacement::Variable, form) }, CALL_ID)
    }

    fn mentions_call(&self, form: CallForm, null_content: bool) -> bool {
        self.with_call(form, null_content).is_some_and(|text| text.contains("probe") && text.contains("value"))
    }

    /// Finds the place where the template shows tools. `is_generic`: the model is to write calls in the generic syntax, not as the template
    /// says.
    fn placement(&self, is_generic: bool) -> ToolPlacement {
        let shows_tool = |placement: &ToolPlacement| {
            let messages = vec![Message::of_text(Role::User, "a")];
            let dialect = Dialect::plain(GENERIC, *placement, CallForm::Objects);
            self.render(messages, Some(tools()), &dialect).is_some_and(|text| text.contains(NAME))
        };
        let places = [ToolPlacement::Variable, ToolPlacement::Named("xml_tools"), ToolPlacement::SystemKey];
        places.into_iter().filter(|_| !is_generic).find(shows_tool).unwrap_or(ToolPlacement::Words)
    }

    /// The key under which the template shows the reasoning of an answer with a call.
    fn reasoning_key(&self, dialect: &Dialect) -> &'static str {
        let keys = ["reasoning_content", "reasoning", "thinking", "thought"];
        let shows = |key: &&'static str| {
            let text = self.conversation(&Dialect { reasoning_key: key, ..dialect.clone() }, CALL_ID);
            text.is_some_and(|text| text.contains(THOUGHT))
        };
        keys.into_iter().find(shows).unwrap_or(dialect.reasoning_key)
    }

    fn results(&self, dialect: &Dialect) -> ResultForm {
        let forms = match dialect.calls {
            CallForm::Text if *dialect.syntax == *GENERIC => return ResultForm::Text,
            CallForm::Text => vec![ResultForm::Messages],
            // If a template supports both forms, it names a result's function only in the form that the model was trained with.
            _ => vec![ResultForm::Messages, ResultForm::OfCalls],
        };
        let shown = |form: &ResultForm| self.conversation(&Dialect { results: *form, ..dialect.clone() }, CALL_ID).unwrap_or_default();
        let of_calls = self.template.source().contains("tool_responses") && dialect.calls != CallForm::Text;
        let named = |form: &ResultForm| shown(form).contains(&format!("response:{NAME}"));
        let shows = |form: &ResultForm| shown(form).contains(RESULT);
        let found = forms.iter().find(|form| of_calls && named(form)).or_else(|| forms.iter().find(|form| shows(form)));
        match (found, dialect.calls) {
            (Some(form), _) => *form,
            (None, CallForm::Text) => ResultForm::Text,
            (None, _) => ResultForm::Messages,
        }
    }

    /// Finds the form of the family's reasoning. Searches the template's source and its rendering, because some templates build their tags
    /// from parts.
    fn thinking(&self, dialect: &Dialect) -> Option<&'static Thinking> {
        let shown = self.conversation(dialect, CALL_ID).unwrap_or_default();
        let holds = |text: &str| self.template.source().contains(text) || shown.contains(text);
        let of_family = |thinking: &&Thinking| {
            thinking.marks.iter().all(|mark| holds(mark)) && (holds(thinking.close) || holds(thinking.open.trim_end()))
        };
        THINKING.iter().find(of_family)
    }
}

#[cfg(test)]
#[path = "probe_tests.rs"]
mod tests;

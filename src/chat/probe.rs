//! Reads a dialect from a chat template, by what its source holds and by how it renders a conversation with a call.

use serde_json::{Value, json};

use super::conversation::{Call, Conversation, Message, Role};
use super::dialect::{Arguments, CallForm, Dialect, GENERIC, SYNTAXES, Syntax, THINKING, ToolPlacement};
use super::render::input;
use super::tools::{Declaration, Tool, ToolChoice, Tools};
use template::ChatTemplate;
use tokenizer::Tokenizer;

/// The name of the probe's function.
const NAME: &str = "penstock_probe";
/// An id that every template takes.
const CALL_ID: &str = "000000000";
/// An id such as clients and this server make.
const LONG_ID: &str = "call_0000000000000000";

impl Dialect {
    /// The dialect of a template.
    pub fn of(template: &ChatTemplate, tokenizer: &Tokenizer) -> Self {
        let mut dialect = without_tags(template);
        dialect.tags = dialect.control_tokens(tokenizer);
        dialect
    }
}

/// The part of the dialect that does not depend on the vocabulary.
fn without_tags(template: &ChatTemplate) -> Dialect {
    let probe = Probe { template };
    let holds = |text: &str| template.source().contains(text);
    let thinking = THINKING.iter().find(|thinking| holds(thinking.close) || holds(thinking.open));
    let family = |syntax: &&Syntax| syntax.marks.iter().all(|mark| holds(mark));
    let forms = [CallForm::Objects, CallForm::Strings];
    let shown = forms.into_iter().find_map(|form| {
        let text = probe.with_call(form)?;
        let find = |loosely| SYNTAXES.iter().filter(family).find(|syntax| shows(&text, syntax, loosely));
        Some((find(false).or_else(|| find(true))?, form))
    });
    let (syntax, calls) = match shown {
        Some(shown) => shown,
        // A template that shows calls in a way of its own would also teach the model that way.
        None if forms.into_iter().any(|form| probe.mentions_call(form)) => (GENERIC, CallForm::Text),
        None => (SYNTAXES.iter().find(family).unwrap_or(GENERIC), CallForm::Text),
    };
    let placement = if *syntax == *GENERIC { ToolPlacement::Words } else { probe.placement() };
    let short_ids = calls != CallForm::Text && probe.with_call_of(LONG_ID, calls).is_none();
    Dialect { syntax, thinking, placement, calls, takes_system: probe.takes_system(), short_ids, tags: Vec::new() }
}

fn arguments() -> Value {
    json!({"probe": "value", "number": 7})
}

/// Whether a rendering holds the probe's call in this family's form. `loosely`: white space and the kind of quotation marks do not count.
fn shows(text: &str, syntax: &Syntax, loosely: bool) -> bool {
    let head = [syntax.before, NAME, syntax.between].concat();
    if syntax.arguments != Arguments::Json {
        let whole = [&head, &syntax.written(&arguments().to_string()), syntax.after].concat();
        let squeezed = |text: &str| text.split_whitespace().collect::<String>().replace('\'', "\"");
        return text.contains(&whole) || (loosely && squeezed(text).contains(&squeezed(&whole)));
    }
    let holds_arguments = |rest: &str| {
        let first = serde_json::Deserializer::from_str(rest).into_iter::<Value>().next();
        matches!(first, Some(Ok(value)) if value == arguments())
    };
    // gpt-oss's template names a call's function in the head of the message, the model itself behind the channel.
    let in_head = syntax.name == "gpt-oss" && text.contains(&format!("to=functions.{NAME}"));
    in_head || text.match_indices(&head).any(|(at, _)| holds_arguments(&text[at + head.len()..]))
}

struct Probe<'a> {
    template: &'a ChatTemplate,
}

impl Probe<'_> {
    /// How the template renders a conversation for a dialect. `None`: it refuses the conversation.
    fn render(&self, messages: Vec<Message>, tools: Option<Tools>, placement: ToolPlacement, calls: CallForm) -> Option<String> {
        let dialect = Dialect { syntax: GENERIC, thinking: None, placement, calls, takes_system: true, short_ids: false, tags: Vec::new() };
        let conversation = Conversation { messages, tools, ..Conversation::default() };
        self.template.render(&input(&dialect, &str::to_owned, &conversation)).ok()
    }

    fn with_call(&self, form: CallForm) -> Option<String> {
        self.with_call_of(CALL_ID, form)
    }

    fn with_call_of(&self, id: &str, form: CallForm) -> Option<String> {
        let call = Call { id: id.into(), name: NAME.into(), arguments: arguments().to_string() };
        let messages = vec![
            Message::of_text(Role::User, "a"),
            Message { calls: vec![call], ..Message::new(Role::Assistant) },
            Message { call_id: Some(id.into()), name: Some(NAME.into()), ..Message::of_text(Role::Tool, "b") },
        ];
        self.render(messages, None, ToolPlacement::Variable, form)
    }

    fn mentions_call(&self, form: CallForm) -> bool {
        self.with_call(form).is_some_and(|text| text.contains("probe") && text.contains("value"))
    }

    fn takes_system(&self) -> bool {
        let messages = vec![Message::of_text(Role::System, NAME), Message::of_text(Role::User, "a")];
        self.render(messages, None, ToolPlacement::Variable, CallForm::Objects).is_some_and(|text| text.contains(NAME))
    }

    fn placement(&self) -> ToolPlacement {
        let parameters = json!({"type": "object", "properties": {}});
        let function = json!({"name": NAME, "description": "d", "parameters": parameters});
        let declaration = Declaration::Function(function.as_object().cloned().unwrap_or_default());
        let tool = Tool { name: NAME.into(), parameters: Some(parameters), declaration };
        let tools = Tools { tools: vec![tool], choice: ToolChoice::Auto, parallel: true };
        let shows_tool = |placement: &ToolPlacement| {
            let messages = vec![Message::of_text(Role::User, "a")];
            let text = self.render(messages, Some(tools.clone()), *placement, CallForm::Objects);
            text.is_some_and(|text| text.contains(NAME))
        };
        [ToolPlacement::Variable, ToolPlacement::SystemKey].into_iter().find(shows_tool).unwrap_or(ToolPlacement::Words)
    }
}

#[cfg(test)]
#[path = "probe_tests.rs"]
mod tests;

//! How a model is told of tools and how it writes calls and reasoning: read from its chat template, by what the template says and by
//! what it makes of a conversation with a call in it.

use serde_json::{Map, Value, json};

use super::syntax::{GENERIC, SYNTAXES, Syntax, THINKING, Thinking};
use crate::template::{ChatTemplate, RenderInput};
use crate::tokenizer::Tokenizer;

/// How a template is told of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Telling {
    /// By its variable `tools`.
    Variable,
    /// By a key `tools` of the system message, as Phi's does.
    SystemMessage,
    /// In words, within the system message, since it knows no tools.
    Words,
}

/// How a template takes the calls of earlier answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// `tool_calls` with an object for arguments.
    Objects,
    /// `tool_calls` with JSON in a string.
    Texts,
    /// As text of the answer: it knows no calls.
    Written,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Style {
    pub syntax: &'static Syntax,
    pub thinking: Option<&'static Thinking>,
    pub telling: Telling,
    pub history: History,
    /// Does it take a system message?
    pub system: bool,
    /// Control tokens that calls and reasoning are written with.
    pub tags: Vec<u32>,
}

const NAME: &str = "penstock_probe";
const CALL_ID: &str = "000000000";

fn arguments() -> Value {
    json!({"probe": "value", "number": 7})
}

impl Style {
    pub fn of(template: &ChatTemplate, tokenizer: &Tokenizer) -> Self {
        let probe = Probe { template };
        let holds = |text: &str| template.source().contains(text);
        let thinking = THINKING.iter().find(|thinking| holds(thinking.close) || holds(thinking.open));
        let family = |syntax: &&Syntax| syntax.marks.iter().all(|mark| holds(mark));
        let shown = [History::Objects, History::Texts].into_iter().find_map(|history| {
            let text = probe.conversation(history)?;
            let syntax = SYNTAXES.iter().filter(family).find(|syntax| shows(&text, syntax))?;
            Some((syntax, history))
        });
        let (syntax, history) = match shown {
            Some(shown) => shown,
            // A template that shows calls in a way of its own would tell the model of that way, too.
            None if [History::Objects, History::Texts].into_iter().any(|history| probe.mentions_call(history)) => {
                (GENERIC, History::Written)
            }
            None => (SYNTAXES.iter().find(family).unwrap_or(GENERIC), History::Written),
        };
        let telling = match syntax {
            syntax if *syntax == *GENERIC => Telling::Words,
            _ => probe.telling(),
        };
        let system = probe.render(json!([{"role": "system", "content": NAME}, {"role": "user", "content": "a"}]), None);
        let mut style =
            Self { syntax, thinking, telling, history, system: system.is_some_and(|text| text.contains(NAME)), tags: Vec::new() };
        style.tags = style.control_tags(tokenizer);
        style
    }

    /// Text that a model writes between the rest, which is shown to the parser alone.
    fn control_tags(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let Syntax { trigger, open, before, between, after, separator, close, .. } = *self.syntax;
        let thinking = self.thinking.map_or(["", "", ""], |thinking| [thinking.open, thinking.close, thinking.head]);
        let texts = [trigger, open, before, between, after, separator, close].into_iter().chain(thinking);
        let mut tags: Vec<u32> = texts.flat_map(|text| tokenizer.control_pieces(text)).filter_map(Result::ok).collect();
        tags.sort_unstable();
        tags.dedup();
        tags
    }
}

/// Does a rendering hold the probe's call as this family writes it?
fn shows(text: &str, syntax: &Syntax) -> bool {
    let written = [syntax.before, NAME, syntax.between].concat();
    let holds_arguments = |rest: &str| {
        let first = serde_json::Deserializer::from_str(rest).into_iter::<Value>().next();
        matches!(first, Some(Ok(value)) if value == arguments())
    };
    // gpt-oss names a call's function in the message's head, where the model itself names it behind the channel.
    let in_head = syntax.name == "gpt-oss" && text.contains(&format!("to=functions.{NAME}"));
    in_head || text.match_indices(&written).any(|(at, _)| holds_arguments(&text[at + written.len()..]))
}

struct Probe<'a> {
    template: &'a ChatTemplate,
}

impl Probe<'_> {
    fn render(&self, messages: Value, tools: Option<Value>) -> Option<String> {
        self.template.render(&RenderInput { messages, tools, add_generation_prompt: true, kwargs: Map::new() }).ok()
    }

    fn conversation(&self, history: History) -> Option<String> {
        let arguments = match history {
            History::Objects => arguments(),
            _ => arguments().to_string().into(),
        };
        let call = json!({"id": CALL_ID, "type": "function", "function": {"name": NAME, "arguments": arguments}});
        let messages = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": CALL_ID, "name": NAME, "content": "b"}]);
        self.render(messages, None)
    }

    fn mentions_call(&self, history: History) -> bool {
        self.conversation(history).is_some_and(|text| text.contains("probe") && text.contains("value"))
    }

    fn telling(&self) -> Telling {
        let tool =
            json!({"type": "function", "function": {"name": NAME, "description": "d", "parameters": {"type": "object", "properties": {}}}});
        let user = json!({"role": "user", "content": "a"});
        let told = |messages, tools| self.render(messages, tools).is_some_and(|text| text.contains(NAME));
        if told(json!([user]), Some(json!([tool]))) {
            Telling::Variable
        } else if told(json!([{"role": "system", "content": "", "tools": json!([tool]).to_string()}, user]), None) {
            Telling::SystemMessage
        } else {
            Telling::Words
        }
    }
}

//! The second try. A small model that was given a call's result may write nothing but that call again, and an agent would make the call
//! forever. So the model is asked once more with the results alone, without the calls and without tools.

use std::sync::Arc;

use serde_json::Value;

use super::options::{Budget, Options};
use chat::{Call, Conversation, Message, Role};

/// What the second try asks.
pub struct Again {
    pub(super) conversation: Conversation,
    options: Options,
    /// The calls whose results the conversation holds: functions and arguments.
    pub(super) answered: Vec<(String, Value)>,
}

impl Again {
    /// `None` unless the last message is a call's result and the model may answer it as it likes.
    pub(super) fn of(conversation: &Conversation, options: &Options) -> Option<Arc<Self>> {
        let messages = &conversation.messages;
        conversation.tools.as_ref().filter(|tools| !tools.must_call())?;
        messages.last().filter(|last| last.role == Role::Tool)?;
        let turn = messages.iter().rposition(|message| message.role == Role::User).map_or(0, |at| at + 1);
        let (before, turn) = messages.split_at(turn);
        let answered = turn.iter().flat_map(|message| &message.calls).map(answered).collect();
        let said = turn.iter().filter(|message| message.calls.is_empty() || !message.text().is_empty());
        let without_calls = said.map(|message| Message { calls: Vec::new(), ..message.clone() });
        let messages = before.iter().cloned().chain(without_calls).collect();
        let conversation = Conversation { messages, tools: None, ..conversation.clone() };
        Some(Arc::new(Self { conversation, options: options.clone(), answered }))
    }

    /// The options of the second try, after `spent` tokens. `None` if nothing is left to generate.
    pub(super) fn options(&self, spent: u32, seed: u64) -> Option<Options> {
        let mut options = self.options.clone();
        options.sampling.seed = seed;
        // The client has the first prompt's tokens.
        options.prompt_logprobs = None;
        if let Budget::Explicit(count) | Budget::Strict(count) = &mut options.budget {
            *count = count.checked_sub(spent).filter(|left| *left > 0)?;
        }
        Some(options)
    }
}

fn answered(call: &Call) -> (String, Value) {
    (call.name.clone(), serde_json::from_str(&call.arguments).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use chat::{Declaration, Tool, ToolChoice, Tools};
    use logits::SamplingParams;

    fn calling(text: &str, arguments: &str) -> Message {
        let call = Call { id: "x".into(), name: "f".into(), arguments: arguments.into() };
        Message { calls: vec![call], ..Message::of_text(Role::Assistant, text) }
    }

    fn again(messages: &[Message], choice: ToolChoice) -> Option<Arc<Again>> {
        let tool =
            Tool { name: "f".into(), parameters: None, strict: false, declaration: Declaration::Function(Default::default()), input: None };
        let tools = Some(Tools { tools: vec![tool], choice, parallel: true });
        let conversation = Conversation { messages: messages.to_vec(), tools, ..Conversation::default() };
        Again::of(&conversation, &Options::new(SamplingParams::greedy(), Budget::Rest))
    }

    #[test]
    fn both_tries_share_the_budget() {
        let again = |budget| {
            let options = Options::new(SamplingParams::greedy(), budget);
            let again = Again { conversation: Conversation::default(), options, answered: Vec::new() };
            again.options(10, 7).map(|options| (options.budget, options.sampling.seed))
        };
        assert_eq!(again(Budget::Rest), Some((Budget::Rest, 7)));
        assert_eq!(again(Budget::Explicit(12)), Some((Budget::Explicit(2), 7)));
        assert_eq!(again(Budget::Explicit(10)), None);
        assert_eq!(again(Budget::Explicit(9)), None);
    }

    #[test]
    fn the_results_stay_and_the_calls_go() {
        let result = Message { call_id: Some("x".into()), ..Message::of_text(Role::Tool, "r") };
        let user = Message::of_text(Role::User, "q");
        let earlier = [user.clone(), calling("", "{\"a\": 0}"), result.clone()];
        let turn = [user.clone(), calling("", "{\"a\": 1}"), result.clone(), calling("Now b.", "{\"b\":2}"), result.clone()];
        let messages = [&earlier[..], &turn].concat();
        let found = again(&messages, ToolChoice::Auto).unwrap();
        assert_eq!(found.answered, [("f".to_owned(), json!({"a": 1})), ("f".to_owned(), json!({"b": 2}))]);
        let said = Message::of_text(Role::Assistant, "Now b.");
        assert_eq!(found.conversation.messages, [&earlier[..], &[user.clone(), result.clone(), said, result]].concat());
        assert_eq!(found.conversation.tools, None);
        assert!(again(&messages, ToolChoice::Required).is_none());
        assert!(again(&[user], ToolChoice::Auto).is_none());
    }
}

//! The second try after a repeated call. A small model that was given a call's result may write nothing but that call again, and an agent
//! would make the call forever. So the model is asked once more with the results alone, without the calls and without tools.

use std::sync::Arc;

use serde_json::Value;

use super::options::{Budget, Options};
use super::output::Counts;
use chat::{Call, Conversation, Message, Role};

/// The request of the second try.
pub struct ToolRetry {
    pub(super) conversation: Conversation,
    options: Options,
    /// The most tokens of both tries together: the request's number, a default, or the rest of the context.
    max_tokens: u32,
    /// The calls whose results the conversation holds, as (function, arguments).
    pub(super) answered: Vec<(String, Value)>,
}

impl ToolRetry {
    /// Prepares a second try. `None` unless the last message is a call's result and the model is not forced to call.
    pub(super) fn of(conversation: &Conversation, options: &Options, max_tokens: u32) -> Option<Arc<Self>> {
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
        Some(Arc::new(Self { conversation, options: options.clone(), max_tokens, answered }))
    }

    /// The options of the second try, given the counts of the first. `None` if nothing is left to generate.
    pub(super) fn options(&self, spent: Counts, seed: u64) -> Option<Options> {
        let left = self.max_tokens.checked_sub(spent.generated).filter(|left| *left > 0)?;
        let mut options = self.options.clone();
        options.budget = Budget::Explicit(left);
        options.thinking_budget = options.thinking_budget.map(|most| most.saturating_sub(spent.reasoning));
        options.sampling.min_tokens = options.sampling.min_tokens.saturating_sub(spent.generated);
        options.sampling.seed = seed;
        // The client already has the log-probabilities of the first prompt.
        options.prompt_logprobs = None;
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

    fn retry(messages: &[Message], choice: ToolChoice) -> Option<Arc<ToolRetry>> {
        let tool =
            Tool { name: "f".into(), parameters: None, strict: false, declaration: Declaration::Function(Default::default()), input: None };
        let tools = Some(Tools { tools: vec![tool], choice, parallel: true });
        let conversation = Conversation { messages: messages.to_vec(), tools, ..Conversation::default() };
        ToolRetry::of(&conversation, &Options::new(SamplingParams::greedy(), Budget::Rest), 100)
    }

    #[test]
    fn both_tries_share_the_budget() {
        let spent = Counts { generated: 10, reasoning: 4, ..Counts::default() };
        let retry = |budget, max_tokens| {
            let sampling = SamplingParams { min_tokens: 11, ..SamplingParams::greedy() };
            let options = Options { thinking_budget: Some(6), ..Options::new(sampling, budget) };
            let retry = ToolRetry { conversation: Conversation::default(), options, max_tokens, answered: Vec::new() };
            retry.options(spent, 7)
        };
        for budget in [Budget::Rest, Budget::Default(12), Budget::Explicit(12), Budget::Strict(12)] {
            let options = retry(budget, 12).unwrap();
            assert_eq!((options.budget, options.thinking_budget), (Budget::Explicit(2), Some(2)), "{budget:?}");
            assert_eq!((options.sampling.min_tokens, options.sampling.seed), (1, 7));
            assert!(retry(budget, 10).is_none() && retry(budget, 9).is_none(), "{budget:?}");
        }
    }

    #[test]
    fn the_results_stay_and_the_calls_go() {
        let result = Message { call_id: Some("x".into()), ..Message::of_text(Role::Tool, "r") };
        let user = Message::of_text(Role::User, "q");
        let earlier = [user.clone(), calling("", "{\"a\": 0}"), result.clone()];
        let turn = [user.clone(), calling("", "{\"a\": 1}"), result.clone(), calling("Now b.", "{\"b\":2}"), result.clone()];
        let messages = [&earlier[..], &turn].concat();
        let found = retry(&messages, ToolChoice::Auto).unwrap();
        assert_eq!(found.answered, [("f".to_owned(), json!({"a": 1})), ("f".to_owned(), json!({"b": 2}))]);
        let said = Message::of_text(Role::Assistant, "Now b.");
        assert_eq!(found.conversation.messages, [&earlier[..], &[user.clone(), result.clone(), said, result]].concat());
        assert_eq!(found.conversation.tools, None);
        assert!(retry(&messages, ToolChoice::Required).is_none());
        assert!(retry(&[user], ToolChoice::Auto).is_none());
    }
}

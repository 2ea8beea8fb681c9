//! A second try where a model does not see what it was given: asked with a call's result, a small model may write nothing but that call
//! again, and an agent would make it for ever. So it is asked again by the results alone, without the calls and without tools.

use std::sync::Arc;

use serde_json::Value;

use super::request::{Budget, Options, Prompt, ValidRequest};
use super::{FinishReason, Generation, Output, submit};
use crate::answer::Choice;
use crate::registry::LoadedModel;
use crate::template::RenderInput;

/// What is asked then.
pub struct Again {
    input: RenderInput,
    options: Options,
    /// The calls whose results are there: functions and arguments.
    pub answered: Vec<(String, Value)>,
}

impl Again {
    /// Of a conversation whose last message is a call's result.
    pub fn of(input: &RenderInput, options: &Options) -> Option<Arc<Self>> {
        let messages = input.messages.as_array()?;
        options.tools.as_ref().filter(|tools| tools.choice == Choice::Auto)?;
        messages.last().filter(|last| last["role"] == "tool")?;
        let turn = messages.iter().rposition(|message| message["role"] == "user").map_or(0, |at| at + 1);
        let calls = messages[turn..].iter().filter_map(|message| message["tool_calls"].as_array()).flatten();
        let answered = calls.map(|call| function_of(&call["function"])).collect();
        let mut kept = messages[..turn].to_vec();
        for message in &messages[turn..] {
            let mut message = message.clone();
            let called = message.as_object_mut().and_then(|message| message.remove("tool_calls")).is_some();
            if !called || message["content"] != "" {
                kept.push(message);
            }
        }
        let input = RenderInput { messages: kept.into(), ..input.clone() };
        Some(Arc::new(Self { input, options: Options { tools: None, ..options.clone() }, answered }))
    }
}

fn function_of(function: &Value) -> (String, Value) {
    let arguments = function["arguments"].as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    (function["name"].as_str().unwrap_or_default().to_owned(), arguments)
}

impl Generation {
    /// In place of this one, which has repeated a call. Off the event loop: it encodes the prompt. Where that cannot be, the call stands.
    pub fn ask_again(mut self, name: String, arguments: String) -> Self {
        let counts = self.text.counts;
        let next = self.again.take().and_then(|(again, seed)| submit(again.request(self.model.clone(), counts.generated, seed)?).ok());
        match next {
            Some(mut next) => {
                // What was spent counts, and the prompt that the client knows of.
                next.text.counts = counts;
                next
            }
            None => {
                let finished = Output::Finished(FinishReason::Stop, counts);
                self.queued = [Output::Call(0, name), Output::Arguments(0, arguments), finished].into();
                self.done = true;
                self
            }
        }
    }
}

impl Again {
    fn request(&self, model: Arc<LoadedModel>, spent: u32, seed: u64) -> Option<ValidRequest> {
        let mut options = self.options.clone();
        options.sampling.seed = seed;
        if let Budget::Explicit(count) = &mut options.budget {
            *count = count.checked_sub(spent).filter(|left| *left > 0)?;
        }
        ValidRequest::new(model, Prompt::Chat(self.input.clone()), &options).ok()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::request::SamplingParams;
    use super::*;
    use crate::answer::{Tool, Tools};

    fn options(choice: Choice) -> Options {
        let tool = Tool { name: "f".into(), parameters: None, definition: json!({}), path: String::new() };
        Options {
            sampling: SamplingParams::greedy(),
            budget: Budget::Rest,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            structure: None,
            tools: Some(Tools { tools: vec![tool], choice, parallel: true }),
            effort: None,
            continue_final: false,
            logprobs: None,
            echo: false,
            tenant: 0,
        }
    }

    #[test]
    fn the_results_stay_and_the_calls_go() {
        let call = |arguments: &str| json!({"id": "x", "type": "function", "function": {"name": "f", "arguments": arguments}});
        let result = json!({"role": "tool", "tool_call_id": "x", "content": "r"});
        let user = json!({"role": "user", "content": "q"});
        let earlier = [user.clone(), json!({"role": "assistant", "content": "", "tool_calls": [call("{\"a\": 0}")]}), result.clone()];
        let turn = [
            user.clone(),
            json!({"role": "assistant", "content": "", "tool_calls": [call("{\"a\": 1}")]}),
            result.clone(),
            json!({"role": "assistant", "content": "Now b.", "tool_calls": [call("{\"b\":2}")]}),
            result.clone(),
        ];
        let messages = [&earlier[..], &turn].concat();
        let input = |messages: &[Value]| RenderInput { messages: json!(messages), ..RenderInput::default() };
        let again = Again::of(&input(&messages), &options(Choice::Auto)).unwrap();
        assert_eq!(again.answered, [("f".to_owned(), json!({"a": 1})), ("f".to_owned(), json!({"b": 2}))]);
        let kept = [&earlier[..], &[user.clone(), result.clone(), json!({"role": "assistant", "content": "Now b."}), result]].concat();
        assert_eq!((&again.input.messages, &again.options.tools), (&json!(kept), &None));
        assert!(Again::of(&input(&messages), &options(Choice::Required)).is_none());
        assert!(Again::of(&input(&[user]), &options(Choice::Auto)).is_none());
    }
}

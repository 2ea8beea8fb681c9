//! Pieces of an answer, in Ollama's types.

use super::types::chat::{CalledFunction, ToolCall};
use super::types::common::{Logprob, TokenProbability};
use chat::TokenLogprob;
use http::integers::arguments as arguments_of;
use serving::{Answer, FunctionCall};

/// The log-probability that stands for minus infinity, which JSON does not have.
const IMPOSSIBLE: f32 = -9999.0;

/// An answer or a piece of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnswerPart {
    pub text: String,
    pub thinking: String,
    pub calls: Vec<ToolCall>,
    /// The log-probabilities of the tokens of `text`. Empty unless requested.
    pub logprobs: Vec<Logprob>,
}

impl AnswerPart {
    pub fn of(mut answer: Answer) -> Self {
        let (shown, thinking, calls) = answer.take_by_kind();
        let calls = calls.into_iter().enumerate().filter_map(|(index, call)| whole_call(index, call)).collect();
        Self { text: shown.text, thinking, calls, logprobs: shown.tokens.into_iter().map(logprob).collect() }
    }
}

/// Converts a call, with its arguments as an object. `None` if the answer was cut within the arguments.
pub fn whole_call(index: usize, call: FunctionCall) -> Option<ToolCall> {
    let arguments = if call.arguments.trim().is_empty() { "{}" } else { &call.arguments };
    let arguments = arguments_of(arguments)?;
    let id = format!("call_{}", uuid::Uuid::new_v4().simple());
    Some(ToolCall { id, function: CalledFunction { index, name: call.name, arguments } })
}

pub fn logprob(token: TokenLogprob) -> Logprob {
    let of = |bytes: Vec<u8>, logprob: f32| {
        let logprob = logprob.max(IMPOSSIBLE);
        // Takes the shortest decimal number that reads back as the same float32.
        let logprob = logprob.to_string().parse().unwrap_or(f64::from(logprob));
        TokenProbability { token: String::from_utf8_lossy(&bytes).into_owned(), logprob, bytes }
    };
    Logprob {
        top_logprobs: token.top.into_iter().map(|top| of(top.bytes, top.logprob)).collect(),
        token: of(token.bytes, token.logprob.unwrap_or(IMPOSSIBLE)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_are_objects_and_a_cut_call_is_none() {
        let call = |arguments: &str| whole_call(1, FunctionCall { name: "f".into(), arguments: arguments.into() });
        assert_eq!(
            serde_json::to_value(call("{\"a\":1}").unwrap().function).unwrap(),
            json!({"index": 1, "name": "f", "arguments": {"a": 1}})
        );
        assert!(call("").is_some() && call("{\"a\":").is_none() && call("[1]").is_none());
    }

    #[test]
    fn a_token_has_its_bytes_and_a_finite_number() {
        let top = vec![chat::TopToken { id: 7, bytes: vec![0xff], logprob: f32::NEG_INFINITY }];
        let token = TokenLogprob { bytes: b"a".to_vec(), offset: 0, logprob: Some(-0.1), top, id: 5 };
        let expected = json!({"token": "a", "logprob": -0.1, "bytes": [97],
            "top_logprobs": [{"token": "\u{fffd}", "logprob": -9999.0, "bytes": [255]}]});
        assert_eq!(serde_json::to_value(logprob(token)).unwrap(), expected);
    }
}

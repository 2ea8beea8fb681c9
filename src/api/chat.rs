//! `POST /v1/chat/completions`

use actix_web::{HttpMessage, HttpRequest, HttpResponse, web};

use super::choices::{self, Answer, Ask};
use super::convert;
use super::error::ApiError;
use super::head::Head;
use super::json::JsonBody;
use super::middleware::ModelLabel;
use super::sse::{self, Dialect};
use super::state::AppState;
use super::types::chat::{
    AssistantMessage, ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatRequest, Delta, FunctionCall, FunctionDelta, ToolCall,
    ToolCallDelta,
};
use super::types::error::ErrorBody;
use super::types::logprobs::ChatLogprobs;
use super::types::usage::Usage;
use crate::serving::Text;

/// Answer a conversation
///
/// With `stream` the answer is a stream of `ChatChunk` events that ends with `data: [DONE]`.
#[utoipa::path(post, path = "/v1/chat/completions", operation_id = "createChatCompletion", tag = "generation", request_body = ChatRequest, responses(
    (status = 200, description = "the answer", content((ChatCompletion = "application/json"), (ChatChunk = "text/event-stream"))),
    (status = 400, description = "a field is wrong, or the context is too short", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody),
    (status = 429, description = "the queue is full", body = ErrorBody),
    (status = 503, description = "the model is loading, or the server is shutting down", body = ErrorBody)))]
pub async fn create(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let request = convert::chat::parse(&body.0, &state.limits)?;
    let model = state.model(&request.model).await?;
    http.extensions_mut().insert(ModelLabel(model.id.clone()));
    let head = Head::new("chatcmpl", &model);
    let (prompts, num_choices, has_logprobs) = (vec![request.prompt], request.num_choices, request.options.logprobs.is_some());
    let ask = Ask { model, prompts, options: request.options, num_choices, best_of: num_choices, source: "messages" };
    let choices = choices::start(state, ask).await?;
    if let Some(options) = request.stream {
        let chunks = Chunks { head, include_usage: options.include_usage, has_logprobs };
        return Ok(sse::respond(choices, chunks, options.include_usage));
    }
    let (answers, usage) = choices.collect().await?;
    let choice = |(index, answer): (usize, Answer)| ChatChoice {
        index,
        logprobs: has_logprobs.then(|| ChatLogprobs::new(answer.shown.tokens)),
        finish_reason: answer.finish_reason.into(),
        message: message(answer.shown.text, answer.reasoning, answer.calls),
    };
    let choices = answers.into_iter().enumerate().map(choice).collect();
    let Head { id, created, model, fingerprint } = head;
    let object = "chat.completion".into();
    Ok(HttpResponse::Ok().json(ChatCompletion { id, object, created, model, choices, system_fingerprint: fingerprint, usage }))
}

fn message(text: String, reasoning: String, calls: Vec<(String, String)>) -> AssistantMessage {
    let call = |(name, arguments)| ToolCall { id: call_id(), kind: "function".into(), function: FunctionCall { name, arguments } };
    let calls: Vec<ToolCall> = calls.into_iter().map(call).collect();
    AssistantMessage {
        role: "assistant".into(),
        content: Some(text).filter(|text| calls.is_empty() || !text.is_empty()),
        reasoning_content: Some(reasoning).filter(|text| !text.is_empty()),
        tool_calls: Some(calls).filter(|calls| !calls.is_empty()),
        refusal: None,
    }
}

fn call_id() -> String {
    format!("call_{}", uuid::Uuid::new_v4().simple())
}

struct Chunks {
    head: Head,
    include_usage: bool,
    has_logprobs: bool,
}

impl Chunks {
    fn chunk(&self, choices: Vec<ChatChunkChoice>, usage: Option<Usage>) -> ChatChunk {
        let Head { id, created, model, fingerprint } = self.head.clone();
        let (object, usage) = ("chat.completion.chunk".into(), self.include_usage.then_some(usage));
        ChatChunk { id, object, created, model, choices, system_fingerprint: fingerprint, usage }
    }

    fn choice(&self, index: usize, delta: Delta, finish_reason: Option<String>) -> ChatChunk {
        self.chunk(vec![ChatChunkChoice { index, delta, logprobs: None, finish_reason }], None)
    }
}

impl Dialect for Chunks {
    type Chunk = ChatChunk;

    fn first(&self, index: usize) -> Option<ChatChunk> {
        let delta = Delta { role: Some("assistant".into()), content: Some(String::new()), ..Delta::default() };
        Some(self.choice(index, delta, None))
    }

    fn text(&self, index: usize, Text { text, tokens }: Text) -> ChatChunk {
        let logprobs = self.has_logprobs.then(|| ChatLogprobs::new(tokens));
        self.chunk(
            vec![ChatChunkChoice { index, delta: Delta { content: Some(text), ..Delta::default() }, logprobs, finish_reason: None }],
            None,
        )
    }

    fn reasoning(&self, index: usize, text: String) -> Option<ChatChunk> {
        Some(self.choice(index, Delta { reasoning_content: Some(text), ..Delta::default() }, None))
    }

    fn call(&self, index: usize, number: usize, name: String) -> Option<ChatChunk> {
        let function = FunctionDelta { name: Some(name), arguments: String::new() };
        let call = ToolCallDelta { index: number, id: Some(call_id()), kind: Some("function".into()), function };
        Some(self.choice(index, Delta { tool_calls: Some(vec![call]), ..Delta::default() }, None))
    }

    fn arguments(&self, index: usize, number: usize, text: String) -> Option<ChatChunk> {
        let function = FunctionDelta { name: None, arguments: text };
        let call = ToolCallDelta { index: number, function, ..ToolCallDelta::default() };
        Some(self.choice(index, Delta { tool_calls: Some(vec![call]), ..Delta::default() }, None))
    }

    fn finish(&self, index: usize, reason: &'static str) -> ChatChunk {
        self.choice(index, Delta::default(), Some(reason.into()))
    }

    fn usage(&self, usage: Usage) -> ChatChunk {
        self.chunk(Vec::new(), Some(usage))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn json_of(chunk: &ChatChunk) -> Value {
        let mut value = serde_json::to_value(chunk).unwrap();
        for key in ["id", "created", "model", "object", "system_fingerprint"] {
            assert!(!value.as_object_mut().unwrap().remove(key).unwrap().is_null());
        }
        value
    }

    fn chunks(include_usage: bool) -> Chunks {
        let head = Head { id: "chatcmpl-1".into(), created: 1, model: "m".into(), fingerprint: "fp".into() };
        Chunks { head, include_usage, has_logprobs: false }
    }

    fn hi() -> Text {
        Text { text: "hi".into(), tokens: Vec::new() }
    }

    #[test]
    fn chunks_are_worded_as_clients_expect() {
        let chunks = chunks(false);
        let choice = |delta, reason: Value| json!({"choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": reason}]});
        assert_eq!(json_of(&chunks.first(0).unwrap()), choice(json!({"role": "assistant", "content": ""}), Value::Null));
        assert_eq!(json_of(&chunks.text(0, hi())), choice(json!({"content": "hi"}), Value::Null));
        assert_eq!(json_of(&chunks.finish(0, "stop")), choice(json!({}), json!("stop")));
    }

    #[test]
    fn usage_is_null_until_the_last_chunk() {
        let chunks = chunks(true);
        assert_eq!(json_of(&chunks.text(0, hi()))["usage"], Value::Null);
        assert!(json_of(&chunks.text(0, hi())).as_object().unwrap().contains_key("usage"));
        let last = json_of(&chunks.usage(Usage::new(3, 2, 4)));
        assert_eq!(
            last,
            json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 0}}})
        );
    }
}

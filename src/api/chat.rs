//! `POST /v1/chat/completions`

use actix_web::{HttpMessage, HttpRequest, HttpResponse, web};

use super::choices;
use super::convert;
use super::error::ApiError;
use super::head::Head;
use super::json::JsonBody;
use super::middleware::ModelLabel;
use super::sse::{self, Dialect};
use super::state::AppState;
use super::types::chat::{AssistantMessage, ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatRequest, Delta};
use super::types::error::ErrorBody;
use super::types::usage::Usage;

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
    let head = Head::new("chatcmpl", &model.id);
    let (choices, _) = choices::start(state, model, vec![request.prompt], request.options, "messages").await?;
    if let Some(options) = request.stream {
        return Ok(sse::respond(choices, Chunks { head, include_usage: options.include_usage }, options.include_usage));
    }
    let (answers, usage) = choices.collect().await?;
    let choice = |(index, (text, reason)): (usize, (String, &str))| ChatChoice {
        index,
        message: AssistantMessage { role: "assistant".into(), content: Some(text), refusal: None },
        logprobs: None,
        finish_reason: reason.into(),
    };
    let choices = answers.into_iter().enumerate().map(choice).collect();
    let Head { id, created, model } = head;
    Ok(HttpResponse::Ok().json(ChatCompletion { id, object: "chat.completion".into(), created, model, choices, usage }))
}

struct Chunks {
    head: Head,
    include_usage: bool,
}

impl Chunks {
    fn chunk(&self, choices: Vec<ChatChunkChoice>, usage: Option<Usage>) -> ChatChunk {
        let Head { id, created, model } = self.head.clone();
        let usage = self.include_usage.then_some(usage);
        ChatChunk { id, object: "chat.completion.chunk".into(), created, model, choices, usage }
    }

    fn choice(&self, index: usize, delta: Delta, finish_reason: Option<String>) -> ChatChunk {
        self.chunk(vec![ChatChunkChoice { index, delta, logprobs: None, finish_reason }], None)
    }
}

impl Dialect for Chunks {
    type Chunk = ChatChunk;

    fn first(&self, index: usize) -> Option<ChatChunk> {
        let delta = Delta { role: Some("assistant".into()), content: Some(String::new()) };
        Some(self.choice(index, delta, None))
    }

    fn text(&self, index: usize, text: String) -> ChatChunk {
        self.choice(index, Delta { role: None, content: Some(text) }, None)
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
        for key in ["id", "created", "model", "object"] {
            assert!(!value.as_object_mut().unwrap().remove(key).unwrap().is_null());
        }
        value
    }

    #[test]
    fn chunks_are_worded_as_clients_expect() {
        let chunks = Chunks { head: Head::new("chatcmpl", "m"), include_usage: false };
        let choice = |delta, reason: Value| json!({"choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": reason}]});
        assert_eq!(json_of(&chunks.first(0).unwrap()), choice(json!({"role": "assistant", "content": ""}), Value::Null));
        assert_eq!(json_of(&chunks.text(0, "hi".into())), choice(json!({"content": "hi"}), Value::Null));
        assert_eq!(json_of(&chunks.finish(0, "stop")), choice(json!({}), json!("stop")));
    }

    #[test]
    fn usage_is_null_until_the_last_chunk() {
        let chunks = Chunks { head: Head::new("chatcmpl", "m"), include_usage: true };
        assert_eq!(json_of(&chunks.text(0, "hi".into()))["usage"], Value::Null);
        assert!(json_of(&chunks.text(0, "hi".into())).as_object().unwrap().contains_key("usage"));
        let last = json_of(&chunks.usage(Usage::new(3, 2, 4)));
        assert_eq!(
            last,
            json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 0}}})
        );
    }
}

//! `POST /v1/chat/completions`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use actix_web::{HttpRequest, HttpResponse, web};

use super::chat_store::StoredChat;
use super::convert;
use super::convert::chat::{Chat, StoredRequest};
use super::input_text::{InputText, text_of};
use super::response_options::ResponseOptions;
use super::stores::Stores;
use super::stream::{self, EventFormat};
use super::types;
use super::types::chat::{AssistantMessage, ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatRequest, Delta};
use super::types::error::ErrorBody;
use super::types::logprobs::{ChatLogprobs, TokenNames, prompt_logprobs};
use super::types::tools::{
    CustomCall, CustomDelta, CustomToolCall, FunctionCall, FunctionDelta, FunctionToolCall, ToolCall, ToolCallDelta,
};
use super::types::usage::Usage;
use chat::Piece;
use http::caller::Caller;
use http::client_stream::{self, ClientStream};
use http::deferred_stream;
use http::error::ApiError;
use http::json::JsonBody;
use http::memory_budget::MemoryPermit;
use http::response_head::ResponseHead;
use http::state::AppState;
use http::tenant::Tenant;
use serving::{Answer, End, EndReason, FunctionCall as Call, Ledger, PromptProgress, ResponseRequest};

/// Answer a conversation
///
/// With `stream`, the response is a stream of `ChatChunk` events that ends with `data: [DONE]`.
#[utoipa::path(post, path = "/v1/chat/completions", operation_id = "createChatCompletion", tag = "generation",
    request_body = ChatRequest, responses(
    (status = 200, description = "the answer", content((ChatCompletion = "application/json"), (ChatChunk = "text/event-stream"))),
    (status = 400, description = "a field is wrong, or the context is too short", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody),
    (status = 429, description = "the queue is full", body = ErrorBody),
    (status = 503, description = "the model is loading, or the server is shutting down", body = ErrorBody),
    (status = 504, description = "the request took longer than the server or its own `x-request-timeout` allows", body = ErrorBody)))]
pub async fn create(
    state: web::Data<AppState>,
    stores: web::Data<Stores>,
    http: HttpRequest,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    let limits = state.limits();
    let (mut request, held) = body.read(&convert::schemas::CHATS, move |value| convert::chat::parse(value, &limits)).await?;
    let (caller, names) = (Caller::of(&http), request.token_names);
    let (extras, legacy) = (ResponseOptions::of(&request.options, request.stream), request.legacy);
    let scores_prompt = request.options.prompt_logprobs.is_some();
    let (customs, echo) = (std::mem::take(&mut request.customs), std::mem::take(&mut request.echo));
    let logprobs = request.options.logprobs.map(|_| names);
    let form = Form { logprobs, scores_prompt, legacy, customs, echo, extras, prompt_ids: None };
    let keep = request.keep.take().map(|asked| ChatRecorder::new(stores, caller.tenant.clone(), asked, form.clone()));
    if let Some(options) = request.stream {
        let (model, journal, stream_state) = (request.model.clone(), caller.journal.clone(), state.clone());
        let begin = async move {
            let (response, head) = start(stream_state, &caller, request, held).await?;
            let keep = keep.map(|keep| keep.of(&head, response.len()));
            let form = Form { prompt_ids: response.prompt_ids().into_iter().next(), ..form };
            let (include_usage, began) = (options.include_usage, Instant::now());
            let events = ChatEvents { head, include_usage, began, form, inputs: BTreeMap::new(), keep };
            Ok(stream::events(response, events, options))
        };
        return deferred_stream::stream(&state, &model, journal, stream::error_event, begin).await;
    }
    let (response, head) = start(state, &caller, request, held).await?;
    let form = Form { prompt_ids: response.prompt_ids().into_iter().next(), ..form };
    let answers = response.collect().await?;
    let completion = completion(head, answers, caller.journal.ledger().counts().into(), form);
    if let Some(keep) = keep {
        keep.keep(&completion);
    }
    Ok(HttpResponse::Ok().json(completion))
}

/// The form of the answer that a request asks for.
#[derive(Clone)]
struct Form {
    /// How tokens with log-probabilities are named. `None` without log-probabilities.
    logprobs: Option<TokenNames>,
    /// Whether the answer includes the prompt's log-probabilities.
    scores_prompt: bool,
    /// Whether the request uses `functions`.
    legacy: bool,
    /// The names of tools whose calls are texts.
    customs: Vec<String>,
    /// The text with which each choice begins, because the last message has it.
    echo: String,
    extras: ResponseOptions,
    /// The prompt as ids, if the request asks for them. In a stream, until the first event.
    prompt_ids: Option<Vec<u32>>,
}

/// Builds the complete answer.
fn completion(head: ResponseHead, answers: Vec<Answer>, usage: Usage, form: Form) -> ChatCompletion {
    let Form { logprobs, scores_prompt, legacy, customs, echo, extras, prompt_ids: prompt_token_ids } = form;
    let choice = |(index, mut answer): (usize, Answer)| {
        let (shown, reasoning, calls) = answer.take_by_kind();
        ChatChoice {
            index,
            logprobs: logprobs.map(|names| ChatLogprobs::new(shown.tokens, names)),
            finish_reason: chat_reason(answer.reason, legacy).into(),
            message: message(format!("{echo}{}", shown.text), reasoning, calls, legacy, &customs),
            stop_reason: extras.stop_reason(answer.stop),
            token_ids: extras.ids(answer.ids),
        }
    };
    let prompt_logprobs = answers.first().filter(|_| scores_prompt).map(|answer| prompt_logprobs(&answer.prompt));
    let choices = answers.into_iter().enumerate().map(choice).collect();
    let ResponseHead { id, created, model, fingerprint } = head;
    let object = "chat.completion".into();
    ChatCompletion { id, object, created, model, choices, system_fingerprint: fingerprint, usage, prompt_token_ids, prompt_logprobs }
}

/// Stores an answer that the client wants to retrieve later.
struct ChatRecorder {
    stores: web::Data<Stores>,
    tenant: Tenant,
    asked: StoredRequest,
    form: Form,
    /// The head of the answer, if it is streamed.
    head: Option<ResponseHead>,
    answers: Vec<Answer>,
}

impl ChatRecorder {
    fn new(stores: web::Data<Stores>, tenant: Tenant, asked: StoredRequest, form: Form) -> Self {
        Self { stores, tenant, asked, form, head: None, answers: Vec::new() }
    }

    /// Prepares to record a streamed answer.
    fn of(self, head: &ResponseHead, num_choices: usize) -> Self {
        Self { head: Some(head.clone()), answers: vec![Answer::default(); num_choices], ..self }
    }

    fn keep(&self, completion: &ChatCompletion) {
        let stored = StoredChat::new(completion, self.asked.clone());
        self.stores.chats.insert(self.tenant.name(), &completion.id, stored);
    }

    /// Stores a streamed answer.
    fn end(&mut self, usage: Usage) {
        if let Some(head) = self.head.take() {
            let answers = std::mem::take(&mut self.answers);
            self.keep(&completion(head, answers, usage, self.form.clone()));
        }
    }
}

/// Starts the response to a request, once its model is loaded.
async fn start(
    state: web::Data<AppState>,
    caller: &Caller,
    request: Chat,
    held: Arc<MemoryPermit>,
) -> Result<(ClientStream, ResponseHead), ApiError> {
    let model = caller.model_with(&state, &request.model, request.lora.as_deref()).await?;
    let head = ResponseHead::new("chatcmpl", &model);
    let asked = ResponseRequest::new(model, request.prompt, request.options);
    Ok((client_stream::start(state, caller, asked, request.names, held).await?, head))
}

/// Returns the finish reason in the terms of chat and text completions.
pub fn finish_reason(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Stop => "stop",
        EndReason::Length => "length",
        EndReason::Calls => "tool_calls",
    }
}

/// Returns the finish reason of a chat. `legacy` is set if the request uses `functions`.
fn chat_reason(reason: EndReason, legacy: bool) -> &'static str {
    if legacy && reason == EndReason::Calls { "function_call" } else { finish_reason(reason) }
}

fn message(text: String, reasoning: String, mut calls: Vec<Call>, legacy: bool, customs: &[String]) -> AssistantMessage {
    let function_call = calls.pop_if(|_| legacy).map(|Call { name, arguments }| FunctionCall { name, arguments });
    let calls: Vec<ToolCall> = calls.into_iter().map(|call| tool_call(call, customs)).collect();
    AssistantMessage {
        role: "assistant".into(),
        content: Some(text).filter(|text| (calls.is_empty() && function_call.is_none()) || !text.is_empty()),
        reasoning_content: Some(reasoning).filter(|text| !text.is_empty()),
        tool_calls: Some(calls).filter(|calls| !calls.is_empty()),
        function_call,
        refusal: None,
    }
}

fn tool_call(Call { name, arguments }: Call, customs: &[String]) -> ToolCall {
    let id = call_id();
    match customs.contains(&name) {
        true => ToolCall::Custom(CustomToolCall { id, kind: "custom".into(), custom: CustomCall { name, input: text_of(&arguments) } }),
        false => ToolCall::Function(FunctionToolCall { id, kind: "function".into(), function: FunctionCall { name, arguments } }),
    }
}

fn call_id() -> String {
    format!("call_{}", uuid::Uuid::new_v4().simple())
}

struct ChatEvents {
    head: ResponseHead,
    include_usage: bool,
    began: Instant,
    form: Form,
    /// The texts of the calls of custom tools, by choice and call.
    inputs: BTreeMap<(usize, usize), InputText>,
    /// Stores the answer, if the client wants that.
    keep: Option<ChatRecorder>,
}

impl ChatEvents {
    fn event(&self, choices: Vec<ChatChunkChoice>, usage: Option<Usage>) -> ChatChunk {
        let ResponseHead { id, created, model, fingerprint } = self.head.clone();
        let (object, usage) = ("chat.completion.chunk".into(), self.include_usage.then_some(usage));
        ChatChunk { id, object, created, model, choices, system_fingerprint: fingerprint, usage, ..Default::default() }
    }

    fn choice(&self, index: usize, delta: Delta, finish_reason: Option<String>) -> ChatChunk {
        self.event(vec![ChatChunkChoice { index, delta, finish_reason, ..ChatChunkChoice::default() }], None)
    }
}

impl EventFormat for ChatEvents {
    type Event = ChatChunk;

    fn first(&self, index: usize) -> Option<ChatChunk> {
        let delta = Delta { role: Some("assistant".into()), content: Some(self.form.echo.clone()), ..Delta::default() };
        Some(self.choice(index, delta, None))
    }

    fn piece(&mut self, index: usize, piece: Piece) -> Option<ChatChunk> {
        self.keep.iter_mut().for_each(|keep| keep.answers[index].add_piece(piece.clone()));
        let (delta, logprobs) = match piece {
            Piece::Prompt(_) => return None,
            Piece::Text(piece) => {
                let logprobs = self.form.logprobs.map(|names| ChatLogprobs::new(piece.tokens, names));
                (Delta { content: Some(piece.text), ..Delta::default() }, logprobs)
            }
            Piece::Reasoning(text) => (Delta { reasoning_content: Some(text), ..Delta::default() }, None),
            Piece::CallStart { name, .. } if self.form.legacy => {
                let function = FunctionDelta { name: Some(name), arguments: String::new() };
                (Delta { function_call: Some(function), ..Delta::default() }, None)
            }
            Piece::Arguments { text, .. } if self.form.legacy => {
                (Delta { function_call: Some(FunctionDelta { name: None, arguments: text }), ..Delta::default() }, None)
            }
            Piece::CallStart { call, name } => {
                let mut delta = ToolCallDelta { index: call, id: Some(call_id()), ..ToolCallDelta::default() };
                if self.form.customs.contains(&name) {
                    self.inputs.insert((index, call), InputText::default());
                    delta.kind = Some("custom".into());
                    delta.custom = Some(CustomDelta { name: Some(name), input: String::new() });
                } else {
                    delta.kind = Some("function".into());
                    delta.function = Some(FunctionDelta { name: Some(name), arguments: String::new() });
                }
                (Delta { tool_calls: Some(vec![delta]), ..Delta::default() }, None)
            }
            Piece::Arguments { call, text } => {
                let mut delta = ToolCallDelta { index: call, ..ToolCallDelta::default() };
                match self.inputs.get_mut(&(index, call)) {
                    Some(reader) => {
                        let input = Some(reader.push(&text)).filter(|input| !input.is_empty())?;
                        delta.custom = Some(CustomDelta { name: None, input });
                    }
                    None => delta.function = Some(FunctionDelta { name: None, arguments: text }),
                }
                (Delta { tool_calls: Some(vec![delta]), ..Delta::default() }, None)
            }
        };
        Some(self.event(vec![ChatChunkChoice { index, delta, logprobs, ..ChatChunkChoice::default() }], None))
    }

    fn end(&mut self, index: usize, end: End) -> ChatChunk {
        self.keep.iter_mut().for_each(|keep| keep.answers[index].reason = end.reason);
        let mut event = self.choice(index, Delta::default(), Some(chat_reason(end.reason, self.form.legacy).into()));
        event.choices[0].stop_reason = self.form.extras.stop_reason(end.stop);
        event
    }

    fn complete(&mut self, _index: usize, event: &mut ChatChunk, ids: Option<Vec<u32>>, ledger: &Ledger) {
        event.prompt_token_ids = self.form.prompt_ids.take();
        if let Some(choice) = event.choices.first_mut() {
            event.obfuscation = self.form.extras.obfuscation(choice.delta.num_bytes());
            choice.token_ids = ids.clone().and_then(|ids| self.form.extras.ids(ids));
        }
        if self.form.extras.counts && ids.is_some() {
            event.usage = Some(Some(ledger.settled_counts().into()));
        }
    }

    fn usage(&self, usage: Usage) -> ChatChunk {
        self.event(Vec::new(), Some(usage))
    }

    fn progress(&self, PromptProgress { total, cached, processed }: PromptProgress) -> Option<ChatChunk> {
        let time_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let prompt_progress = Some(types::chat::PromptProgress { total, cached, cache: cached, processed, time_ms });
        Some(ChatChunk { prompt_progress, ..self.event(Vec::new(), None) })
    }

    fn close(&mut self, usage: Usage) {
        self.keep.iter_mut().for_each(|keep| keep.end(usage));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use serving::{Counts, DraftCounts};

    fn json_of(event: &ChatChunk) -> Value {
        let mut value = serde_json::to_value(event).unwrap();
        for key in ["id", "created", "model", "object", "system_fingerprint"] {
            assert!(!value.as_object_mut().unwrap().remove(key).unwrap().is_null());
        }
        value
    }

    fn events(include_usage: bool) -> ChatEvents {
        let head = ResponseHead { id: "chatcmpl-1".into(), created: 1, model: "m".into(), fingerprint: "fp".into() };
        let form = Form {
            logprobs: None,
            scores_prompt: false,
            legacy: false,
            customs: Vec::new(),
            echo: String::new(),
            extras: ResponseOptions::default(),
            prompt_ids: None,
        };
        ChatEvents { head, include_usage, began: Instant::now(), form, inputs: BTreeMap::new(), keep: None }
    }

    fn hi() -> Piece {
        Piece::Text("hi".to_owned().into())
    }

    #[test]
    fn chunks_are_worded_as_clients_expect() {
        let mut events = events(false);
        let choice = |delta, reason: Value| json!({"choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": reason}]});
        assert_eq!(json_of(&events.first(0).unwrap()), choice(json!({"role": "assistant", "content": ""}), Value::Null));
        assert_eq!(json_of(&events.piece(0, hi()).unwrap()), choice(json!({"content": "hi"}), Value::Null));
        assert_eq!(json_of(&events.end(0, End { reason: EndReason::Stop, stop: None })), choice(json!({}), json!("stop")));
    }

    #[test]
    fn usage_is_null_until_the_last_chunk() {
        let mut events = events(true);
        assert_eq!(json_of(&events.piece(0, hi()).unwrap())["usage"], Value::Null);
        assert!(json_of(&events.piece(0, hi()).unwrap()).as_object().unwrap().contains_key("usage"));
        let drafts = DraftCounts { drafted: 9, accepted: 6, predicted: 7, accepted_predicted: 5 };
        let last = json_of(&events.usage(Counts { prompt: 3, cached: 2, generated: 4, reasoning: 0, drafts }.into()));
        assert_eq!(
            last,
            json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 0,
            "accepted_prediction_tokens": 5, "rejected_prediction_tokens": 2}}})
        );
    }
}

//! `POST /v1/chat/completions`

use std::collections::BTreeMap;
use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};

use super::chat_store::StoredChat;
use super::convert;
use super::convert::chat::{Asked, Chat};
use super::extras::{Extras, Note};
use super::input_text::{InputText, text_of};
use super::shelves::Shelves;
use super::stream::{self, ChunkFormat, Watch};
use super::types;
use super::types::chat::{AssistantMessage, ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatRequest, Delta};
use super::types::error::ErrorBody;
use super::types::logprobs::{ChatLogprobs, prompt_logprobs};
use super::types::tools::{
    CustomCall, CustomDelta, CustomToolCall, FunctionCall, FunctionDelta, FunctionToolCall, ToolCall, ToolCallDelta,
};
use super::types::usage::Usage;
use chat::Piece;
use http::budget::Held;
use http::caller::Caller;
use http::choices::{self, Answer, Ask, Choices, FunctionCall as Call, PromptProgress};
use http::error::ApiError;
use http::head::Head;
use http::json::JsonBody;
use http::later;
use http::state::AppState;
use http::tenant::Tenant;
use serving::{End, EndReason, Output};

/// Answer a conversation
///
/// With `stream` the answer is a stream of `ChatChunk` events that ends with `data: [DONE]`.
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
    shelves: web::Data<Shelves>,
    http: HttpRequest,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    let limits = state.limits();
    let (mut request, held) = body.read(&convert::schemas::CHATS, move |value| convert::chat::parse(value, &limits)).await?;
    let (caller, has_logprobs) = (Caller::of(&http), request.options.logprobs.is_some());
    let (extras, legacy) = (Extras::of(&request.options, request.stream), request.legacy);
    let scores_prompt = request.options.prompt_logprobs.is_some();
    let form = Form { has_logprobs, scores_prompt, legacy, customs: std::mem::take(&mut request.customs), extras, prompt_ids: None };
    let keep = request.keep.take().map(|asked| Keeper::new(shelves, caller.tenant.clone(), asked, form.clone()));
    if let Some(options) = request.stream {
        let (model, journal, of_stream) = (request.model.clone(), caller.journal.clone(), state.clone());
        let begin = async move {
            let (choices, head) = start(of_stream, &caller, request, held).await?;
            let keep = keep.map(|keep| keep.of(&head, choices.len()));
            let prompt_ids = choices.prompt_ids().into_iter().next();
            let form = Form { prompt_ids, ..form };
            let chunks = Chunks { head, include_usage: options.include_usage, form, inputs: BTreeMap::new() };
            Ok(stream::watched_chunks(choices, chunks, options, keep))
        };
        return later::stream(&state, &model, journal, stream::error_event, begin).await;
    }
    let (choices, head) = start(state, &caller, request, held).await?;
    let form = Form { prompt_ids: choices.prompt_ids().into_iter().next(), ..form };
    let (answers, usage) = choices.collect().await?;
    let completion = completion(head, answers, usage.into(), form);
    if let Some(keep) = keep {
        keep.keep(&completion);
    }
    Ok(HttpResponse::Ok().json(completion))
}

/// What a request wants of the form of its answer.
#[derive(Clone)]
struct Form {
    has_logprobs: bool,
    /// Whether the answer has the prompt's log-probabilities.
    scores_prompt: bool,
    /// The request has `functions`.
    legacy: bool,
    /// The names of tools whose calls are texts.
    customs: Vec<String>,
    extras: Extras,
    /// The prompt as ids, if the request wants them. In a stream, until the first chunk.
    prompt_ids: Option<Vec<u32>>,
}

/// The whole answer.
fn completion(head: Head, answers: Vec<Answer>, usage: Usage, form: Form) -> ChatCompletion {
    let Form { has_logprobs, scores_prompt, legacy, customs, extras, prompt_ids: prompt_token_ids } = form;
    let choice = |(index, answer): (usize, Answer)| ChatChoice {
        index,
        logprobs: has_logprobs.then(|| ChatLogprobs::new(answer.shown.tokens)),
        finish_reason: chat_reason(answer.reason, legacy).into(),
        message: message(answer.shown.text, answer.reasoning, answer.calls, legacy, &customs),
        stop_reason: extras.stop_reason(answer.stop),
        token_ids: extras.ids(answer.ids),
    };
    let prompt_logprobs = answers.first().filter(|_| scores_prompt).map(|answer| prompt_logprobs(&answer.prompt));
    let choices = answers.into_iter().enumerate().map(choice).collect();
    let Head { id, created, model, fingerprint } = head;
    let object = "chat.completion".into();
    ChatCompletion { id, object, created, model, choices, system_fingerprint: fingerprint, usage, prompt_token_ids, prompt_logprobs }
}

/// Keeps an answer that the client wants to ask for again.
struct Keeper {
    shelves: web::Data<Shelves>,
    tenant: Tenant,
    asked: Asked,
    form: Form,
    /// The answer so far, if it is streamed.
    head: Option<Head>,
    answers: Vec<Answer>,
}

impl Keeper {
    fn new(shelves: web::Data<Shelves>, tenant: Tenant, asked: Asked, form: Form) -> Self {
        Self { shelves, tenant, asked, form, head: None, answers: Vec::new() }
    }

    /// Sees a streamed answer.
    fn of(self, head: &Head, num_choices: usize) -> Self {
        Self { head: Some(head.clone()), answers: vec![Answer::default(); num_choices], ..self }
    }

    fn keep(&self, completion: &ChatCompletion) {
        let stored = StoredChat::new(completion, self.asked.clone());
        self.shelves.chats.insert(self.tenant.name(), &completion.id, stored);
    }
}

impl Watch for Keeper {
    fn output(&mut self, index: usize, output: &Output) {
        match output {
            Output::Piece(piece) => self.answers[index].add(piece.clone()),
            Output::End(end) => self.answers[index].reason = end.reason,
        }
    }

    fn end(&mut self, usage: Usage) {
        if let Some(head) = self.head.take() {
            let answers = std::mem::take(&mut self.answers);
            self.keep(&completion(head, answers, usage, self.form.clone()));
        }
    }
}

/// Starts the choices of a request once its model is there.
async fn start(state: web::Data<AppState>, caller: &Caller, request: Chat, held: Arc<Held>) -> Result<(Choices, Head), ApiError> {
    let model = caller.model(&state, &request.model).await?;
    let head = Head::new("chatcmpl", &model);
    let ask = Ask {
        model,
        prompts: vec![request.prompt],
        options: request.options,
        num_choices: request.num_choices,
        best_of: request.num_choices,
        names: request.names,
        held,
        tenant: caller.tenant.clone(),
        journal: caller.journal.clone(),
    };
    Ok((choices::start(state, ask).await?, head))
}

/// How a choice ended, as chat and text completions word it.
pub fn finish_reason(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Stop => "stop",
        EndReason::Length => "length",
        EndReason::Calls => "tool_calls",
    }
}

/// `legacy`: the request has `functions`.
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

struct Chunks {
    head: Head,
    include_usage: bool,
    form: Form,
    /// The texts of the calls of custom tools, by choice and call.
    inputs: BTreeMap<(usize, usize), InputText>,
}

impl Chunks {
    fn chunk(&self, choices: Vec<ChatChunkChoice>, usage: Option<Usage>) -> ChatChunk {
        let Head { id, created, model, fingerprint } = self.head.clone();
        let (object, usage) = ("chat.completion.chunk".into(), self.include_usage.then_some(usage));
        ChatChunk { id, object, created, model, choices, system_fingerprint: fingerprint, usage, ..Default::default() }
    }

    fn choice(&self, index: usize, delta: Delta, finish_reason: Option<String>) -> ChatChunk {
        self.chunk(vec![ChatChunkChoice { index, delta, finish_reason, ..ChatChunkChoice::default() }], None)
    }
}

impl ChunkFormat for Chunks {
    type Chunk = ChatChunk;

    fn first(&self, index: usize) -> Option<ChatChunk> {
        let delta = Delta { role: Some("assistant".into()), content: Some(String::new()), ..Delta::default() };
        Some(self.choice(index, delta, None))
    }

    fn piece(&mut self, index: usize, piece: Piece) -> Option<ChatChunk> {
        let (delta, logprobs) = match piece {
            Piece::Prompt(_) => return None,
            Piece::Text(piece) => {
                let logprobs = self.form.has_logprobs.then(|| ChatLogprobs::new(piece.tokens));
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
        Some(self.chunk(vec![ChatChunkChoice { index, delta, logprobs, ..ChatChunkChoice::default() }], None))
    }

    fn end(&self, index: usize, end: End) -> ChatChunk {
        let mut chunk = self.choice(index, Delta::default(), Some(chat_reason(end.reason, self.form.legacy).into()));
        chunk.choices[0].stop_reason = self.form.extras.stop_reason(end.stop);
        chunk
    }

    fn complete(&mut self, _index: usize, chunk: &mut ChatChunk, note: Option<Note>) {
        chunk.prompt_token_ids = self.form.prompt_ids.take();
        if let Some(choice) = chunk.choices.first_mut() {
            chunk.obfuscation = self.form.extras.obfuscation(choice.delta.num_bytes());
            choice.token_ids = note.as_ref().and_then(|note| self.form.extras.ids(note.ids.clone()));
        }
        if self.form.extras.counts {
            chunk.usage = note.map(|note| Some(note.usage)).or(chunk.usage);
        }
    }

    fn usage(&self, usage: Usage) -> ChatChunk {
        self.chunk(Vec::new(), Some(usage))
    }

    fn progress(&self, PromptProgress { total, cached, processed }: PromptProgress) -> Option<ChatChunk> {
        let prompt_progress = Some(types::chat::PromptProgress { total, cached, processed });
        Some(ChatChunk { prompt_progress, ..self.chunk(Vec::new(), None) })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use serving::Counts;

    fn json_of(chunk: &ChatChunk) -> Value {
        let mut value = serde_json::to_value(chunk).unwrap();
        for key in ["id", "created", "model", "object", "system_fingerprint"] {
            assert!(!value.as_object_mut().unwrap().remove(key).unwrap().is_null());
        }
        value
    }

    fn chunks(include_usage: bool) -> Chunks {
        let head = Head { id: "chatcmpl-1".into(), created: 1, model: "m".into(), fingerprint: "fp".into() };
        let form = Form {
            has_logprobs: false,
            scores_prompt: false,
            legacy: false,
            customs: Vec::new(),
            extras: Extras::default(),
            prompt_ids: None,
        };
        Chunks { head, include_usage, form, inputs: BTreeMap::new() }
    }

    fn hi() -> Piece {
        Piece::Text("hi".to_owned().into())
    }

    #[test]
    fn chunks_are_worded_as_clients_expect() {
        let mut chunks = chunks(false);
        let choice = |delta, reason: Value| json!({"choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": reason}]});
        assert_eq!(json_of(&chunks.first(0).unwrap()), choice(json!({"role": "assistant", "content": ""}), Value::Null));
        assert_eq!(json_of(&chunks.piece(0, hi()).unwrap()), choice(json!({"content": "hi"}), Value::Null));
        assert_eq!(
            json_of(&chunks.end(0, End { reason: EndReason::Stop, counts: Counts::default(), stop: None })),
            choice(json!({}), json!("stop"))
        );
    }

    #[test]
    fn usage_is_null_until_the_last_chunk() {
        let mut chunks = chunks(true);
        assert_eq!(json_of(&chunks.piece(0, hi()).unwrap())["usage"], Value::Null);
        assert!(json_of(&chunks.piece(0, hi()).unwrap()).as_object().unwrap().contains_key("usage"));
        let last = json_of(&chunks.usage(Counts { prompt: 3, cached: 2, generated: 4, reasoning: 0 }.into()));
        assert_eq!(
            last,
            json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 0}}})
        );
    }
}

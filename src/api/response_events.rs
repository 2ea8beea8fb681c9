//! The events of a streamed response, in their order.

use actix_web::web;
use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};

use super::choices::Part;
use super::error::ApiError;
use super::responses::{Draft, keep};
use super::sse::{self, Events};
use super::state::AppState;
use super::types::responses::{ResponseError, ResponseEvent};
use super::types::usage::Usage;

pub struct Streamed {
    draft: Draft,
    state: web::Data<AppState>,
    next: u64,
}

fn value(of: &impl Serialize) -> Value {
    // Our own types serialise: maps have string keys.
    serde_json::to_value(of).expect("an event is JSON")
}

impl Streamed {
    pub fn new(draft: Draft, state: web::Data<AppState>) -> Self {
        Self { draft, state, next: 0 }
    }

    fn event(&mut self, name: &str, fields: Value) -> Bytes {
        let fields = fields.as_object().cloned().unwrap_or_default();
        let event = ResponseEvent { kind: name.into(), sequence_number: self.next, fields };
        self.next += 1;
        sse::named(name, &event)
    }

    fn whole(&mut self, name: &str) -> Bytes {
        let response = value(&self.draft.object());
        self.event(name, json!({"response": response}))
    }

    /// An event of the text; `fields` beside its place.
    fn of_text(&mut self, name: &str, fields: Value) -> Bytes {
        let mut all = json!({"item_id": self.draft.message_id, "output_index": 0, "content_index": 0});
        if let (Value::Object(all), Value::Object(fields)) = (&mut all, fields) {
            all.extend(fields);
        }
        self.event(name, all)
    }
}

impl Events for Streamed {
    fn begin(&mut self, _num_choices: usize) -> Vec<Bytes> {
        let (item, part) = (value(&self.draft.message(Vec::new())), value(&self.draft.part()));
        vec![
            self.whole("response.created"),
            self.whole("response.in_progress"),
            self.event("response.output_item.added", json!({"output_index": 0, "item": item})),
            self.of_text("response.content_part.added", json!({"part": part})),
        ]
    }

    fn part(&mut self, part: Part) -> Vec<Bytes> {
        match part {
            Part::Prompt(..) | Part::Reasoning(..) | Part::Call(..) | Part::Arguments(..) => Vec::new(),
            Part::Text(_, piece) => {
                let delta = piece.text.clone();
                let logprobs = self.draft.push(piece);
                vec![self.of_text("response.output_text.delta", json!({"delta": delta, "logprobs": logprobs}))]
            }
            Part::Finished(_, reason) => {
                self.draft.finish(reason);
                let part = self.draft.part();
                let item = value(&self.draft.message(vec![part.clone()]));
                vec![
                    self.of_text("response.output_text.done", json!({"text": part.text, "logprobs": part.logprobs})),
                    self.of_text("response.content_part.done", json!({"part": part})),
                    self.event("response.output_item.done", json!({"output_index": 0, "item": item})),
                ]
            }
        }
    }

    fn end(&mut self, usage: Usage) -> Vec<Bytes> {
        self.draft.usage = Some(usage);
        keep(&self.state, &self.draft, &self.draft.object());
        let name = format!("response.{}", self.draft.status);
        vec![self.whole(&name)]
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Bytes> {
        self.draft.status = "failed";
        self.draft.error = Some(ResponseError { code: "server_error".into(), message: error.message.clone() });
        vec![self.whole("response.failed")]
    }
}

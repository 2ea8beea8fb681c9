//! The events of a streamed response.

use bytes::Bytes;
use serde_json::{Value, json};

use super::error::response_code;
use super::response_draft::{Event, value};
use super::response_record::Record;
use super::stream::Events;
use super::types::responses::{ResponseError, ResponseEvent};
use super::types::usage::Usage;
use crate::http::error::ApiError;
use crate::http::sse;
use serving::Output;

pub struct Streamed {
    answer: Record,
    /// The next event's number.
    next: u64,
}

impl Streamed {
    pub fn new(answer: Record) -> Self {
        Self { answer, next: 0 }
    }

    fn event(&mut self, (name, fields): Event) -> Bytes {
        let fields = if let Value::Object(fields) = fields { fields } else { serde_json::Map::new() };
        let event = ResponseEvent { kind: name.into(), sequence_number: self.next, fields };
        self.next += 1;
        sse::named(name, &event)
    }

    fn whole(&mut self, name: &'static str) -> Bytes {
        let response = value(&self.answer.draft.object());
        self.event((name, json!({"response": response})))
    }
}

/// The only event of a stream that fails before its response has begun.
pub fn error_event(error: &ApiError) -> Bytes {
    let (code, message) = (response_code(error.kind), &error.message);
    sse::named("error", &json!({"type": "error", "code": code, "message": message, "param": error.param, "sequence_number": 0}))
}

impl Events for Streamed {
    fn begin(&mut self, _num_choices: usize) -> Vec<Bytes> {
        vec![self.whole("response.created"), self.whole("response.in_progress")]
    }

    fn output(&mut self, _index: usize, output: Output) -> Vec<Bytes> {
        self.answer.draft.take(output).into_iter().map(|event| self.event(event)).collect()
    }

    fn end(&mut self, usage: Usage) -> Vec<Bytes> {
        self.answer.end(usage);
        let incomplete = self.answer.draft.status == "incomplete";
        vec![self.whole(if incomplete { "response.incomplete" } else { "response.completed" })]
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Bytes> {
        self.answer.draft.status = "failed";
        self.answer.draft.error = Some(ResponseError { code: response_code(error.kind).into(), message: error.message.clone() });
        vec![self.whole("response.failed")]
    }
}

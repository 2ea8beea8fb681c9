//! The events of a streamed response.

use bytes::Bytes;
use serde_json::{Value, json};
use uuid::Uuid;

use super::error::response_code;
use super::response_builder::{Event, value};
use super::response_record::ResponseRecord;
use super::types::responses::ResponseEvent;
use chat::Piece;
use http::error::ApiError;
use http::response_frames::StreamFormat;
use http::sse;
use serving::{End, Ledger};

/// The text of a delta and its padding together have a multiple of this length [bytes].
const PADDED_TO: usize = 16;

/// The format of a response's stream.
pub struct ResponseEvents {
    answer: ResponseRecord,
    ledger: Ledger,
    /// The number of the next event.
    next: u64,
    /// Whether deltas are padded.
    obfuscates: bool,
}

impl ResponseEvents {
    /// Creates the format of a stream whose next event has the number `next`, because the events before it were sent already.
    pub fn new(answer: ResponseRecord, ledger: Ledger, obfuscates: bool, next: u64) -> Self {
        Self { answer, ledger, next, obfuscates }
    }

    fn event(&mut self, (name, fields): Event) -> Bytes {
        let mut fields = if let Value::Object(fields) = fields { fields } else { serde_json::Map::new() };
        if self.obfuscates
            && let Some(delta) = fields.get("delta").and_then(Value::as_str)
        {
            let noise = Uuid::new_v4().simple().to_string();
            fields.insert("obfuscation".into(), noise[..PADDED_TO - delta.len() % PADDED_TO].into());
        }
        let event = ResponseEvent { kind: name.into(), sequence_number: self.next, fields };
        self.next += 1;
        sse::named(name, &event)
    }

    fn whole(&mut self, name: &'static str) -> Bytes {
        let response = value(&self.answer.draft.object());
        self.event((name, json!({"response": response})))
    }
}

/// Makes an event that contains the whole response.
pub fn whole_event(name: &'static str, response: &Value, number: u64) -> Bytes {
    sse::named(name, &json!({"type": name, "sequence_number": number, "response": response}))
}

/// Makes the only event of a stream that fails before its response has begun.
pub fn error_event(error: &ApiError) -> Bytes {
    let (code, message) = (response_code(error.kind), &error.message);
    sse::named("error", &json!({"type": "error", "code": code, "message": message, "param": error.param, "sequence_number": 0}))
}

impl StreamFormat for ResponseEvents {
    fn begin(&mut self, _num_choices: usize) -> Vec<Bytes> {
        let created = (self.next == 0).then(|| self.whole("response.created"));
        created.into_iter().chain([self.whole("response.in_progress")]).collect()
    }

    fn piece(&mut self, _choice: usize, piece: Piece) -> Vec<Bytes> {
        self.answer.draft.add(piece).into_iter().map(|event| self.event(event)).collect()
    }

    async fn end(&mut self, _choice: usize, end: End) -> Vec<Bytes> {
        self.answer.draft.finish(end.reason).into_iter().map(|event| self.event(event)).collect()
    }

    fn close(&mut self) -> Vec<Bytes> {
        self.answer.end(self.ledger.counts().into());
        let incomplete = self.answer.draft.status == "incomplete";
        vec![self.whole(if incomplete { "response.incomplete" } else { "response.completed" })]
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Bytes> {
        self.answer.fail(error);
        vec![self.whole("response.failed")]
    }
}

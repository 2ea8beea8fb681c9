//! An answer while it is written: what a generation yields becomes the events of a stream. Without a stream, the same events are folded
//! into one message.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::convert::blocks::CARRIED;
use super::convert::thinking::Shown;
use super::types::answer::{AnswerBlock, MessagesAnswer, MessagesUsage, ThinkingCount};
use super::types::event::{BlockDelta, MessagesEvent, StopDelta};
use chat::Piece;
use http::integers::arguments;
use serving::{Counts, End, EndReason, Output, StopCause};

pub struct Draft {
    pub id: String,
    pub model: String,
    pub shown: Shown,
    pub stop_sequences: Vec<String>,
    pub max_tokens: u32,
    /// The index of the open block, or of the next one.
    index: usize,
    open: Option<Open>,
}

/// The block that is being written.
enum Open {
    Text,
    /// With the reasoning so far.
    Thinking(String),
    Call,
}

impl From<Counts> for MessagesUsage {
    fn from(counts: Counts) -> Self {
        Self {
            input_tokens: counts.prompt.saturating_sub(counts.cached),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: counts.cached,
            output_tokens: counts.generated,
            output_tokens_details: ThinkingCount { thinking_tokens: counts.reasoning },
        }
    }
}

impl Draft {
    pub fn new(id: String, model: String, shown: Shown, stop_sequences: Vec<String>, max_tokens: u32) -> Self {
        Self { id, model, shown, stop_sequences, max_tokens, index: 0, open: None }
    }

    /// The event that opens the stream.
    pub fn start(&self, counts: Counts) -> MessagesEvent {
        let message = MessagesAnswer {
            id: self.id.clone(),
            kind: "message".into(),
            role: "assistant".into(),
            model: self.model.clone(),
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: counts.into(),
        };
        MessagesEvent::MessageStart { message }
    }

    /// The events of what the generation yields.
    pub fn take(&mut self, output: Output) -> Vec<MessagesEvent> {
        let mut events = Vec::new();
        match output {
            Output::Piece(Piece::Text(piece)) if !piece.text.is_empty() => self.text(piece.text, &mut events),
            Output::Piece(Piece::Reasoning(text)) if !text.is_empty() && self.shown != Shown::No => self.thinking(&text, &mut events),
            Output::Piece(Piece::CallStart { name, .. }) => {
                self.close(&mut events);
                let id = format!("toolu_{}", uuid::Uuid::new_v4().simple());
                self.begin(Open::Call, AnswerBlock::ToolUse { id, name, input: json!({}) }, &mut events);
            }
            Output::Piece(Piece::Arguments { text, .. }) if !text.is_empty() => {
                events.push(self.delta(BlockDelta::InputJsonDelta { partial_json: text }));
            }
            Output::Piece(_) => {}
            Output::End(end) => self.end(end, &mut events),
        }
        events
    }

    fn text(&mut self, text: String, events: &mut Vec<MessagesEvent>) {
        if !matches!(self.open, Some(Open::Text)) {
            self.close(events);
            self.begin(Open::Text, AnswerBlock::Text { text: String::new() }, events);
        }
        events.push(self.delta(BlockDelta::TextDelta { text }));
    }

    fn thinking(&mut self, text: &str, events: &mut Vec<MessagesEvent>) {
        if !matches!(self.open, Some(Open::Thinking(_))) {
            self.close(events);
            let block = AnswerBlock::Thinking { thinking: String::new(), signature: String::new() };
            self.begin(Open::Thinking(String::new()), block, events);
        }
        if let Some(Open::Thinking(so_far)) = &mut self.open {
            so_far.push_str(text);
        }
        if self.shown == Shown::Whole {
            events.push(self.delta(BlockDelta::ThinkingDelta { thinking: text.to_owned() }));
        }
    }

    fn begin(&mut self, open: Open, content_block: AnswerBlock, events: &mut Vec<MessagesEvent>) {
        self.open = Some(open);
        events.push(MessagesEvent::ContentBlockStart { index: self.index, content_block });
    }

    fn delta(&self, delta: BlockDelta) -> MessagesEvent {
        MessagesEvent::ContentBlockDelta { index: self.index, delta }
    }

    fn close(&mut self, events: &mut Vec<MessagesEvent>) {
        let Some(open) = self.open.take() else { return };
        if let Open::Thinking(text) = open {
            events.push(self.delta(BlockDelta::SignatureDelta { signature: signature(&text, self.shown) }));
        }
        events.push(MessagesEvent::ContentBlockStop { index: self.index });
        self.index += 1;
    }

    fn end(&mut self, end: End, events: &mut Vec<MessagesEvent>) {
        self.close(events);
        let stop_sequence = match end.stop {
            Some(StopCause::Text(index)) if end.reason == EndReason::Stop => self.stop_sequences.get(index),
            _ => None,
        };
        let stop_reason = match end.reason {
            EndReason::Calls => "tool_use",
            EndReason::Stop if stop_sequence.is_some() => "stop_sequence",
            EndReason::Stop => "end_turn",
            // The context had no room for all tokens that were asked for.
            EndReason::Length if end.counts.generated < self.max_tokens => "model_context_window_exceeded",
            EndReason::Length => "max_tokens",
        };
        let delta = StopDelta { stop_reason: stop_reason.into(), stop_sequence: stop_sequence.cloned() };
        events.push(MessagesEvent::MessageDelta { delta, usage: end.counts.into() });
        events.push(MessagesEvent::MessageStop);
    }
}

/// Reasoning that is not shown travels in its signature, so that the next request can bring it back.
fn signature(text: &str, shown: Shown) -> String {
    match shown {
        Shown::Signed => format!("{CARRIED}{}", STANDARD.encode(text)),
        _ => STANDARD.encode(Sha256::digest(text.as_bytes())),
    }
}

/// A message that the events of a stream are folded into.
#[derive(Default)]
pub struct Folded {
    message: Option<MessagesAnswer>,
    /// The input of the open call.
    input: String,
}

impl Folded {
    pub fn add(&mut self, event: MessagesEvent) {
        match (event, &mut self.message) {
            (MessagesEvent::MessageStart { message }, _) => self.message = Some(message),
            (MessagesEvent::ContentBlockStart { content_block, .. }, Some(message)) => message.content.push(content_block),
            (MessagesEvent::ContentBlockDelta { delta, .. }, Some(message)) => grow(message.content.last_mut(), delta, &mut self.input),
            (MessagesEvent::ContentBlockStop { .. }, Some(message)) => close(&mut message.content, &std::mem::take(&mut self.input)),
            (MessagesEvent::MessageDelta { delta, usage }, Some(message)) => {
                (message.stop_reason, message.stop_sequence) = (Some(delta.stop_reason), delta.stop_sequence);
                message.usage = usage;
            }
            _ => {}
        }
    }

    /// `None`: the stream has not begun.
    pub fn into_message(self) -> Option<MessagesAnswer> {
        self.message
    }
}

fn grow(block: Option<&mut AnswerBlock>, delta: BlockDelta, open_input: &mut String) {
    match (block, delta) {
        (Some(AnswerBlock::Text { text }), BlockDelta::TextDelta { text: more }) => text.push_str(&more),
        (Some(AnswerBlock::Thinking { thinking, .. }), BlockDelta::ThinkingDelta { thinking: more }) => thinking.push_str(&more),
        (Some(AnswerBlock::Thinking { signature, .. }), BlockDelta::SignatureDelta { signature: whole }) => *signature = whole,
        (Some(AnswerBlock::ToolUse { .. }), BlockDelta::InputJsonDelta { partial_json }) => open_input.push_str(&partial_json),
        _ => {}
    }
}

/// Reads the input of a call that has ended. One that was cut off is no object, and the call is left out.
fn close(content: &mut Vec<AnswerBlock>, text: &str) {
    let Some(AnswerBlock::ToolUse { input, .. }) = content.last_mut() else { return };
    match arguments(text) {
        Some(object) => *input = Value::Object(object),
        _ if text.is_empty() => {}
        _ => drop(content.pop()),
    }
}

#[cfg(test)]
#[path = "draft_tests.rs"]
mod tests;

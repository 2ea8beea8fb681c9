//! Builds an answer: turns its pieces into the events of a stream, or into the blocks of a message.

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
use serving::{Answer, Counts, End, EndReason, StopCause};

pub struct MessageBuilder {
    pub id: String,
    pub model: String,
    pub shown: Shown,
    pub stop_sequences: Vec<String>,
    pub max_tokens: u32,
    /// The index of the open block, or of the next one.
    index: usize,
    open: Option<OpenBlock>,
}

/// The block that is being written.
enum OpenBlock {
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

impl MessageBuilder {
    pub fn new(id: String, model: String, shown: Shown, stop_sequences: Vec<String>, max_tokens: u32) -> Self {
        Self { id, model, shown, stop_sequences, max_tokens, index: 0, open: None }
    }

    /// Returns the event that opens the stream. It counts the prompt.
    pub fn start(&self, Counts { prompt, cached, .. }: Counts) -> MessagesEvent {
        MessagesEvent::MessageStart { message: self.answer(Counts { prompt, cached: cached.min(prompt), ..Counts::default() }) }
    }

    /// Returns the message of a whole answer.
    pub fn message(&self, answer: Answer, counts: Counts) -> MessagesAnswer {
        let StopDelta { stop_reason, stop_sequence } = self.stop(End { reason: answer.reason, stop: answer.stop }, counts);
        let content = self.content(answer.pieces);
        MessagesAnswer { content, stop_reason: Some(stop_reason), stop_sequence, ..self.answer(counts) }
    }

    /// Returns a message without content.
    fn answer(&self, counts: Counts) -> MessagesAnswer {
        MessagesAnswer {
            id: self.id.clone(),
            kind: "message".into(),
            role: "assistant".into(),
            model: self.model.clone(),
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: counts.into(),
        }
    }

    /// Returns the blocks of a whole answer. If the answer was cut within the input of a call, the call is left out.
    fn content(&self, pieces: Vec<Piece>) -> Vec<AnswerBlock> {
        let mut content = Vec::new();
        for piece in pieces {
            match (piece, content.last_mut()) {
                (Piece::Text(piece), Some(AnswerBlock::Text { text })) => text.push_str(&piece.text),
                (Piece::Text(piece), _) if !piece.text.is_empty() => content.push(AnswerBlock::Text { text: piece.text }),
                (Piece::Reasoning(text), Some(AnswerBlock::Thinking { thinking, .. })) => thinking.push_str(&text),
                (Piece::Reasoning(thinking), _) if !thinking.is_empty() && self.shown != Shown::No => {
                    content.push(AnswerBlock::Thinking { thinking, signature: String::new() });
                }
                (Piece::CallStart { name, .. }, _) => content.push(tool_use(name)),
                (Piece::Arguments { text, .. }, Some(AnswerBlock::ToolUse { input, .. })) => match arguments(&text) {
                    Some(object) => *input = Value::Object(object),
                    None if text.is_empty() => {}
                    None => drop(content.pop()),
                },
                _ => {}
            }
        }
        for block in &mut content {
            if let AnswerBlock::Thinking { thinking, signature } = block {
                *signature = signed(thinking, self.shown);
                if self.shown != Shown::Whole {
                    thinking.clear();
                }
            }
        }
        content
    }

    /// Converts a piece of the answer to events.
    pub fn piece(&mut self, piece: Piece) -> Vec<MessagesEvent> {
        let mut events = Vec::new();
        match piece {
            Piece::Text(piece) if !piece.text.is_empty() => self.text(piece.text, &mut events),
            Piece::Reasoning(text) if !text.is_empty() && self.shown != Shown::No => self.thinking(&text, &mut events),
            Piece::CallStart { name, .. } => {
                self.close(&mut events);
                self.begin(OpenBlock::Call, tool_use(name), &mut events);
            }
            Piece::Arguments { text, .. } if !text.is_empty() => {
                events.push(self.delta(BlockDelta::InputJsonDelta { partial_json: text }));
            }
            _ => {}
        }
        events
    }

    fn text(&mut self, text: String, events: &mut Vec<MessagesEvent>) {
        if !matches!(self.open, Some(OpenBlock::Text)) {
            self.close(events);
            self.begin(OpenBlock::Text, AnswerBlock::Text { text: String::new() }, events);
        }
        events.push(self.delta(BlockDelta::TextDelta { text }));
    }

    fn thinking(&mut self, text: &str, events: &mut Vec<MessagesEvent>) {
        if !matches!(self.open, Some(OpenBlock::Thinking(_))) {
            self.close(events);
            let block = AnswerBlock::Thinking { thinking: String::new(), signature: String::new() };
            self.begin(OpenBlock::Thinking(String::new()), block, events);
        }
        if let Some(OpenBlock::Thinking(so_far)) = &mut self.open {
            so_far.push_str(text);
        }
        if self.shown == Shown::Whole {
            events.push(self.delta(BlockDelta::ThinkingDelta { thinking: text.to_owned() }));
        }
    }

    fn begin(&mut self, open: OpenBlock, content_block: AnswerBlock, events: &mut Vec<MessagesEvent>) {
        self.open = Some(open);
        events.push(MessagesEvent::ContentBlockStart { index: self.index, content_block });
    }

    fn delta(&self, delta: BlockDelta) -> MessagesEvent {
        MessagesEvent::ContentBlockDelta { index: self.index, delta }
    }

    fn close(&mut self, events: &mut Vec<MessagesEvent>) {
        let Some(open) = self.open.take() else { return };
        if let OpenBlock::Thinking(text) = open {
            events.push(self.delta(BlockDelta::SignatureDelta { signature: signed(&text, self.shown) }));
        }
        events.push(MessagesEvent::ContentBlockStop { index: self.index });
        self.index += 1;
    }

    /// Ends the answer. Returns the last events.
    pub fn end(&mut self, end: End, counts: Counts) -> Vec<MessagesEvent> {
        let mut events = Vec::new();
        self.close(&mut events);
        events.extend([MessagesEvent::MessageDelta { delta: self.stop(end, counts), usage: counts.into() }, MessagesEvent::MessageStop]);
        events
    }

    fn stop(&self, end: End, counts: Counts) -> StopDelta {
        let stop_sequence = match end.stop {
            Some(StopCause::Text(index)) if end.reason == EndReason::Stop => self.stop_sequences.get(index),
            _ => None,
        };
        let stop_reason = match end.reason {
            EndReason::Calls => "tool_use",
            EndReason::Stop if stop_sequence.is_some() => "stop_sequence",
            EndReason::Stop => "end_turn",
            // The context had no room for the requested number of tokens.
            EndReason::Length if counts.generated < self.max_tokens => "model_context_window_exceeded",
            EndReason::Length => "max_tokens",
        };
        StopDelta { stop_reason: stop_reason.into(), stop_sequence: stop_sequence.cloned() }
    }
}

fn tool_use(name: String) -> AnswerBlock {
    AnswerBlock::ToolUse { id: format!("toolu_{}", uuid::Uuid::new_v4().simple()), name, input: json!({}) }
}

/// Returns the signature. It carries reasoning that is not shown, so that the next request can send the reasoning back.
fn signed(text: &str, shown: Shown) -> String {
    match shown {
        Shown::Signed => format!("{CARRIED}{}", STANDARD.encode(text)),
        _ => STANDARD.encode(Sha256::digest(text.as_bytes())),
    }
}

#[cfg(test)]
#[path = "message_builder_tests.rs"]
mod tests;

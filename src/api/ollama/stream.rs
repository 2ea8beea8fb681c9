//! Streamed answers.

use std::collections::VecDeque;

use bytes::Bytes;
use serde::Serialize;

use super::answer_part::{AnswerPart, logprob, whole_call};
use super::error::error_line;
use super::lines::line;
use super::timing::Timings;
use super::types::common::End;
use chat::Piece;
use http::choices::{Choices, FunctionCall};
use http::stream::Frames;
use serving::Output;

/// Makes an endpoint's objects from pieces of an answer.
pub trait AnswerFormat: 'static {
    type Object: Serialize;
    /// Makes the object of a piece or of a whole answer. `end` is set in the last object.
    fn object(&mut self, said: AnswerPart, end: Option<End>) -> Self::Object;
    /// Records a piece before its object is made.
    fn hear(&mut self, said: &AnswerPart);
    /// Prepares the last object, once the whole text is known.
    fn finish(&mut self) -> impl Future<Output = ()>;
}

/// Streams an answer as lines.
pub struct AnswerLines<W> {
    choices: Choices,
    clock: Timings,
    words: W,
    /// The call that is being written, and the number of calls before it.
    call: Option<FunctionCall>,
    num_calls: usize,
    ready: VecDeque<Bytes>,
    has_ended: bool,
}

impl<W: AnswerFormat> AnswerLines<W> {
    pub fn new(choices: Choices, clock: Timings, words: W) -> Self {
        Self { choices, clock, words, call: None, num_calls: 0, ready: VecDeque::new(), has_ended: false }
    }

    fn say(&mut self, said: AnswerPart) {
        self.words.hear(&said);
        let object = self.words.object(said, None);
        self.ready.push_back(line(&object));
    }

    /// Sends the call, which goes out whole.
    fn end_call(&mut self) {
        let Some(call) = self.call.take() else { return };
        let index = self.num_calls;
        self.num_calls += 1;
        if let Some(call) = whole_call(index, call) {
            self.say(AnswerPart { calls: vec![call], ..AnswerPart::default() });
        }
    }

    fn take(&mut self, piece: Piece) {
        if !matches!(piece, Piece::Arguments { .. }) {
            self.end_call();
        }
        match piece {
            Piece::Prompt(_) => {}
            Piece::Text(text) => {
                let logprobs = text.tokens.into_iter().map(logprob).collect();
                self.say(AnswerPart { text: text.text, logprobs, ..AnswerPart::default() });
            }
            Piece::Reasoning(thinking) => self.say(AnswerPart { thinking, ..AnswerPart::default() }),
            Piece::CallStart { name, .. } => self.call = Some(FunctionCall { name, ..FunctionCall::default() }),
            Piece::Arguments { text, .. } => self.call.iter_mut().for_each(|call| call.arguments.push_str(&text)),
        }
    }
}

impl<W: AnswerFormat> Frames for AnswerLines<W> {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Some(line);
            }
            if self.has_ended {
                return None;
            }
            match self.choices.next().await {
                Some(Ok((_, Output::Piece(piece)))) => self.take(piece),
                Some(Ok((_, Output::End(end)))) => {
                    self.end_call();
                    self.words.finish().await;
                    let object = self.words.object(AnswerPart::default(), Some(self.clock.end(end.reason, end.counts)));
                    self.ready.push_back(line(&object));
                }
                Some(Err(error)) => {
                    self.has_ended = true;
                    self.ready.push_back(error_line(&error));
                }
                None => self.has_ended = true,
            }
        }
    }

    fn stall(&self) {
        self.choices.stall();
    }
}

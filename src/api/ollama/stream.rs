//! Answers as they are streamed.

use std::collections::VecDeque;

use bytes::Bytes;
use serde::Serialize;

use super::error::error_line;
use super::lines::line;
use super::said::{Said, logprob, whole_call};
use super::timing::Clock;
use super::types::common::End;
use chat::Piece;
use http::choices::{Choices, FunctionCall};
use http::stream::Frames;
use serving::Output;

/// An endpoint's objects.
pub trait Words: 'static {
    type Object: Serialize;
    /// The object of a piece, or of a whole answer. `end`: it is the last one.
    fn object(&mut self, said: Said, end: Option<End>) -> Self::Object;
    /// Takes note of a piece, before its object is made.
    fn hear(&mut self, said: &Said);
    /// Prepares the last object. Only then the whole text is known.
    fn finish(&mut self) -> impl Future<Output = ()>;
}

/// An answer as lines.
pub struct Lines<W> {
    choices: Choices,
    clock: Clock,
    words: W,
    /// The call that the answer is writing, and how many came before it.
    call: Option<FunctionCall>,
    num_calls: usize,
    ready: VecDeque<Bytes>,
    has_ended: bool,
}

impl<W: Words> Lines<W> {
    pub fn new(choices: Choices, clock: Clock, words: W) -> Self {
        Self { choices, clock, words, call: None, num_calls: 0, ready: VecDeque::new(), has_ended: false }
    }

    fn say(&mut self, said: Said) {
        self.words.hear(&said);
        let object = self.words.object(said, None);
        self.ready.push_back(line(&object));
    }

    /// A call is sent as a whole.
    fn end_call(&mut self) {
        let Some(call) = self.call.take() else { return };
        let index = self.num_calls;
        self.num_calls += 1;
        if let Some(call) = whole_call(index, call) {
            self.say(Said { calls: vec![call], ..Said::default() });
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
                self.say(Said { text: text.text, logprobs, ..Said::default() });
            }
            Piece::Reasoning(thinking) => self.say(Said { thinking, ..Said::default() }),
            Piece::CallStart { name, .. } => self.call = Some(FunctionCall { name, ..FunctionCall::default() }),
            Piece::Arguments { text, .. } => self.call.iter_mut().for_each(|call| call.arguments.push_str(&text)),
        }
    }
}

impl<W: Words> Frames for Lines<W> {
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
                    let object = self.words.object(Said::default(), Some(self.clock.end(end.reason, end.counts)));
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

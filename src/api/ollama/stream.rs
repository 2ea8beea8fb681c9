//! Streamed answers.

use bytes::Bytes;
use serde::Serialize;

use super::answer_part::{AnswerPart, logprob, whole_call};
use super::error::error_line;
use super::lines::line;
use super::timing::Timings;
use super::types::common::End;
use chat::Piece;
use http::error::ApiError;
use http::response_frames::StreamFormat;
use serving::FunctionCall;

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

/// The format of an answer's stream: a line per piece, and one per call, which is sent whole.
pub struct AnswerLines<W> {
    clock: Timings,
    words: W,
    /// The call that is being written, and the number of calls before it.
    call: Option<FunctionCall>,
    num_calls: usize,
}

impl<W: AnswerFormat> AnswerLines<W> {
    pub fn new(clock: Timings, words: W) -> Self {
        Self { clock, words, call: None, num_calls: 0 }
    }

    fn say(&mut self, said: AnswerPart) -> Bytes {
        self.words.hear(&said);
        line(&self.words.object(said, None))
    }

    /// Returns the line of the call that is being written, if it is complete.
    fn end_call(&mut self) -> Option<Bytes> {
        let call = self.call.take()?;
        let index = self.num_calls;
        self.num_calls += 1;
        whole_call(index, call).map(|call| self.say(AnswerPart { calls: vec![call], ..AnswerPart::default() }))
    }
}

impl<W: AnswerFormat> StreamFormat for AnswerLines<W> {
    fn piece(&mut self, _choice: usize, piece: Piece) -> Vec<Bytes> {
        let call = if matches!(piece, Piece::Arguments { .. }) { None } else { self.end_call() };
        let said = match piece {
            Piece::Prompt(_) => None,
            Piece::Text(text) => {
                let logprobs = text.tokens.into_iter().map(logprob).collect();
                Some(AnswerPart { text: text.text, logprobs, ..AnswerPart::default() })
            }
            Piece::Reasoning(thinking) => Some(AnswerPart { thinking, ..AnswerPart::default() }),
            Piece::CallStart { name, .. } => {
                self.call = Some(FunctionCall { name, ..FunctionCall::default() });
                None
            }
            Piece::Arguments { text, .. } => {
                self.call.iter_mut().for_each(|call| call.arguments.push_str(&text));
                None
            }
        };
        call.into_iter().chain(said.map(|said| self.say(said))).collect()
    }

    async fn end(&mut self, _choice: usize, end: serving::End) -> Vec<Bytes> {
        let call = self.end_call();
        self.words.finish().await;
        let object = self.words.object(AnswerPart::default(), Some(self.clock.end(end.reason)));
        call.into_iter().chain([line(&object)]).collect()
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Bytes> {
        vec![error_line(error)]
    }
}

//! Streams a response in a dialect's format. The dialects differ in the frames that they make; when these are made, how a stream ends and
//! how it fails is the same for all.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use super::client_stream::ClientStream;
use super::error::ApiError;
use super::stream::Frames;
use chat::Piece;
use serving::{End, NextOutput, Output, PromptProgress};

/// The time between two reports of the prompt's progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// Makes the frames of a response's stream.
pub trait StreamFormat: 'static {
    /// Returns the frames that open the stream of a response with `num_choices` choices.
    fn begin(&mut self, _num_choices: usize) -> Vec<Bytes> {
        Vec::new()
    }
    /// Receives the ids that the choice has generated since its previous output, if the request asks for them.
    fn ids(&mut self, _choice: usize, _ids: Vec<u32>) {}
    fn piece(&mut self, choice: usize, piece: Piece) -> Vec<Bytes>;
    /// Returns the last frames of a choice.
    fn end(&mut self, choice: usize, end: End) -> impl Future<Output = Vec<Bytes>>;
    /// Returns the frames that follow the end of every choice.
    fn close(&mut self) -> Vec<Bytes> {
        Vec::new()
    }
    /// Returns the last frames of a stream that fails.
    fn fail(&mut self, error: &ApiError) -> Vec<Bytes>;
    /// Returns the frame that reports the prompt's progress. `None` if the stream does not report it.
    fn progress(&mut self, _progress: PromptProgress) -> Option<Bytes> {
        None
    }
    /// Returns the frame to send after a silence, in place of the format's keep-alive frame.
    fn beat(&mut self) -> Option<Bytes> {
        None
    }
}

/// Streams a response in `format`.
pub fn frames(response: ClientStream, mut format: impl StreamFormat) -> impl Frames {
    let opening = format.begin(response.len());
    ResponseFrames { response, format, opening, told: None, has_ended: false }
}

/// Reads a response and makes frames of its outputs. The response lives as long as the reader, so a draining server waits for the last
/// frame.
struct ResponseFrames<F> {
    response: ClientStream,
    format: F,
    /// The frames that open the stream, until they are returned.
    opening: Vec<Bytes>,
    /// The progress that was reported last.
    told: Option<PromptProgress>,
    has_ended: bool,
}

impl<F: StreamFormat> ResponseFrames<F> {
    /// Returns the frame that reports the prompt's progress, if that has changed. Otherwise waits for the next output.
    async fn next_output(&mut self) -> Result<NextOutput<ApiError>, Bytes> {
        while let Some(progress) = self.response.ledger().prompt_progress() {
            if self.told != Some(progress) {
                let Some(frame) = self.format.progress(progress) else { break };
                self.told = Some(progress);
                return Err(frame);
            }
            if let Ok(next) = timeout(PROGRESS_EVERY, self.response.next()).await {
                return Ok(next);
            }
        }
        Ok(self.response.next().await)
    }
}

impl<F: StreamFormat> Frames for ResponseFrames<F> {
    async fn next(&mut self) -> Option<Vec<Bytes>> {
        let mut frames = std::mem::take(&mut self.opening);
        while frames.is_empty() && !self.has_ended {
            let next = match self.next_output().await {
                Ok(next) => next,
                Err(progress) => return Some(vec![progress]),
            };
            self.has_ended = !matches!(next, Some(Ok(_)));
            frames = match next {
                Some(Ok((choice, output))) => {
                    self.format.ids(choice, self.response.take_ids(choice));
                    match output {
                        Output::Pieces(pieces) => pieces.into_iter().flat_map(|piece| self.format.piece(choice, piece)).collect(),
                        Output::End(end) => self.format.end(choice, end).await,
                    }
                }
                Some(Err(error)) => self.format.fail(&error),
                None => self.format.close(),
            };
        }
        (!frames.is_empty()).then_some(frames)
    }

    fn beat(&mut self) -> Option<Bytes> {
        self.format.beat()
    }

    fn stall(&self) {
        self.response.stall();
    }
}

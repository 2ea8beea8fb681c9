//! A running response: the generations of its choices, whose outputs are read as they arrive or folded into whole answers.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::answer::{self, Answer};
use super::error::Failure;
use super::generation::Generation;
use super::ledger::Ledger;
use super::output::Output;
use chat::Piece;

/// The next output of any choice, with the choice's index. `None` once every choice has ended.
pub type NextOutput<E> = Option<Result<(usize, Output), E>>;

/// The running choices of a response. Dropping this value cancels them.
pub struct ResponseStream<E> {
    /// The candidates of the first prompt, then those of the second, and so on.
    pub(super) generations: Vec<Generation>,
    /// The generation that is asked first for the next output, so that every choice gets its turn.
    pub(super) next: usize,
    pub(super) num_choices: usize,
    pub(super) best_of: usize,
    /// Each prompt as text. Empty unless the request asks for an echo.
    pub(super) echoes: Vec<String>,
    /// The token ids of each prompt. Empty unless the request asks for them.
    pub(super) prompt_ids: Vec<Vec<u32>>,
    pub(super) ledger: Ledger,
    /// Ends the response early: its deadline, or the end of the server. `None` once it has ended the response.
    pub(super) until: Option<Pin<Box<dyn Future<Output = E>>>>,
}

/// Why a response ends without its last outputs.
#[derive(Debug)]
pub enum StreamError<E> {
    Failed(Failure),
    /// By its deadline, or by the end of the server.
    Interrupted(E),
}

impl<E> ResponseStream<E> {
    /// The number of choices of a streamed response.
    #[expect(clippy::len_without_is_empty, reason = "a request has at least one choice")]
    pub fn len(&self) -> usize {
        self.generations.len() / self.best_of * self.num_choices
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The text of each choice's prompt. Empty unless the request asks for an echo.
    pub fn echoes(&self) -> Vec<String> {
        self.echoes.iter().flat_map(|echo| std::iter::repeat_n(echo.clone(), self.num_choices)).collect()
    }

    /// The token ids of each choice's prompt. Empty unless the request asks for them.
    pub fn prompt_ids(&self) -> Vec<Vec<u32>> {
        self.prompt_ids.iter().flat_map(|ids| std::iter::repeat_n(ids.clone(), self.num_choices)).collect()
    }

    /// Takes the ids that a choice has generated since the last call. Empty unless the request asks for them.
    pub fn take_ids(&mut self, choice: usize) -> Vec<u32> {
        self.generations[choice].take_ids()
    }

    /// Waits for the next output. Cancel safe.
    pub async fn next(&mut self) -> NextOutput<StreamError<E>> {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<NextOutput<StreamError<E>>> {
        if let Some(until) = &mut self.until
            && let Poll::Ready(cause) = until.as_mut().poll(context)
        {
            self.until = None;
            return Poll::Ready(Some(Err(StreamError::Interrupted(cause))));
        }
        let count = self.generations.len();
        let mut is_running = false;
        for index in (self.next..count).chain(0..self.next.min(count)) {
            match self.generations[index].poll(context) {
                Poll::Pending => is_running = true,
                Poll::Ready(None) => {}
                Poll::Ready(Some(Err(failure))) => return Poll::Ready(Some(Err(StreamError::Failed(failure)))),
                Poll::Ready(Some(Ok(output))) => {
                    self.next = index + 1;
                    self.share_prompt(index, &output);
                    return Poll::Ready(Some(Ok((index, output))));
                }
            }
        }
        if is_running { Poll::Pending } else { Poll::Ready(None) }
    }

    /// Gives a prompt's tokens to the other candidates of the prompt, which wait for them.
    fn share_prompt(&mut self, index: usize, output: &Output) {
        if let Output::Pieces(pieces) = output
            && let [tokens @ Piece::Prompt(_)] = &pieces[..]
            && index.is_multiple_of(self.best_of)
        {
            self.generations[index + 1..index + self.best_of].iter_mut().for_each(|generation| generation.give_prompt(tokens));
        }
    }

    /// Waits for every choice and returns them in order.
    pub async fn collect(&mut self) -> Result<Vec<Answer>, StreamError<E>> {
        let mut answers = vec![Answer::default(); self.generations.len()];
        while let Some(next) = self.next().await {
            let (index, output) = next?;
            answers[index].ids.append(&mut self.take_ids(index));
            answers[index].add(output);
        }
        Ok(answers.chunks(self.best_of).flat_map(|candidates| answer::best(candidates, self.num_choices)).collect())
    }
}

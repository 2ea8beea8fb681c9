//! Counts the tokens of an answer's reasoning while the model writes it.

use std::collections::VecDeque;

use super::answer_start::AnswerStart;
use super::bare_calls::partial;
use super::dialect::Thinking;

/// Counts one answer's tokens of reasoning. The tokens of the tags around the reasoning do not count.
#[derive(Clone, Debug)]
pub struct ReasoningMeter {
    open: &'static str,
    close: &'static str,
    place: MeterState,
    tokens: u32,
}

#[derive(Clone, Debug)]
enum MeterState {
    /// No reasoning now. `text` since the start may become the tag that opens reasoning. `again`: since the last reasoning, not since the
    /// start.
    Before {
        text: Vec<u8>,
        again: bool,
    },
    Inside(Tail),
    /// In the answer's text.
    Text,
}

/// The end of the reasoning so far, which may be the beginning of the closing tag.
#[derive(Clone, Debug, Default)]
struct Tail {
    bytes: Vec<u8>,
    /// The number of bytes at the start that belong to counted tokens.
    counted: usize,
    /// The lengths of the later tokens, which do not count yet [bytes].
    held: VecDeque<usize>,
}

impl ReasoningMeter {
    pub fn new(thinking: &'static Thinking, entry: AnswerStart) -> Self {
        let place = match entry {
            AnswerStart::Turn => MeterState::Before { text: Vec::new(), again: false },
            AnswerStart::Reasoning { .. } => MeterState::Inside(Tail::default()),
            AnswerStart::Text => MeterState::Text,
        };
        Self { open: thinking.open.trim(), close: thinking.close, place, tokens: 0 }
    }

    /// Takes the bytes of the next token.
    pub fn push(&mut self, token: &[u8]) {
        match &mut self.place {
            MeterState::Before { text, .. } => {
                text.extend_from_slice(token);
                self.before();
            }
            MeterState::Inside(tail) => {
                tail.bytes.extend_from_slice(token);
                tail.held.push_back(token.len());
                self.inside();
            }
            MeterState::Text => {}
        }
    }

    /// The number of tokens that certainly are reasoning.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// The number of tokens at the end of unfinished reasoning that may belong to the closing tag.
    pub fn held(&self) -> u32 {
        self.tail().map_or(0, |tail| tail.held.len() as u32)
    }

    /// The length of the closing tag's part that has been written, in bytes. `None` unless the model is reasoning.
    pub fn num_closing(&self) -> Option<usize> {
        self.tail().map(|tail| tail.bytes.len())
    }

    /// The missing rest of the tag that would reopen reasoning.
    pub fn reopening(&self) -> Option<&'static str> {
        let MeterState::Before { text, again: true } = &self.place else { return None };
        self.open.get(text.trim_ascii_start().len()..)
    }

    fn tail(&self) -> Option<&Tail> {
        if let MeterState::Inside(tail) = &self.place { Some(tail) } else { None }
    }

    fn before(&mut self) {
        let MeterState::Before { text, .. } = &self.place else { return };
        let text = text.trim_ascii_start();
        match text.strip_prefix(self.open.as_bytes()) {
            Some(rest) => {
                // A token that completes the tag and continues counts as part of the tag.
                self.place = MeterState::Inside(Tail { bytes: rest.to_vec(), counted: rest.len(), held: VecDeque::new() });
                self.inside();
            }
            None if self.open.as_bytes().starts_with(text) => {}
            None => self.place = MeterState::Text,
        }
    }

    fn inside(&mut self) {
        let (close, MeterState::Inside(tail)) = (self.close.as_bytes(), &mut self.place) else { return };
        let closed = tail.bytes.windows(close.len()).position(|window| window == close);
        let tag = closed.unwrap_or_else(|| tail.bytes.len() - partial(&tail.bytes, close));
        // A token that begins before the tag is reasoning.
        while tail.counted < tag
            && let Some(len) = tail.held.pop_front()
        {
            tail.counted += len;
            self.tokens += 1;
        }
        match closed {
            Some(at) => {
                self.place = MeterState::Before { text: tail.bytes.split_off(at + close.len()), again: true };
                self.before();
            }
            None => {
                tail.bytes.drain(..tag);
                tail.counted = tail.counted.saturating_sub(tag);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::THINKING;

    /// The number of tokens that are reasoning, and of those that may belong to the closing tag.
    fn counts(entry: AnswerStart, tokens: &[&str]) -> (u32, u32) {
        let mut meter = ReasoningMeter::new(&THINKING[1], entry);
        tokens.iter().for_each(|token| meter.push(token.as_bytes()));
        (meter.tokens(), meter.held())
    }

    #[test]
    fn the_tags_do_not_count() {
        let opened = AnswerStart::Reasoning { begun: false };
        for (entry, tokens, due) in [
            (opened, &["A", " b", "</think>", "\n\n", "c"][..], (2, 0)),
            (opened, &["A", " b", "</", "think", ">", "c"], (2, 0)),
            (opened, &["A", " b", "</", "think"], (2, 2)),
            (opened, &["A", " b", "</", "thin", "g", ">"], (6, 0)),
            (opened, &["A", " b.</", "think", ">", "c"], (2, 0)),
            (opened, &["A", "<", "</", "think", ">"], (2, 0)),
            (opened, &["</think>", "c"], (0, 0)),
            (AnswerStart::Turn, &["<think>", "\n", "A", "</think>", "c"], (2, 0)),
            (AnswerStart::Turn, &["\n", "<", "think", ">\n", "A", "</think>\n\n", "c"], (1, 0)),
            (AnswerStart::Turn, &["<think>A</think>c"], (0, 0)),
            (AnswerStart::Turn, &["A", "<think>", "b"], (0, 0)),
            (AnswerStart::Turn, &["<", "b", ">"], (0, 0)),
            (AnswerStart::Text, &["<think>", "b"], (0, 0)),
        ] {
            assert_eq!(counts(entry, tokens), due, "{tokens:?}");
        }
    }

    #[test]
    fn reasoning_that_begins_again_counts_on() {
        let tokens = ["<think>", "A", "</think>", "\n\n", "<think>", "B", "C", "</think>", "d", "<think>", "e"];
        assert_eq!(counts(AnswerStart::Turn, &tokens), (3, 0));
        let mut meter = ReasoningMeter::new(&THINKING[1], AnswerStart::Turn);
        for (token, missing) in
            [("", None), ("<think>", None), ("</think>", Some("<think>")), ("\n", Some("<think>")), ("<th", Some("ink>"))]
        {
            meter.push(token.as_bytes());
            assert_eq!(meter.reopening(), missing, "{token}");
        }
        meter.push(b"e");
        assert_eq!(meter.reopening(), None);
    }
}

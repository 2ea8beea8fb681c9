//! Turns the tokens of one generation into pieces, and counts them in its account.

use std::collections::VecDeque;

use super::detokenizer::{Decoded, Detokenizer};
use super::ledger::Account;
use super::output::EndReason;
use chat::{Parser, Piece, ReasoningMeter, Repeated, Text, TokenLogprob};
use scheduler::{FinishReason, NewSequence};

/// The texts that end a generation.
#[derive(Clone, Debug, Default)]
pub(super) struct StopTexts {
    pub(super) texts: Vec<String>,
    /// Whether the stop text stays in the answer.
    pub(super) kept: bool,
}

pub(super) struct Transcript {
    pub(super) wants_logprobs: bool,
    account: Account,
    detokenizer: Detokenizer,
    /// The number of tokens before which no stop text ends the generation.
    min_tokens: u32,
    /// Number of characters that were passed on.
    num_shown: usize,
    /// Tokens whose text was not passed on yet.
    pending: VecDeque<TokenLogprob>,
    /// `None` if everything is text.
    parser: Option<Parser>,
    /// `None` if there is no reasoning.
    meter: Option<ReasoningMeter>,
}

impl Transcript {
    pub(super) fn new(sequence: &NewSequence, stop: &StopTexts, parser: Option<Parser>, account: Account) -> Self {
        Self {
            account,
            wants_logprobs: sequence.num_logprobs.is_some(),
            detokenizer: Detokenizer::new(&stop.texts).keeping_stop(stop.kept),
            min_tokens: sequence.params.min_tokens,
            num_shown: 0,
            pending: VecDeque::new(),
            parser,
            meter: None,
        }
    }

    pub(super) fn with_meter(self, meter: Option<ReasoningMeter>) -> Self {
        Self { meter, ..self }
    }

    /// The index of the stop text that ended the generation.
    pub(super) fn stopped_by(&self) -> Option<usize> {
        self.detokenizer.found()
    }

    pub(super) fn has_parser(&self) -> bool {
        self.parser.is_some()
    }

    /// Number of characters of the text so far, including those held back.
    pub(super) fn num_decoded(&self) -> usize {
        self.num_shown + self.detokenizer.num_held()
    }

    /// Takes the log-probabilities of the token whose bytes come next.
    pub(super) fn add_token(&mut self, token: TokenLogprob) {
        self.pending.push_back(token);
    }

    /// The call of an answer that only repeats an answered call.
    pub(super) fn take_repeated(&mut self) -> Option<Repeated> {
        self.parser.as_mut().and_then(Parser::take_repeated)
    }

    /// Takes a token's bytes. Returns the pieces that it completes, and the end if a stop text is complete.
    pub(super) fn token(&mut self, bytes: &[u8]) -> (Vec<Piece>, Option<EndReason>) {
        self.account.count_generated();
        if let Some(meter) = &mut self.meter {
            let before = meter.tokens();
            meter.push(bytes);
            self.account.count_reasoning(meter.tokens() - before);
        }
        // A call ends where its grammar says. A stop text must not cut it.
        let unstoppable = self.account.generated_tokens() < self.min_tokens || self.parser.as_ref().is_some_and(Parser::is_calling);
        let decoded = if unstoppable { Decoded::Text(self.detokenizer.push_unstoppable(bytes)) } else { self.detokenizer.push(bytes) };
        match decoded {
            Decoded::Text(text) => {
                let text = self.with_tokens(text);
                (self.pieces(text), None)
            }
            Decoded::Stopped(text) => {
                let (pieces, reason) = self.stopped(text);
                (pieces, Some(reason))
            }
        }
    }

    /// Takes the end of the sequence. Returns the last pieces and how the generation ended.
    pub(super) fn finish(&mut self, reason: FinishReason) -> (Vec<Piece>, EndReason) {
        match self.detokenizer.finish() {
            Decoded::Text(text) => {
                let mut text = self.with_tokens(text);
                text.tokens.extend(self.pending.drain(..));
                self.last_pieces(text, reason)
            }
            Decoded::Stopped(text) => self.stopped(text),
        }
    }

    /// Ends the text before a stop text. Tokens that begin inside the stop text are not part of the answer.
    fn stopped(&mut self, text: String) -> (Vec<Piece>, EndReason) {
        let text = self.with_tokens(text);
        self.last_pieces(text, FinishReason::Stop)
    }

    fn last_pieces(&mut self, text: Text, reason: FinishReason) -> (Vec<Piece>, EndReason) {
        let mut pieces = self.pieces(text);
        let cut = reason == FinishReason::Length;
        // If the model itself ends within a closing tag, the begun tag counts as reasoning.
        self.account.count_reasoning(self.meter.take().filter(|_| !cut).map_or(0, |meter| meter.held()));
        pieces.extend(self.parser.iter_mut().flat_map(|parser| parser.finish(cut)));
        let called = self.parser.as_ref().is_some_and(Parser::has_called);
        let reason = match reason {
            FinishReason::Length => EndReason::Length,
            FinishReason::Stop if called => EndReason::Calls,
            FinishReason::Stop => EndReason::Stop,
        };
        (pieces, reason)
    }

    fn pieces(&mut self, text: Text) -> Vec<Piece> {
        match &mut self.parser {
            Some(parser) => parser.push(text),
            None if text == Text::default() => Vec::new(),
            None => vec![Piece::Text(text)],
        }
    }

    /// A text with the tokens that begin in it.
    fn with_tokens(&mut self, text: String) -> Text {
        if !self.wants_logprobs {
            return text.into();
        }
        self.num_shown += text.chars().count();
        let num_tokens = self.pending.iter().take_while(|token| token.offset < self.num_shown).count();
        Text { text, tokens: self.pending.drain(..num_tokens).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use logits::SamplingParams;

    fn transcript(stop: &[&str], min_tokens: u32) -> Transcript {
        let params = SamplingParams { min_tokens, ..SamplingParams::greedy() };
        let stop = StopTexts { texts: stop.iter().map(|&stop| stop.into()).collect(), kept: false };
        Transcript::new(&NewSequence::new(vec![1; 5], params, 100), &stop, None, Account::new(5))
    }

    fn text(text: &str) -> Vec<Piece> {
        vec![Piece::Text(text.to_owned().into())]
    }

    #[test]
    fn a_stop_text_ends_the_generation() {
        let mut transcript = transcript(&["END"], 0);
        assert_eq!(transcript.token(b"one E"), (text("one "), None));
        assert_eq!(transcript.token(b"ND two"), (vec![], Some(EndReason::Stop)));
        assert_eq!(transcript.account.generated_tokens(), 2);
    }

    #[test]
    fn the_end_returns_what_was_held_back() {
        let mut transcript = transcript(&["END"], 0);
        transcript.token(b"one EN");
        assert_eq!(transcript.finish(FinishReason::Length), (text("EN"), EndReason::Length));
    }

    #[test]
    fn a_stop_text_has_no_effect_before_the_least_number_of_tokens() {
        let mut transcript = transcript(&["x"], 2);
        assert_eq!(transcript.token(b"ax"), (text("ax"), None));
        assert_eq!(transcript.token(b"bx"), (text("b"), Some(EndReason::Stop)));
    }

    /// The text of the pieces, and the bytes of the tokens that come with it.
    fn shown(pieces: Vec<Piece>) -> (String, Vec<Vec<u8>>) {
        let mut texts = pieces.into_iter().map(|piece| if let Piece::Text(text) = piece { text } else { panic!("{piece:?}") });
        let Text { text, tokens } = texts.next().unwrap_or_default();
        assert_eq!(texts.next(), None);
        (text, tokens.into_iter().map(|token| token.bytes).collect())
    }

    fn push(transcript: &mut Transcript, bytes: &[u8]) -> (String, Vec<Vec<u8>>) {
        let offset = transcript.num_decoded();
        transcript.add_token(TokenLogprob { bytes: bytes.to_vec(), offset, logprob: Some(0.0), top: Vec::new(), id: 0 });
        shown(transcript.token(bytes).0)
    }

    #[test]
    fn a_token_comes_with_the_text_that_it_begins_in() {
        let mut transcript = Transcript { wants_logprobs: true, ..transcript(&["END"], 0) };
        assert_eq!(push(&mut transcript, "aé".as_bytes()), ("aé".into(), vec!["aé".as_bytes().to_vec()]));
        assert_eq!(push(&mut transcript, &[0xe2, 0x82]), (String::new(), vec![]), "a part of a character");
        assert_eq!(push(&mut transcript, &[0xac]), ("€".into(), vec![vec![0xe2, 0x82], vec![0xac]]));
        assert_eq!(transcript.pending.len(), 0);
        assert_eq!(push(&mut transcript, b"xE"), ("x".into(), vec![b"xE".to_vec()]));
        assert_eq!(push(&mut transcript, b"N"), (String::new(), vec![]), "it may be the stop text");
        assert_eq!(push(&mut transcript, b"D!"), (String::new(), vec![]), "the tokens of the stop text are not output");
    }

    #[test]
    fn the_end_leaves_no_token_behind() {
        let mut transcript = Transcript { wants_logprobs: true, ..transcript(&["END"], 0) };
        assert_eq!(push(&mut transcript, b"x E"), ("x ".into(), vec![b"x E".to_vec()]));
        assert_eq!(push(&mut transcript, b"N").1.len(), 0);
        assert_eq!(push(&mut transcript, b"").1.len(), 0, "a token without text");
        let (text, tokens) = shown(transcript.finish(FinishReason::Length).0);
        assert_eq!((text.as_str(), tokens.len()), ("EN", 2));
    }
}

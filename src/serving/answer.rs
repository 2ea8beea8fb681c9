//! Complete answers, assembled from a choice's outputs.

use super::output::{EndReason, Output, StopCause};
use chat::{Piece, Text, TokenLogprob};

/// A complete choice.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The prompt's tokens, if they were requested.
    pub prompt: Vec<TokenLogprob>,
    /// The other pieces in order. Adjacent pieces of one kind and one call are joined.
    pub pieces: Vec<Piece>,
    pub reason: EndReason,
    /// The requested stop condition that ended the choice, if one did.
    pub stop: Option<StopCause>,
    /// The generated token ids, if they were requested.
    pub ids: Vec<u32>,
}

#[derive(Clone, Debug, Default)]
pub struct FunctionCall {
    pub name: String,
    pub arguments: String,
}

impl Answer {
    pub fn add(&mut self, output: Output) {
        match output {
            Output::Pieces(pieces) => pieces.into_iter().for_each(|piece| self.add_piece(piece)),
            Output::End(end) => (self.reason, self.stop) = (end.reason, end.stop),
        }
    }

    pub fn add_piece(&mut self, piece: Piece) {
        match (self.pieces.last_mut(), piece) {
            (_, Piece::Prompt(tokens)) => self.prompt = tokens,
            (Some(Piece::Text(text)), Piece::Text(more)) => append(text, more),
            (Some(Piece::Reasoning(text)), Piece::Reasoning(more)) => text.push_str(&more),
            (Some(Piece::Arguments { text, .. }), Piece::Arguments { text: more, .. }) => text.push_str(&more),
            (_, piece) => self.pieces.push(piece),
        }
    }

    /// Takes the pieces, by their kind: the text, the reasoning and the calls.
    pub fn take_by_kind(&mut self) -> (Text, String, Vec<FunctionCall>) {
        let (mut shown, mut reasoning, mut calls) = (Text::default(), String::new(), Vec::<FunctionCall>::new());
        for piece in std::mem::take(&mut self.pieces) {
            match piece {
                Piece::Prompt(_) => {}
                Piece::Text(text) => append(&mut shown, text),
                Piece::Reasoning(text) => reasoning.push_str(&text),
                Piece::CallStart { name, .. } => calls.push(FunctionCall { name, ..FunctionCall::default() }),
                Piece::Arguments { text, .. } => calls.iter_mut().last().into_iter().for_each(|call| call.arguments.push_str(&text)),
            }
        }
        (shown, reasoning, calls)
    }

    fn mean_logprob(&self) -> f64 {
        let texts = self.pieces.iter().filter_map(|piece| if let Piece::Text(text) = piece { Some(text) } else { None });
        let logprobs = || texts.clone().flat_map(|text| &text.tokens);
        let sum: f64 = logprobs().filter_map(|token| token.logprob).map(f64::from).sum();
        match logprobs().count() {
            0 => f64::NEG_INFINITY,
            count => sum / count as f64,
        }
    }
}

fn append(text: &mut Text, mut more: Text) {
    text.text.push_str(&more.text);
    text.tokens.append(&mut more.tokens);
}

/// The `count` answers with the greatest log-probability per token, the best first. If all are requested, the order is unchanged.
pub(super) fn best(candidates: &[Answer], count: usize) -> Vec<Answer> {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    if count < candidates.len() {
        order.sort_by(|&a, &b| candidates[b].mean_logprob().total_cmp(&candidates[a].mean_logprob()));
    }
    order.truncate(count);
    order.into_iter().map(|index| candidates[index].clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str, logprobs: &[f32]) -> Answer {
        let token = |&logprob| TokenLogprob { bytes: Vec::new(), offset: 0, logprob: Some(logprob), top: Vec::new(), id: 0 };
        let text = Text { text: text.into(), tokens: logprobs.iter().map(token).collect() };
        Answer { pieces: vec![Piece::Text(text)], ..Answer::default() }
    }

    #[test]
    fn the_best_answers_are_the_likeliest_per_token() {
        let all = [answer("long", &[-0.5, -0.5, -0.5]), answer("empty", &[]), answer("short", &[-1.0]), answer("like long", &[-0.5])];
        let texts = |count| best(&all, count).into_iter().map(|mut answer| answer.take_by_kind().0.text).collect::<Vec<_>>();
        assert_eq!(texts(1), ["long"]);
        assert_eq!(texts(3), ["long", "like long", "short"]);
        assert_eq!(texts(4), ["long", "empty", "short", "like long"], "nothing is left out, so the order stays");
    }

    #[test]
    fn pieces_that_belong_together_are_joined_in_order() {
        let text = |text: &str| Piece::Text(text.to_owned().into());
        let start = |call: usize| Piece::CallStart { call, name: "f".into() };
        let arguments = |call: usize, text: &str| Piece::Arguments { call, text: text.into() };
        let mut answer = Answer::default();
        let pieces = [
            Piece::Reasoning("h".into()),
            Piece::Reasoning("m".into()),
            text("a"),
            start(0),
            arguments(0, "{"),
            arguments(0, "}"),
            text("b"),
        ];
        pieces.into_iter().for_each(|piece| answer.add_piece(piece));
        assert_eq!(answer.pieces, [Piece::Reasoning("hm".into()), text("a"), start(0), arguments(0, "{}"), text("b")]);
        let (shown, reasoning, calls) = answer.take_by_kind();
        assert_eq!((shown.text.as_str(), reasoning.as_str(), calls[0].arguments.as_str()), ("ab", "hm", "{}"));
    }
}

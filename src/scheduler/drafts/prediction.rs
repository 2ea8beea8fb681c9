//! Drafts from the answer that the client predicted.
//!
//! The answer is aligned with the prediction: at the beginning, and again after each difference, as soon as its last tokens occur in the
//! prediction. Of several places, the first after the last aligned one counts, because both texts go forward.

use std::sync::Arc;

use super::drafter::{Drafter, DrafterKind, History};
use super::ngram::NgramIndex;

/// Support of a prediction before any of it came true, because an answer is likely to begin as predicted.
const TRUST: usize = 9;
/// The longest match that is compared [tokens].
const MAX_MATCH: usize = 32;

#[derive(Debug)]
pub struct Prediction {
    tokens: Arc<[u32]>,
    index: NgramIndex,
    /// The place in the prediction that follows the answer so far.
    next: usize,
    /// Number of tokens since the alignment that were equal. None if the answer has left the prediction.
    num_equal: Option<usize>,
    /// Number of the answer's tokens seen.
    num_seen: usize,
}

impl Prediction {
    pub fn new(tokens: Arc<[u32]>) -> Self {
        Self { tokens, index: NgramIndex::default(), next: 0, num_equal: Some(0), num_seen: 0 }
    }

    fn follow(&mut self, id: u32) {
        let is_equal = self.tokens.get(self.next) == Some(&id);
        self.next += usize::from(is_equal);
        self.num_equal = self.num_equal.filter(|_| is_equal).map(|count| count + 1);
    }

    /// Looks for the end of `answer` in the prediction.
    fn align(&mut self, answer: &[u32]) {
        let [.., first, second] = *answer else { return };
        let matched = |position: usize| {
            let pairs = self.tokens[..position].iter().rev().zip(answer.iter().rev());
            pairs.take(MAX_MATCH).take_while(|(a, b)| a == b).count()
        };
        let places = self.index.candidates(first, second).map(|position| (position, matched(position))).filter(|(_, matched)| *matched > 1);
        // The longest match, then the nearest place that lies ahead, then the nearest one behind.
        let best = places.max_by_key(|&(position, matched)| {
            let is_ahead = position >= self.next;
            (matched, is_ahead, std::cmp::Reverse(position.abs_diff(self.next)))
        });
        if let Some((position, matched)) = best {
            (self.next, self.num_equal) = (position, Some(matched));
        }
    }
}

impl Drafter for Prediction {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Prediction
    }

    fn propose(&mut self, history: History<'_>, most: usize, out: &mut Vec<u32>) -> usize {
        self.index.add(self.tokens.len(), |index| self.tokens[index]);
        history.generated[self.num_seen..].iter().for_each(|&id| self.follow(id));
        self.num_seen = history.generated.len();
        if self.num_equal.is_none() {
            self.align(history.generated);
        }
        let Some(num_equal) = self.num_equal else { return 0 };
        out.extend(self.tokens[self.next..].iter().take(most));
        num_equal + TRUST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposed(drafter: &mut Prediction, answer: &[u32]) -> Vec<u32> {
        let mut out = Vec::new();
        drafter.propose(History { prompt: &[7; 3], generated: answer }, 3, &mut out);
        out
    }

    #[test]
    fn the_answer_is_followed_and_found_again_after_a_difference() {
        let mut drafter = Prediction::new((10..30).collect());
        assert_eq!(proposed(&mut drafter, &[]), [10, 11, 12]);
        assert_eq!(proposed(&mut drafter, &[10, 11]), [12, 13, 14]);
        assert_eq!(proposed(&mut drafter, &[10, 11, 99]), []);
        assert_eq!(proposed(&mut drafter, &[10, 11, 99, 14]), []);
        assert_eq!(proposed(&mut drafter, &[10, 11, 99, 14, 15]), [16, 17, 18]);
        assert_eq!(proposed(&mut drafter, &[10, 11, 99, 14, 15, 16, 17, 18]), [19, 20, 21]);
        let all: Vec<u32> = [10, 11, 99].into_iter().chain(14..30).collect();
        assert_eq!(proposed(&mut drafter, &all), []);
    }

    #[test]
    fn of_equal_places_the_next_one_ahead_counts() {
        let mut drafter = Prediction::new([1, 2, 50, 1, 2, 51, 1, 2, 52].into());
        assert_eq!(proposed(&mut drafter, &[1, 2, 50, 1, 9]), []);
        assert_eq!(proposed(&mut drafter, &[1, 2, 50, 1, 9, 1, 2]), [51, 1, 2]);
    }
}

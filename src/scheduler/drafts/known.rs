//! Drafts from a continuation that is known beforehand, each right with a given probability. Measurements use it to tell speed from
//! acceptance.

use std::sync::Arc;

use super::drafter::{Drafter, DrafterKind, History};

/// The continuation, and how often its tokens are drafted right.
#[derive(Clone, Debug)]
pub struct KnownAnswer {
    pub tokens: Arc<[u32]>,
    /// The probability that a drafted token is right [0..=1].
    pub accept: f64,
}

impl Drafter for KnownAnswer {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Known
    }

    fn propose(&mut self, history: History<'_>, most: usize, out: &mut Vec<u32>) -> usize {
        let start = history.generated.len().min(self.tokens.len());
        let drafted = |(at, &id): (usize, &u32)| {
            let is_right = logits::rng::uniform(0, (start + at) as u32) < self.accept;
            if is_right { id } else { id.saturating_sub(1).max(u32::from(id == 0)) }
        };
        out.extend(self.tokens[start..].iter().enumerate().take(most).map(drafted));
        usize::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_are_right_as_often_as_asked() {
        let tokens: Arc<[u32]> = (0..10_000).map(|i| i % 91).collect();
        for accept in [0.0, 0.7, 1.0] {
            let (mut drafter, mut out) = (KnownAnswer { tokens: tokens.clone(), accept }, Vec::new());
            drafter.propose(History { prompt: &[], generated: &[] }, 10_000, &mut out);
            let share = out.iter().zip(&*tokens).filter(|(a, b)| a == b).count() as f64 / 1e4;
            assert!((share - accept).abs() < 0.02, "{share} of {accept}");
        }
    }
}

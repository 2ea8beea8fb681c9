//! The positions in a sequence after which the recurrent state is kept.
//!
//! Three kinds of block borders get a checkpoint:
//!
//! - The last border of the tokens known so far. The next turn of the conversation continues there, and so does the sequence itself after a
//!   preemption. While the sequence generates, each such checkpoint replaces the one before.
//! - The end of the part that a sequence shares with an earlier one, because other sequences are likely to share it, too.
//! - Evenly spaced borders. Their distance grows with the sequence's length, so that a prompt has at most [`MOST`] of them.
//!
//! The cuts in a prompt do not change the bits of the results, because an engine's recurrence is defined row by row.

/// Blocks between the spaced borders of a short prompt. Longer prompts double the distance, as often as needed.
const DISTANCE: usize = 32;
/// The most spaced borders in a prompt.
const MOST: usize = 8;

/// The borders of a sequence with `len` tokens.
#[derive(Clone, Copy, Debug)]
pub struct Checkpoints {
    last: usize,
    branch: usize,
    distance: usize,
}

impl Checkpoints {
    /// `len`: number of tokens. `branch`: number of leading tokens shared with an earlier sequence.
    pub fn new(len: usize, branch: Option<usize>, block_size: usize) -> Self {
        let shortest = DISTANCE * block_size;
        let distance = shortest * (len / (shortest * MOST) + 1).next_power_of_two();
        Self { last: (len.max(1) - 1) / block_size * block_size, branch: branch.unwrap_or(0), distance }
    }

    /// The first border after `num_tokens` tokens, if there is one before the last token.
    pub fn behind(&self, num_tokens: usize) -> Option<usize> {
        let next = (num_tokens / self.distance + 1) * self.distance;
        [self.last, self.branch, next].into_iter().filter(|&border| border > num_tokens && border <= self.last).min()
    }

    /// Whether `num_tokens` is one of the evenly spaced borders.
    pub fn is_spaced(&self, num_tokens: usize) -> bool {
        num_tokens.is_multiple_of(self.distance)
    }

    pub fn contains(&self, num_tokens: usize) -> bool {
        num_tokens > 0 && self.behind(num_tokens - 1) == Some(num_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn borders(len: usize, branch: Option<usize>) -> Vec<usize> {
        let all = Checkpoints::new(len, branch, 4);
        let borders: Vec<usize> = std::iter::successors(all.behind(0), |&border| all.behind(border)).collect();
        assert!((0..len + 9).filter(|&at| all.contains(at)).eq(borders.iter().copied()));
        borders
    }

    #[test]
    fn a_short_prompt_has_its_last_border_and_its_branch() {
        assert!(borders(4, None).is_empty());
        assert_eq!(borders(5, None), [4]);
        assert_eq!(borders(30, None), [28]);
        assert_eq!(borders(30, Some(12)), [12, 28]);
        assert_eq!(borders(30, Some(28)), [28]);
    }

    #[test]
    fn a_long_prompt_has_borders_at_distances_that_grow_with_it() {
        assert_eq!(borders(300, None), [128, 256, 296]);
        assert_eq!(borders(257, Some(100)), [100, 128, 256]);
        for len in [1023, 1024, 5000, 131_072] {
            let all = borders(len, None);
            assert!((4..=MOST + 1).contains(&all.len()), "{len}: {all:?}");
        }
    }
}

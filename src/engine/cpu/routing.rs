//! Which rows go to which experts. An *assignment* is one row's use of one expert. Assignments are grouped by expert, so that a batch
//! reads each expert's weights once.

use std::ops::Range;

use super::simd::rows::Job;
use super::weights::Mat;
use model::{Experts, Weights};

pub struct Routing {
    /// [num_assignments] the row of each assignment
    pub tokens: Vec<usize>,
    /// [num_tokens, used] the assignments of each row, the likeliest expert first
    pub assignments: Vec<usize>,
    /// [experts] the assignments of each expert
    ranges: Vec<Range<usize>>,
}

impl Routing {
    /// `choices`: what [`choose`] gave for each row.
    pub fn new(choices: &[Vec<(usize, f32)>], experts: &Experts) -> Self {
        let mut counts = vec![0; experts.count];
        choices.iter().flatten().for_each(|(expert, _)| counts[*expert] += 1);
        let mut end = 0;
        let ranges: Vec<Range<usize>> = counts
            .into_iter()
            .map(|count| {
                end += count;
                end - count..end
            })
            .collect();
        let mut next: Vec<usize> = ranges.iter().map(|range| range.start).collect();
        let mut tokens = vec![0; end];
        let mut assignments = Vec::with_capacity(end);
        for (token, choice) in choices.iter().enumerate() {
            for (expert, _) in choice {
                tokens[next[*expert]] = token;
                assignments.push(next[*expert]);
                next[*expert] += 1;
            }
        }
        Self { tokens, assignments, ranges }
    }

    /// Jobs that multiply each expert's matrices with the rows of its assignments. The products of stack `i` go to output `i`.
    pub fn jobs<'a>(&self, weights: &'a Weights, stacks: &[&'a Mat]) -> Vec<Job<'a>> {
        let used = || self.ranges.iter().enumerate().filter(|(_, range)| !range.is_empty());
        let job = |out: usize, stack: &&'a Mat, (expert, range): (usize, &Range<usize>)| Job {
            matrix: stack.expert(weights, expert, self.ranges.len()),
            rows: range.clone(),
            out,
        };
        stacks.iter().enumerate().flat_map(|(out, stack)| used().map(move |group| job(out, stack, group))).collect()
    }
}

/// A row's experts with their weights, the likeliest first; among equals, the lower index first. The weights are the softmax over all
/// experts. If the model normalises them, the weights of the chosen experts add up to 1. If a score is not finite, every weight is NaN, so
/// that the fault stays visible in the logits.
pub fn choose(scores: &[f32], experts: &Experts) -> Vec<(usize, f32)> {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let is_finite = scores.iter().all(|score| score.is_finite());
    let total = if is_finite { scores.iter().map(|score| (score - max).exp()).sum() } else { f32::NAN };
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    order.truncate(experts.used);
    let weight = |expert: usize| (scores[expert] - max).exp() / total;
    let sum = if experts.normalise { order.iter().map(|&expert| weight(expert)).sum() } else { 1.0f32 };
    order.into_iter().map(|expert| (expert, weight(expert) / sum)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPERTS: Experts = Experts { count: 4, used: 2, ffn_dim: 0, shared_ffn_dim: 0, normalise: true };

    #[test]
    fn the_likeliest_are_chosen_and_their_weights_add_up() {
        let scores = [1.0f32, 3.0, 3.0, 2.0].map(f32::ln);
        let close = |got: Vec<(usize, f32)>, expected: [(usize, f32); 2]| {
            got.iter().zip(expected).all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-6) && got.len() == 2
        };
        assert!(close(choose(&scores, &EXPERTS), [(1, 0.5), (2, 0.5)]));
        assert!(close(choose(&scores, &Experts { normalise: false, ..EXPERTS }), [(1, 3.0 / 9.0), (2, 3.0 / 9.0)]));
        // exp alone would overflow
        assert!(close(choose(&[1000.0, -1000.0, 999.0, 0.0], &EXPERTS), [(0, 0.731_058_6), (2, 0.268_941_4)]));
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(choose(&[broken; 4], &EXPERTS).iter().all(|(_, weight)| weight.is_nan()), "{broken} stays visible");
            assert!(choose(&[1.0, broken, 2.0, 3.0], &EXPERTS).iter().all(|(_, weight)| weight.is_nan()), "one {broken} stays visible");
        }
    }

    #[test]
    fn assignments_are_grouped_by_expert() {
        let choices = [vec![(2, 0.5), (0, 0.5)], vec![(3, 0.7), (2, 0.3)], vec![(0, 0.6), (2, 0.4)]];
        let routing = Routing::new(&choices, &EXPERTS);
        assert_eq!(routing.tokens, [0, 2, 0, 1, 2, 1]);
        assert_eq!(routing.assignments, [2, 0, 5, 3, 1, 4]);
        assert_eq!(routing.ranges, [0..2, 2..2, 2..5, 5..6]);
    }
}

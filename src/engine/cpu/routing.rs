//! Routes rows to experts. An *assignment* is one row's use of one expert. Assignments are grouped by expert, so that a batch reads each
//! expert's weights once.

use std::ops::Range;

use super::activation::sigmoid;
use super::matrix::Mat;
use super::simd::rows::Job;
use crate::program::Span;
use crate::program::slices::MAX_SLICES;
use model::arch::Gating;
use model::{Experts, Weights};

pub struct Routing {
    /// [num_assignments] the row of each assignment
    pub tokens: Vec<usize>,
    /// The uses of each row's experts, by rows, then by experts in ascending order
    pub uses: Vec<Use>,
    /// [num_tokens] the end of each row's uses
    ends: Vec<usize>,
    /// [own experts] the assignments of each expert
    ranges: Vec<Range<usize>>,
}

/// A row's use of an expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Use {
    pub assignment: usize,
    /// The eighth of all experts' ids to which the expert belongs.
    pub eighth: usize,
    pub weight: f32,
}

impl Routing {
    /// Groups the assignments to the experts of `own`. `choices` holds the result of [`choose`] for each row.
    pub fn new(choices: &[Vec<(usize, f32)>], own: Span) -> Self {
        let is_own = |(expert, _): &&(usize, f32)| own.range().contains(expert);
        let mut counts = vec![0; own.len];
        choices.iter().flatten().filter(is_own).for_each(|(expert, _)| counts[*expert - own.first] += 1);
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
        let (mut uses, mut ends) = (Vec::with_capacity(end), Vec::with_capacity(choices.len()));
        for (token, choice) in choices.iter().enumerate() {
            let mut choice: Vec<(usize, f32)> = choice.iter().filter(is_own).copied().collect();
            choice.sort_by_key(|(expert, _)| *expert);
            for (expert, weight) in choice {
                let assignment = &mut next[expert - own.first];
                tokens[*assignment] = token;
                uses.push(Use { assignment: *assignment, eighth: eighth(expert, own.of), weight });
                *assignment += 1;
            }
            ends.push(uses.len());
        }
        Self { tokens, uses, ends, ranges }
    }

    /// The uses of a row's experts, in ascending order of the experts.
    pub fn of_row(&self, row: usize) -> &[Use] {
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        &self.uses[start..self.ends[row]]
    }

    /// The expert of an assignment, counted from the first own one.
    pub fn expert_of(&self, assignment: usize) -> usize {
        self.ranges.partition_point(|range| range.end <= assignment)
    }

    /// [num_assignments] the weight of each assignment
    pub fn weights(&self) -> Vec<f32> {
        let mut weights = vec![0.0; self.tokens.len()];
        self.uses.iter().for_each(|of| weights[of.assignment] = of.weight);
        weights
    }

    /// Makes jobs that multiply each expert's matrices with the rows of its assignments. The products of stack `i` go to output `i`.
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

/// The eighth to which an expert of `count` belongs: eighth e begins at expert ⌊e · count / 8⌋.
fn eighth(expert: usize, count: usize) -> usize {
    ((expert + 1) * MAX_SLICES - 1) / count
}

/// Chooses a row's experts with their weights, the best first. Among equals, the lower index comes first. `bias` is added to the scores for
/// the choice only (DeepSeek-V3). If a score is not finite, every weight is NaN, so that the fault stays visible in the logits.
pub fn choose(scores: &[f32], bias: Option<&[f32]>, experts: &Experts) -> Vec<(usize, f32)> {
    let weights = gate(scores, experts.gating);
    let mut ranks = weights.clone();
    if experts.gating == Gating::SoftmaxOfChosen {
        ranks.copy_from_slice(scores);
    }
    if let Some(bias) = bias {
        ranks.iter_mut().zip(bias).for_each(|(rank, bias)| *rank += bias);
    }
    let mut order: Vec<usize> = (0..scores.len()).collect();
    if experts.groups > 1 {
        let groups = best_groups(&ranks, experts);
        order.retain(|expert| groups.contains(&(expert / (experts.count / experts.groups))));
    }
    order.sort_by(|&a, &b| ranks[b].total_cmp(&ranks[a]));
    order.truncate(experts.used);
    let chosen: Vec<f32> = match experts.gating {
        Gating::SoftmaxOfChosen => gate(&order.iter().map(|&expert| scores[expert]).collect::<Vec<_>>(), Gating::Softmax),
        _ => order.iter().map(|&expert| weights[expert]).collect(),
    };
    // The lower bound on the sum keeps rows finite whose sigmoids are all 0.
    let sum = if experts.normalise { chosen.iter().sum::<f32>().max(LEAST_SUM) } else { 1.0 };
    order.into_iter().zip(chosen).map(|(expert, weight)| (expert, weight / sum * experts.scale)).collect()
}

/// Chooses a row's adjugate experts with their weights: those of the groups of its best experts. A group counts once for each of its
/// experts, with the weight of the expert whose number equals the group's, as in the reference for this format.
pub fn choose_adjugates(scores: &[f32], experts: &Experts) -> Vec<(usize, f32)> {
    let weights = gate(scores, experts.gating);
    let best = choose(scores, None, &Experts { used: experts.used.min(experts.num_chunks()), normalise: false, ..*experts });
    let chosen: Vec<(usize, f32)> =
        best.iter().map(|(expert, _)| expert / experts.chunk_group).map(|group| (group, weights[group])).collect();
    let sum = chosen.iter().map(|(_, weight)| weight).sum::<f32>().max(LEAST_SUM);
    chosen.into_iter().map(|(group, weight)| (group, weight / sum)).collect()
}

/// The smallest normal float16. Below it, the published models' own code would divide by zero.
const LEAST_SUM: f32 = 6.103_515_6e-5;

/// Turns scores into weights, before experts are chosen.
fn gate(scores: &[f32], gating: Gating) -> Vec<f32> {
    if !scores.iter().all(|score| score.is_finite()) {
        return vec![f32::NAN; scores.len()];
    }
    if gating == Gating::Sigmoid {
        return scores.iter().map(|&score| sigmoid(score)).collect();
    }
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f32 = scores.iter().map(|score| (score - max).exp()).sum();
    scores.iter().map(|score| (score - max).exp() / total).collect()
}

/// The groups with the highest sum of their two best experts.
fn best_groups(ranks: &[f32], experts: &Experts) -> Vec<usize> {
    let size = experts.count / experts.groups;
    let score = |group: &[f32]| {
        let mut best = group.to_vec();
        best.sort_by(|a, b| b.total_cmp(a));
        best.iter().take(2).sum::<f32>()
    };
    let scores: Vec<f32> = ranks.chunks_exact(size).map(score).collect();
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    order.truncate(experts.groups_used);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPERTS: Experts = Experts {
        count: 4,
        used: 2,
        ffn_dim: 0,
        shared_ffn_dim: 0,
        gating: Gating::Softmax,
        normalise: true,
        scale: 1.0,
        groups: 0,
        groups_used: 0,
        chunk_ffn_dim: 0,
        chunk_group: 1,
        chunk_scale: 1.0,
    };

    #[test]
    fn the_likeliest_are_chosen_and_their_weights_add_up() {
        let scores = [1.0f32, 3.0, 3.0, 2.0].map(f32::ln);
        let close = |got: Vec<(usize, f32)>, expected: [(usize, f32); 2]| {
            got.iter().zip(expected).all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-6) && got.len() == 2
        };
        assert!(close(choose(&scores, None, &EXPERTS), [(1, 0.5), (2, 0.5)]));
        assert!(close(choose(&scores, None, &Experts { normalise: false, ..EXPERTS }), [(1, 3.0 / 9.0), (2, 3.0 / 9.0)]));
        // plain exp would overflow
        assert!(close(choose(&[1000.0, -1000.0, 999.0, 0.0], None, &EXPERTS), [(0, 0.731_058_6), (2, 0.268_941_4)]));
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(choose(&[broken; 4], None, &EXPERTS).iter().all(|(_, weight)| weight.is_nan()), "{broken} stays visible");
            assert!(
                choose(&[1.0, broken, 2.0, 3.0], None, &EXPERTS).iter().all(|(_, weight)| weight.is_nan()),
                "one {broken} stays visible"
            );
        }
    }

    #[test]
    fn sigmoids_groups_and_biases_decide_as_in_deepseek_v3() {
        let sigmoids = Experts { gating: Gating::Sigmoid, scale: 2.5, ..EXPERTS };
        let close = |got: &[(usize, f32)], expected: &[(usize, f32)]| {
            got.len() == expected.len() && got.iter().zip(expected).all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-5)
        };
        // the bias moves the choice from expert 0 to 3, but leaves the weight alone
        let got = choose(&[1.0, 2.0, -1.0, 0.0], Some(&[0.0, 0.0, 0.0, 0.5]), &sigmoids);
        let (a, b) = (0.5, sigmoid(2.0));
        assert!(close(&got, &[(3, 2.5 * a / (a + b)), (1, 2.5 * b / (a + b))]), "{got:?}");
        // the best expert is in the group with the lower sum
        let grouped = Experts { groups: 2, groups_used: 1, ..EXPERTS };
        assert_eq!(choose(&[3.0, -9.0, 2.9, 2.8], None, &grouped).iter().map(|choice| choice.0).collect::<Vec<_>>(), [2, 3]);
        let chosen = Experts { gating: Gating::SoftmaxOfChosen, normalise: false, ..EXPERTS };
        let got = choose(&[0.0, 3f32.ln(), 1f32.ln(), -5.0], None, &chosen);
        assert!(close(&got, &[(1, 0.75), (0, 0.25)]), "{got:?}");
    }

    #[test]
    fn assignments_are_grouped_by_expert() {
        let choices = [vec![(2, 0.5), (0, 0.5)], vec![(3, 0.7), (2, 0.3)], vec![(0, 0.6), (2, 0.4)]];
        let routing = Routing::new(&choices, Span::all(4));
        assert_eq!(routing.tokens, [0, 2, 0, 1, 2, 1]);
        let of = |routing: &Routing| routing.uses.iter().map(|of| (of.assignment, of.eighth, of.weight)).collect::<Vec<_>>();
        assert_eq!(of(&routing), [(0, 1, 0.5), (2, 5, 0.5), (3, 5, 0.3), (5, 7, 0.7), (1, 1, 0.6), (4, 5, 0.4)]);
        assert_eq!(routing.ranges, [0..2, 2..2, 2..5, 5..6]);
        // a shard that has the last two experts only
        let shard = Routing::new(&choices, Span { first: 2, len: 2, of: 4 });
        assert_eq!(shard.tokens, [0, 1, 2, 1]);
        assert_eq!(of(&shard), [(0, 5, 0.5), (1, 5, 0.3), (3, 7, 0.7), (2, 5, 0.4)]);
        assert_eq!(shard.of_row(2).len(), 1);
    }

    #[test]
    fn an_eighth_begins_where_a_shard_of_eight_does() {
        for count in 1..70 {
            let of = |expert: usize| (0..8).rfind(|e| e * count / 8 <= expert).unwrap();
            (0..count).for_each(|expert| assert_eq!(eighth(expert, count), of(expert), "{expert} of {count}"));
        }
    }
}

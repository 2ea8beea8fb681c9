//! Decides whether a further row of a step is worth its time.
//!
//! A step of n rows takes 1 + n × `row_cost`, in units of a step's fixed part: reading the weights. A drafted row that is accepted with
//! probability p adds p tokens. It is worth its time if that raises the step's tokens per time, and by enough to be sure of it. So a draft
//! ends where its tokens become unlikely, and steps of many sequences, whose rows cost more than the weights, take fewer drafts or none.

/// A row must add so many times its share, since estimates err.
const MARGIN: f64 = 1.2;

#[derive(Clone, Copy, Debug)]
pub struct StepCost {
    tokens: f64,
    time: f64,
    row_cost: f64,
}

impl StepCost {
    /// A step of `num_rows` rows, each of which gives a token.
    pub fn new(num_rows: usize, row_cost: f64) -> Self {
        Self { tokens: num_rows as f64, time: 1.0 + num_rows as f64 * row_cost, row_cost }
    }

    /// The same step, whose further rows take `more` besides: the time that their guesses take.
    #[must_use]
    pub fn with_guesses(self, more: f64) -> Self {
        Self { row_cost: self.row_cost + more, ..self }
    }

    /// Adds a row that gives a token with this probability, if it is worth its time.
    pub fn add(&mut self, probability: f64) -> bool {
        let is_worth_it = probability * self.time > MARGIN * self.row_cost * self.tokens;
        if is_worth_it {
            self.tokens += probability;
            self.time += self.row_cost;
        }
        is_worth_it
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of drafts of one sequence among `num_rows`, each of which is accepted with probability `p` if the one before was.
    fn depth(num_rows: usize, row_cost: f64, p: f64) -> usize {
        let mut cost = StepCost::new(num_rows, row_cost);
        (1..100).take_while(|&at| cost.add(p.powi(at))).count()
    }

    #[test]
    fn drafts_are_longer_the_surer_they_are_and_the_cheaper_rows_are() {
        assert_eq!([0.1, 0.15, 0.3].map(|p| depth(1, 0.2, p)), [0, 0, 1]);
        assert!(depth(1, 0.2, 0.95) > depth(1, 0.2, 0.7) && depth(1, 0.2, 0.7) > depth(1, 0.2, 0.4));
        assert!(depth(1, 0.03, 0.7) > depth(1, 0.2, 0.7));
    }

    #[test]
    fn drafts_end_where_the_batch_makes_rows_dear() {
        assert_eq!([1, 8, 64].map(|num_rows| depth(num_rows, 0.2, 0.7) > 0), [true, false, false]);
        assert_eq!(depth(64, 0.03, 0.7), 0);
        assert!(depth(8, 0.03, 0.7) > 0);
    }
}

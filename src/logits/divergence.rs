//! Measures how far one distribution over tokens is from another. All sums are in double precision.

/// The softmax distribution of raw logits.
#[derive(Clone, Copy, Debug)]
pub struct Distribution<'a> {
    logits: &'a [f32],
    /// The logarithm of the sum of all logits' exponentials.
    log_sum: f64,
}

/// The comparison of a distribution with a reference at one position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Divergence {
    /// Kullback-Leibler divergence from the reference, in nats.
    pub kl: f64,
    /// Whether both distributions have the same likeliest token.
    pub same_first: bool,
}

impl<'a> Distribution<'a> {
    /// Builds the distribution. None if a logit is NaN or +inf, or if no logit is finite.
    pub fn new(logits: &'a [f32]) -> Option<Self> {
        let mut most = f32::NEG_INFINITY;
        for &logit in logits {
            if logit.is_nan() || logit == f32::INFINITY {
                return None;
            }
            most = most.max(logit);
        }
        if most == f32::NEG_INFINITY {
            return None;
        }
        let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - f64::from(most)).exp()).sum();
        Some(Self { logits, log_sum: f64::from(most) + sum.ln() })
    }

    /// The log-probability of a token. None for an id outside the vocabulary.
    pub fn log_probability(&self, id: u32) -> Option<f64> {
        self.logits.get(id as usize).map(|&logit| f64::from(logit) - self.log_sum)
    }

    /// The likeliest token. Among equals, the lowest id.
    fn first(&self) -> Option<usize> {
        let mut first = None;
        for (id, &logit) in self.logits.iter().enumerate() {
            if first.is_none_or(|(_, most)| logit > most) {
                first = Some((id, logit));
            }
        }
        first.map(|(id, _)| id)
    }

    /// The divergence of this distribution from a reference over the same tokens.
    ///
    /// # Panics
    /// If the vocabularies differ in length.
    pub fn divergence(&self, reference: &Distribution) -> Divergence {
        assert_eq!(self.logits.len(), reference.logits.len(), "distributions over different vocabularies");
        let shift = reference.log_sum - self.log_sum;
        let of_token = |(&p, &q): (&f32, &f32)| {
            let log_p = f64::from(p) - reference.log_sum;
            if log_p == f64::NEG_INFINITY {
                return (f64::from(q) - self.log_sum).exp();
            }
            // Σ p·ln(p/q) = Σ (p·ln(p/q) - p + q), since both distributions sum to 1. No summand is negative, so nothing cancels, however
            // close the two distributions are.
            let (ratio, probability) = (f64::from(p) - f64::from(q) - shift, log_p.exp());
            match ratio {
                f64::INFINITY => f64::INFINITY,
                // The quotient q/p may overflow, but q itself does not.
                _ if ratio < -1.0 => (log_p - ratio).exp() - probability + probability * ratio,
                _ => probability * ((-ratio).exp_m1() + ratio),
            }
        };
        let kl = reference.logits.iter().zip(self.logits).map(of_token).sum();
        Divergence { kl, same_first: self.first() == reference.first() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_divergence_is_that_of_the_definition() {
        let (p, q) = ([0.5f64, 0.25, 0.25], [0.25f64, 0.25, 0.5]);
        let logits = |p: [f64; 3]| p.map(|p| (p.ln() + 7.0) as f32);
        let (a, b) = (logits(p), logits(q));
        let found = Distribution::new(&b).unwrap().divergence(&Distribution::new(&a).unwrap());
        let expected: f64 = p.iter().zip(q).map(|(p, q)| p * (p / q).ln()).sum();
        assert!((found.kl - expected).abs() < 1e-6, "{} and {expected}", found.kl);
        assert!(!found.same_first);
        let log_probability = Distribution::new(&a).unwrap().log_probability(1).unwrap();
        assert!((log_probability - 0.25f64.ln()).abs() < 1e-6);
    }

    #[test]
    fn the_smallest_differences_are_seen_and_equal_rows_have_none() {
        let row: Vec<f32> = (0..50_000).map(|i| (i as f32 * 0.37).sin() * 9.0).collect();
        let near: Vec<f32> = row.iter().enumerate().map(|(i, x)| x + if i % 2 == 0 { 1e-6 } else { -1e-6 }).collect();
        let (row, near) = (Distribution::new(&row).unwrap(), Distribution::new(&near).unwrap());
        assert_eq!(row.divergence(&row), Divergence { kl: 0.0, same_first: true });
        let kl = near.divergence(&row).kl;
        assert!(kl > 1e-14 && kl < 1e-11, "{kl}");
    }

    #[test]
    fn a_shift_of_all_logits_changes_nothing_but_rounding() {
        let (row, shifted) = ([1.0f32, 2.0, 4.0, f32::NEG_INFINITY], [101.0f32, 102.0, 104.0, f32::NEG_INFINITY]);
        let found = Distribution::new(&row).unwrap().divergence(&Distribution::new(&shifted).unwrap());
        assert!(found.kl.abs() < 1e-12 && found.same_first, "{found:?}");
    }

    #[test]
    fn what_is_no_distribution_is_refused() {
        for row in [&[1.0, f32::NAN][..], &[f32::INFINITY, 0.0], &[f32::NEG_INFINITY], &[]] {
            assert!(Distribution::new(row).is_none(), "{row:?}");
        }
        let (hard, soft) = ([0.0, f32::NEG_INFINITY], [0.0, 0.0]);
        let [hard, soft] = [&hard, &soft].map(|row| Distribution::new(row).unwrap());
        assert_eq!(hard.divergence(&soft).kl, f64::INFINITY);
        assert!((soft.divergence(&hard).kl - 2f64.ln()).abs() < 1e-12);
        let (up, down) = ([1000.0, -1000.0], [-1000.0, 1000.0]);
        let [up, down] = [&up, &down].map(|row| Distribution::new(row).unwrap());
        assert!((up.divergence(&down).kl - 2000.0).abs() < 1e-9, "{:?}", up.divergence(&down));
    }
}

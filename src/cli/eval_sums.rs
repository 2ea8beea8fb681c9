//! The sums of `penstock eval`, and the figures computed from them.

use serde::Serialize;

use crate::logits::Distribution;

/// The sums over all measured tokens.
#[derive(Default)]
pub struct Sums {
    tested: NegLogLikelihood,
    reference: NegLogLikelihood,
    /// The divergence at each position, for the quantiles.
    divergences: Vec<f64>,
    same_first: usize,
}

/// The sum of negative log-probabilities, and the sum of their squares.
#[derive(Clone, Copy, Default)]
struct NegLogLikelihood {
    count: usize,
    sum: f64,
    squares: f64,
}

impl NegLogLikelihood {
    fn add(&mut self, log_probability: f64) {
        self.count += 1;
        self.sum -= log_probability;
        self.squares += log_probability * log_probability;
    }

    /// The perplexity and its standard error.
    fn perplexity(&self) -> (f64, f64) {
        let n = self.count.max(1) as f64;
        let mean = self.sum / n;
        let variance = (self.squares / n - mean * mean).max(0.0);
        (mean.exp(), mean.exp() * (variance / (n - 1.0).max(1.0)).sqrt())
    }
}

/// The figures of a model on a text.
#[derive(Serialize)]
pub struct Figures {
    /// Number of predicted tokens.
    pub tokens: usize,
    pub perplexity: f64,
    /// The perplexity's standard error.
    pub perplexity_error: f64,
    pub against: Option<ReferenceComparison>,
    /// The divergence from the reference.
    pub kl: Option<Divergence>,
}

/// The divergence from the reference over all positions [nats].
#[derive(Clone, Copy, Serialize)]
pub struct Divergence {
    pub mean: f64,
    /// The mean's standard error.
    pub error: f64,
    pub median: f64,
    pub p99: f64,
    pub max: f64,
}

/// The difference of a model from its reference. Divergences are in nats.
#[derive(Serialize)]
pub struct ReferenceComparison {
    /// The reference's own perplexity.
    pub perplexity: f64,
    pub perplexity_error: f64,
    pub kl_mean: f64,
    pub kl_error: f64,
    pub kl_median: f64,
    pub kl_p99: f64,
    pub kl_max: f64,
    /// The share of positions where both have the same likeliest token.
    pub same_first: f64,
    pub same_first_error: f64,
}

impl Sums {
    /// Adds a position that is followed by `id`. None if the id is outside the vocabulary.
    pub fn add(&mut self, row: &Distribution, reference: Option<&Distribution>, id: u32) -> Option<()> {
        self.tested.add(row.log_probability(id)?);
        if let Some(reference) = reference {
            self.reference.add(reference.log_probability(id)?);
            let divergence = row.divergence(reference);
            self.divergences.push(divergence.kl);
            self.same_first += usize::from(divergence.same_first);
        }
        Some(())
    }

    /// The perplexity so far.
    pub fn perplexity(&self) -> f64 {
        self.tested.perplexity().0
    }

    pub fn figures(mut self) -> Figures {
        let (perplexity, perplexity_error) = self.tested.perplexity();
        let against = (!self.divergences.is_empty()).then(|| self.against());
        let of = |found: &ReferenceComparison| Divergence {
            mean: found.kl_mean,
            error: found.kl_error,
            median: found.kl_median,
            p99: found.kl_p99,
            max: found.kl_max,
        };
        let kl = against.as_ref().map(of);
        Figures { tokens: self.tested.count, perplexity, perplexity_error, against, kl }
    }

    fn against(&mut self) -> ReferenceComparison {
        let sorted = &mut self.divergences;
        sorted.sort_by(f64::total_cmp);
        let (n, last) = (sorted.len() as f64, sorted.len() - 1);
        let quantile = |share: f64| sorted[(share * last as f64).round() as usize];
        let error_of = |variance: f64| (variance.max(0.0) / (n - 1.0).max(1.0)).sqrt();
        let mean = sorted.iter().sum::<f64>() / n;
        let variance = sorted.iter().map(|kl| (kl - mean) * (kl - mean)).sum::<f64>() / n;
        let (perplexity, perplexity_error) = self.reference.perplexity();
        let same_first = self.same_first as f64 / n;
        ReferenceComparison {
            perplexity,
            perplexity_error,
            kl_mean: mean,
            kl_error: error_of(variance),
            kl_median: quantile(0.5),
            kl_p99: quantile(0.99),
            kl_max: quantile(1.0),
            same_first,
            same_first_error: error_of(same_first * (1.0 - same_first)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_those_of_the_definitions() {
        let rows = [[1f32, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.5]];
        let flat = [0f32; 3];
        let mut sums = Sums::default();
        let (mut surprise, mut kls) = (0.0, Vec::new());
        for (id, row) in rows.iter().enumerate() {
            let (row, reference) = (Distribution::new(row).unwrap(), Distribution::new(&flat).unwrap());
            sums.add(&row, Some(&reference), id as u32).unwrap();
            surprise -= row.log_probability(id as u32).unwrap();
            kls.push(row.divergence(&reference).kl);
        }
        assert!(sums.add(&Distribution::new(&flat).unwrap(), None, 3).is_none(), "3 is outside of the vocabulary");
        let figures = sums.figures();
        let against = figures.against.unwrap();
        assert_eq!(figures.tokens, 3);
        assert!((figures.perplexity - (surprise / 3.0f64).exp()).abs() < 1e-12);
        assert!((against.perplexity - 3.0).abs() < 1e-12 && against.perplexity_error < 1e-6);
        assert!((against.kl_mean - kls.iter().sum::<f64>() / 3.0).abs() < 1e-15);
        kls.sort_by(f64::total_cmp);
        assert_eq!((against.kl_median, against.kl_max), (kls[1], kls[2]));
        // Only the first row has the first token of a flat one.
        assert!((against.same_first - 1.0 / 3.0).abs() < 1e-12);
    }
}

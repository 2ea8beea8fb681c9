//! Applies rotary position embeddings (Su et al. 2021), with linear and YaRN scaling and per-dimension factors (Llama 3, LongRoPE).

use model::spec::RopeSpec;
use model::{RopePairing, RopeScaling, TensorRole, Weights};

/// A rotation that some layers of a model share.
#[derive(Clone, PartialEq)]
pub struct Rope {
    /// The frequency of each pair, in radians per position.
    frequencies: Vec<f64>,
    /// The factor for sine and cosine.
    scale: f64,
    pairing: RopePairing,
}

impl Rope {
    /// Builds a rotation. `factors` divide the pairs' frequencies (see [`factors`]).
    fn new(spec: &RopeSpec, pairing: RopePairing, factors: Option<&[f32]>) -> Self {
        let (theta, dim) = (f64::from(spec.theta), spec.dim);
        let plain = |i: usize| theta.powf(-2.0 * i as f64 / dim as f64) / factors.map_or(1.0, |f| f64::from(f[i]));
        let frequencies = |f: &dyn Fn(usize) -> f64| (0..dim / 2).map(f).collect::<Vec<_>>();
        let (frequencies, scale) = match spec.scaling {
            RopeScaling::None => (frequencies(&plain), 1.0),
            RopeScaling::Linear { factor } => (frequencies(&|i| plain(i) / f64::from(factor)), 1.0),
            RopeScaling::Long { attn_factor, .. } => (frequencies(&plain), f64::from(attn_factor)),
            RopeScaling::Yarn { factor, original_context, attn_factor, beta_fast, beta_slow } => {
                // the pair that makes `beta` rotations within the original context
                let pair = |beta: f32| {
                    dim as f64 * (original_context as f64 / (f64::from(beta) * std::f64::consts::TAU)).ln() / (2.0 * theta.ln())
                };
                let (low, high) = (pair(beta_fast).floor().max(0.0), pair(beta_slow).ceil().min(dim as f64 - 1.0));
                let stretched = |i: usize| {
                    let ramp = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                    plain(i) * (1.0 - ramp) + plain(i) / f64::from(factor) * ramp
                };
                (frequencies(&stretched), f64::from(attn_factor))
            }
        };
        Self { frequencies, scale, pairing }
    }

    /// The number of rotated elements per head.
    pub fn dim(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Writes the cosines of a position, then its sines [2, pairs].
    pub fn rotation(&self, position: u32, out: &mut [f32]) {
        let (cos, sin) = out.split_at_mut(self.frequencies.len());
        for ((frequency, cos), sin) in self.frequencies.iter().zip(cos).zip(sin) {
            let (s, c) = (f64::from(position) * frequency).sin_cos();
            (*cos, *sin) = ((c * self.scale) as f32, (s * self.scale) as f32);
        }
    }

    /// Rotates one head in place by the cosines and sines of [`Rope::rotation`]. Elements after the rotated pairs stay.
    pub fn rotate(&self, head: &mut [f32], rotation: &[f32]) {
        let pairs = self.frequencies.len();
        let (cos, sin) = rotation.split_at(pairs);
        match self.pairing {
            RopePairing::Adjacent => {
                for ((pair, c), s) in head[..2 * pairs].as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                    let [a, b] = *pair;
                    *pair = [a * c - b * s, a * s + b * c];
                }
            }
            RopePairing::Halves => {
                let (first, second) = head[..2 * pairs].split_at_mut(pairs);
                for (((a, b), c), s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                    (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
                }
            }
        }
    }
}

/// The divisors of the frequencies: `rope_freqs.weight`, or with LongRoPE the factors for sequences of up to `context` tokens [dim / 2]. An
/// engine chooses them once, because keys in the cache are already rotated.
fn factors(weights: &Weights, spec: &RopeSpec, context: usize) -> Option<Vec<f32>> {
    let role = match spec.scaling {
        RopeScaling::Long { original_context, .. } if context > original_context => TensorRole::RopeFactorsLong,
        RopeScaling::Long { .. } => TensorRole::RopeFactorsShort,
        _ if spec.factors => TensorRole::RopeFreqs,
        _ => return None,
    };
    weights.vector(role, 0).filter(|factors| factors.len() >= spec.dim / 2)
}

/// The distinct rotations of a model for sequences of up to `context` tokens, and the index of each layer's rotation.
pub fn ropes(weights: &Weights, context: usize) -> (Vec<Rope>, Vec<Option<usize>>) {
    let model = &weights.spec;
    let mut kinds: Vec<Rope> = Vec::new();
    let of_layer = model.layers.iter().map(|layer| {
        let spec = layer.attention().and_then(|attention| attention.rope).or(layer.latent().and_then(|latent| latent.rope))?;
        let rope = Rope::new(&spec, model.rope_pairing, factors(weights, &spec, context).as_deref());
        Some(kinds.iter().position(|kind| *kind == rope).unwrap_or_else(|| {
            kinds.push(rope);
            kinds.len() - 1
        }))
    });
    let of_layer = of_layer.collect();
    (kinds, of_layer)
}

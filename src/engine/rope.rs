//! Applies rotary position embeddings (Su et al. 2021), with linear and YaRN scaling, per-dimension factors (Llama 3, LongRoPE), and
//! sections that three positions rotate (M-RoPE).

use crate::program::LayerLinks;
use model::spec::RopeSpec;
use model::vision::Rotation;
use model::{ModelSpec, RopePairing, RopeScaling, TensorRole, Weights};

/// A rotation that some layers of a model share.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The frequency of each pair, in radians per position.
    frequencies: Vec<f64>,
    /// Which of a row's three positions rotates each pair.
    positions: Vec<usize>,
    /// The factor for sine and cosine.
    scale: f64,
    pairing: RopePairing,
}

impl Rope {
    /// Builds a rotation. `factors` divide the pairs' frequencies (see [`factors`]).
    fn new(spec: &RopeSpec, model: &ModelSpec, factors: Option<&[f32]>) -> Self {
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
        let positions = (0..dim / 2).map(|pair| model.rope_sections.map_or(0, |sections| sections.position_of(pair))).collect();
        Self { frequencies, positions, scale, pairing: model.rope_pairing }
    }

    /// The rotation of a picture encoder's heads of `dim` elements. None if it rotates nothing. Of a row's positions, the second is the
    /// patch's row and the third its column.
    pub fn of_pictures(rotation: Rotation, dim: usize, pairing: RopePairing) -> Option<Self> {
        const ROW: usize = 1;
        const COL: usize = 2;
        let quarter = dim / 4;
        // the exponent of the base, and the position
        let of = |pair: usize| -> (f64, usize) {
            let (half, j) = (pair / quarter, pair % quarter);
            let steps = |j: usize| (4 * j) as f64 / dim as f64;
            match rotation {
                Rotation::None | Rotation::Halves => (steps(j), [ROW, COL][half]),
                Rotation::RowsThenColumns => (steps(j) + (2 * half) as f64 / dim as f64, [ROW, COL][half]),
                Rotation::Turns => (steps(pair / 2), [COL, ROW][pair % 2]),
                Rotation::ColumnsThenRows | Rotation::Quarters => (steps(j), [COL, ROW][half]),
            }
        };
        let theta: f64 = if rotation == Rotation::Quarters { 100.0 } else { 10_000.0 };
        let (frequencies, positions) = (0..dim / 2).map(of).map(|(exponent, position)| (theta.powf(-exponent), position)).unzip();
        (rotation != Rotation::None).then_some(Self { frequencies, positions, scale: 1.0, pairing })
    }

    /// The number of rotated elements per head.
    pub fn dim(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// The number of the position that rotates each pair, as bytes.
    #[allow(dead_code, reason = "only a backend that lowers programs asks for it")]
    pub fn axes(&self) -> impl Iterator<Item = u8> + '_ {
        self.positions.iter().map(|&position| position as u8)
    }

    /// Writes the cosines of a row's positions, then their sines [2, pairs].
    pub fn rotation(&self, positions: [u32; 3], out: &mut [f32]) {
        let (cos, sin) = out.split_at_mut(self.frequencies.len());
        for (((frequency, &of), cos), sin) in self.frequencies.iter().zip(&self.positions).zip(cos).zip(sin) {
            let (s, c) = (f64::from(positions[of]) * frequency).sin_cos();
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
            RopePairing::Halves => rotate_halves(&mut head[..2 * pairs], cos, sin),
            RopePairing::Quarters => {
                let (first, second) = head[..2 * pairs].split_at_mut(pairs);
                rotate_halves(first, &cos[..pairs / 2], &sin[..pairs / 2]);
                rotate_halves(second, &cos[pairs / 2..], &sin[pairs / 2..]);
            }
        }
    }
}

/// The elements of one of a head's pairs.
pub fn pair_elements(pairing: RopePairing, pairs: usize, pair: usize) -> [usize; 2] {
    match pairing {
        RopePairing::Adjacent => [2 * pair, 2 * pair + 1],
        RopePairing::Halves => [pair, pairs + pair],
        RopePairing::Quarters if pair < pairs / 2 => [pair, pairs / 2 + pair],
        RopePairing::Quarters => [pairs / 2 + pair, pairs + pair],
    }
}

/// Rotates the elements of the first half with those of the second half.
fn rotate_halves(elements: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = elements.split_at_mut(cos.len());
    for (((a, b), c), s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
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

/// The distinct rotations of a model for sequences of up to `context` tokens, and what its layers refer to.
pub fn ropes(weights: &Weights, context: usize) -> (Vec<Rope>, LayerLinks) {
    let model = &weights.spec;
    let mut kinds: Vec<Rope> = Vec::new();
    let of_layer = model.layers.iter().map(|layer| {
        let spec = layer.attention().and_then(|attention| attention.rope).or(layer.latent().and_then(|latent| latent.rope))?;
        let rope = Rope::new(&spec, model, factors(weights, &spec, context).as_deref());
        Some(kinds.iter().position(|kind| *kind == rope).unwrap_or_else(|| {
            kinds.push(rope);
            kinds.len() - 1
        }))
    });
    let of_layer = of_layer.collect();
    (kinds, LayerLinks::of(model, of_layer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::spec::RopeSections;
    use model::testing::TinyModel;
    use model::{ARCHS, ModelSpec};

    const DIM: usize = 32;
    const THETA: f32 = 1e4;

    fn rope(sections: Option<RopeSections>) -> Rope {
        let model = ModelSpec { rope_sections: sections, rope_pairing: RopePairing::Halves, ..TinyModel::new(&ARCHS[0]).spec() };
        Rope::new(&RopeSpec { dim: DIM, theta: THETA, scaling: RopeScaling::None, factors: false }, &model, None)
    }

    /// The angles of all elements as the models' authors write them: Qwen2-VL cuts the angles of each position into sections, and Qwen3-VL
    /// replaces every third angle.
    fn angles(sections: RopeSections, positions: [u32; 3]) -> Vec<f64> {
        let frequency = |element: usize| f64::from(THETA).powf(-((2 * (element % (DIM / 2))) as f64) / DIM as f64);
        let of = |axis: usize, element: usize| f64::from(positions[axis]) * frequency(element);
        if sections.interleaved {
            let mut half: Vec<f64> = (0..DIM / 2).map(|element| of(0, element)).collect();
            for axis in [1, 2] {
                (axis..3 * sections.pairs[axis]).step_by(3).for_each(|element| half[element] = of(axis, element));
            }
            return half.repeat(2);
        }
        let chunks = (0..6).flat_map(|chunk| std::iter::repeat_n(chunk % 3, sections.pairs[chunk % 3]));
        chunks.enumerate().map(|(element, axis)| of(axis, element)).collect()
    }

    #[test]
    fn sections_are_rotated_as_their_authors_define() {
        let head: Vec<f32> = (0..DIM).map(|i| (i as f32 * 0.7).sin()).collect();
        let all = [([4, 6, 6], false), ([6, 5, 5], true), ([16, 0, 0], false), ([0, 16, 0], false), ([2, 3, 11], false), ([8, 4, 4], true)];
        for (pairs, interleaved) in all {
            let sections = RopeSections { pairs, interleaved };
            let (rope, positions) = (rope(Some(sections)), [7, 3, 11]);
            let (mut rotation, mut rotated) = (vec![0.0; DIM], head.clone());
            rope.rotation(positions, &mut rotation);
            rope.rotate(&mut rotated, &rotation);
            for (i, angle) in angles(sections, positions).into_iter().enumerate() {
                let turned = if i < DIM / 2 { -head[i + DIM / 2] } else { head[i - DIM / 2] };
                let expected = f64::from(head[i]) * angle.cos() + f64::from(turned) * angle.sin();
                assert!((f64::from(rotated[i]) - expected).abs() < 1e-6, "{sections:?}, element {i}: {} and {expected}", rotated[i]);
            }
        }
    }

    #[test]
    fn the_elements_of_a_pair_are_those_that_are_rotated_together() {
        for pairing in [RopePairing::Adjacent, RopePairing::Halves, RopePairing::Quarters] {
            let rope = Rope { pairing, ..rope(None) };
            for pair in 0..DIM / 2 {
                // a quarter of a turn of this pair alone
                let mut rotation = vec![1.0; DIM / 2];
                rotation.resize(DIM, 0.0);
                (rotation[pair], rotation[DIM / 2 + pair]) = (0.0, 1.0);
                let mut head: Vec<f32> = (0..DIM).map(|i| i as f32 + 1.0).collect();
                let before = head.clone();
                rope.rotate(&mut head, &rotation);
                let [a, b] = pair_elements(pairing, DIM / 2, pair);
                assert_eq!((head[a], head[b]), (-before[b], before[a]), "{pairing:?}, pair {pair}");
                assert_eq!((0..DIM).filter(|&i| head[i] != before[i]).count(), 2);
            }
        }
    }

    #[test]
    fn equal_positions_are_one_position() {
        let of = |sections| {
            let mut rotation = vec![0.0; DIM];
            rope(sections).rotation([9; 3], &mut rotation);
            rotation
        };
        for interleaved in [false, true] {
            assert_eq!(of(Some(RopeSections { pairs: [4, 6, 6], interleaved })), of(None));
        }
    }
}

//! Applies activations, with plain code for those that have no vector kernel.

use super::simd::{Kernels, Sigmoidal};
use model::Activation;

/// The activation of a layer, with its parameters.
#[derive(Clone, Copy)]
pub struct Activate {
    pub kind: Activation,
    /// xIELU's parameters: alpha of negative inputs, alpha of positive inputs, beta, epsilon.
    pub xielu: [f32; 4],
}

impl Activate {
    /// gate = activation(gate) · up
    pub fn gated(&self, kernels: &Kernels, gate: &mut [f32], up: &[f32]) {
        match self.kind {
            Activation::Silu => kernels.gated(gate, up, Sigmoidal::Silu),
            Activation::Gelu => kernels.gated(gate, up, Sigmoidal::Gelu),
            Activation::SwigluClamped => gate.iter_mut().zip(up).for_each(|(gate, &up)| {
                let (g, u) = (gate.min(7.0), up.clamp(-7.0, 7.0));
                *gate = g / (1.0 + (-1.702 * g).exp()) * (u + 1.0);
            }),
            _ => gate.iter_mut().zip(up).for_each(|(gate, up)| *gate = self.scalar(*gate) * up),
        }
    }

    /// x = activation(x)
    pub fn apply(&self, kernels: &Kernels, x: &mut [f32]) {
        match self.kind {
            Activation::Silu => kernels.activate(x, Sigmoidal::Silu),
            Activation::Gelu => kernels.activate(x, Sigmoidal::Gelu),
            _ => x.iter_mut().for_each(|x| *x = self.scalar(*x)),
        }
    }

    fn scalar(&self, x: f32) -> f32 {
        match self.kind {
            Activation::Silu | Activation::SwigluClamped => x * sigmoid(x),
            Activation::Gelu => x * sigmoid(1.595_769 * (x + 0.044_715 * x * x * x)),
            Activation::GeluErf => 0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2)),
            Activation::GeluQuick => x * sigmoid(1.702 * x),
            Activation::Relu => x.max(0.0) + 0.0 * x,
            Activation::ReluSquared => x.max(0.0) * x.max(0.0) + 0.0 * x,
            Activation::Xielu => {
                let [negative, positive, beta, eps] = self.xielu;
                if x > 0.0 { positive * x * x + beta * x } else { (x.min(eps).exp_m1() - x) * negative + beta * x }
            }
        }
    }
}

pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_have_their_known_values() {
        let at = |kind, x| Activate { kind, xielu: [0.8, 0.9, 0.5, -1e-6] }.scalar(x);
        let cases = [
            (Activation::Relu, -1.0, 0.0),
            (Activation::ReluSquared, 3.0, 9.0),
            (Activation::GeluErf, 1.0, 0.841_344_8),
            (Activation::Gelu, 1.0, 0.841_192),
            (Activation::Silu, 1.0, 0.731_058_6),
            (Activation::GeluQuick, 1.0, 0.845_795_8),
            (Activation::Xielu, 2.0, 0.9 * 4.0 + 1.0),
            (Activation::Xielu, -1.0, ((-1f32).exp_m1() + 1.0) * 0.8 - 0.5),
        ];
        for (kind, x, expected) in cases {
            assert!((at(kind, x) - expected).abs() < 1e-5, "{kind:?}({x}) is {}, expected {expected}", at(kind, x));
        }
        for kind in [Activation::Relu, Activation::ReluSquared, Activation::GeluErf, Activation::Xielu] {
            assert!(at(kind, f32::NAN).is_nan(), "{kind:?}: a NaN stays visible");
        }
    }
}

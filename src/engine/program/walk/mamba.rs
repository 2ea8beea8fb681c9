//! Writes selective state spaces: Mamba 1 (Gu and Dao 2023), Mamba 2 (Dao and Gu 2024) and PLaMo 2's form of Mamba.
//!
//! z, x, b, c and the time step dt come from the row. x (and Mamba 2's b and c) pass a convolution over time. With the state S [state,
//! channels] of a head: S = e^(dt · a) · S + b ⊗ (dt · x), y = Sᵀ c + d · x, and the result is y · silu(z).
//!
//! | | dt, b, c | a, dt | heads |
//! |---|---|---|---|
//! | Mamba 1 | a low-rank projection of x, in this order | per channel | one, of all channels |
//! | PLaMo 2 | a low-rank projection of x: b, c, dt, each normalised | per head | share b and c |
//! | Mamba 2 | the input projection | per head | groups share b and c, and may be normalised at the end |

use super::*;
use model::arch::Recurrent;
use model::{Activation, Ssm};

/// The places of the time step, b and c of each row.
struct Steps {
    dt: Part,
    b: Part,
    c: Part,
    /// The number of heads that share b and c.
    group: usize,
}

impl Walk<'_> {
    pub fn mamba(&mut self, i: usize, ssm: &Ssm, h: BufferId) -> Result<Mixed, EngineError> {
        use TensorRole::*;
        let Ssm { kind, inner, state: keys, conv, heads, groups, .. } = *ssm;
        let by_channel = kind == Recurrent::Mamba1;
        let matrix = self.matrix(SsmIn, i)?;
        let wide = self.product(h, matrix, "state space's input");
        let len = self.width(wide);
        // z is the gate, x the input of the convolution
        let (z_heads, dim) = if by_channel { (1, inner) } else { (heads, inner / heads) };
        let (z, x) = match kind {
            Recurrent::Mamba1 => (part(wide, inner, 0), part(wide, 0, 0)),
            Recurrent::MambaPlamo => {
                // each head holds its z, then its x
                let sorted = self.buffer("channels in order", inner);
                self.map(copy(part(wide, dim, 2 * dim), part(sorted, 0, dim), heads, dim));
                (part(wide, 0, 2 * dim), whole(sorted))
            }
            _ => (part(wide, 0, dim), part(wide, inner, 0)),
        };
        let channels = ssm.conv_channels();
        let mixed = self.buffer("channels over time", channels);
        let (kernel, bias) = (self.required_vector(SsmConv, i)?, self.vector(SsmConvBias, i));
        let state = self.state_of(i, 0);
        self.op(Op::Convolve(Convolve { from: x, to: whole(mixed), channels, taps: conv, kernel, bias, silu: true, state }));
        let steps = if kind == Recurrent::Mamba2 {
            let (b, c) = (part(mixed, inner, keys), part(mixed, inner + groups * keys, keys));
            Steps { dt: part(wide, len - heads, 1), b, c, group: heads / groups }
        } else {
            self.low_rank(i, ssm, mixed)?
        };
        let decay = self.time_steps(i, steps.dt, by_channel, if by_channel { inner } else { heads })?;
        let scanned = self.buffer("scanned channels", inner);
        self.op(Op::Scan(Scan {
            x: part(mixed, 0, dim),
            b: steps.b,
            c: steps.c,
            group: steps.group,
            decay,
            state: self.state_of(i, (conv - 1) * channels),
            heads: z_heads,
            keys,
            values: dim,
            out: scanned,
        }));
        // the channels' direct part d · x, and the gate
        let d = Some((self.required_vector(SsmD, i)?, if by_channel { 1 } else { dim }));
        self.map(Map { scale: d, add: true, ..copy(whole(mixed), whole(scanned), 1, inner) });
        let out = self.buffer("state space's output", inner);
        let norm = if kind == Recurrent::Mamba2 { self.vector(SsmNorm, i) } else { None };
        let gated = if norm.is_none() { out } else { scanned };
        let by = Some((z, Function::Activation(Activation::Silu)));
        self.map(Map { by, ..copy(part(scanned, 0, dim), part(gated, 0, dim), z_heads, dim) });
        if norm.is_some() {
            let each = inner / groups;
            let [from, to] = [scanned, out].map(|buffer| part(buffer, 0, each));
            self.op(Op::Norm(Norm { from, to, heads: groups, dim: each, params: self.rms(norm), own: true }));
        }
        Ok(Mixed { rows: out, output: SsmOut, bias: None })
    }

    /// Computes the time steps, and for decays per head their factors.
    fn time_steps(&mut self, i: usize, from: Part, by_channel: bool, width: usize) -> Result<Decay, EngineError> {
        use TensorRole::*;
        let dt = self.buffer("time steps", width);
        let bias = Some(self.required_vector(SsmDtBias, i)?);
        self.map(Map { bias, f: Function::Softplus, ..copy(from, whole(dt), 1, width) });
        let (a, steps) = (self.required_vector(SsmA, i)?, part(dt, 0, 1));
        if by_channel {
            return Ok(Decay::PerChannel { steps, a });
        }
        let decays = self.buffer("decays", width);
        self.map(Map { scale: Some((a, 1)), then: Function::Exp, ..copy(whole(dt), whole(decays), 1, width) });
        Ok(Decay::PerHead { factors: part(decays, 0, 1), steps })
    }

    /// The time step, b and c as low-rank projections of x (Mamba 1 and PLaMo 2).
    fn low_rank(&mut self, i: usize, ssm: &Ssm, mixed: BufferId) -> Result<Steps, EngineError> {
        use TensorRole::*;
        let keys = ssm.state;
        let rank = ssm.time_rank(self.hidden());
        // the starts of dt, b and c in the projection of x
        let starts = if ssm.kind == Recurrent::Mamba1 { [0, rank, rank + keys] } else { [2 * keys, 0, keys] };
        let down = self.matrix(SsmX, i)?;
        let low = self.product(mixed, down, "projections of low rank");
        let has_norms = self.has(SsmDtNorm, i);
        for ((role, start), dim) in [SsmDtNorm, SsmBNorm, SsmCNorm].into_iter().zip(starts).zip([rank, keys, keys]) {
            if has_norms || ssm.normalised {
                let weight = if has_norms { Some(self.required_vector(role, i)?) } else { None };
                let at = part(low, start, 0);
                self.op(Op::Norm(Norm { from: at, to: at, heads: 1, dim, params: self.rms(weight), own: false }));
            }
        }
        let rows = self.buffer("time step of low rank", rank);
        self.map(copy(part(low, starts[0], 0), whole(rows), 1, rank));
        let up = self.matrix(SsmDt, i)?;
        let dt = self.product(rows, up, "unfinished time steps");
        let group = if ssm.kind == Recurrent::Mamba1 { 1 } else { ssm.heads };
        Ok(Steps { dt: part(dt, 0, 1), b: part(low, starts[1], 0), c: part(low, starts[2], 0), group })
    }
}

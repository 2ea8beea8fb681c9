//! Builds selective state spaces, as in `cpu/mixer/mamba.rs`.

use super::super::sys;
use super::builder::{Builder, Input, NO_PART, copy, part};
use super::layer::Mixed;
use super::parts::NONE;
use crate::EngineError;
use model::arch::Recurrent;
use model::{Ssm, TensorRole};

/// The places of the time step, b and c of each row.
struct Steps {
    dt: sys::pen_part,
    b: sys::pen_part,
    c: sys::pen_part,
    /// The number of heads that share b and c.
    group: usize,
}

impl Builder<'_> {
    pub fn mamba(&mut self, i: usize, ssm: &Ssm, input: Input) -> Result<Mixed, EngineError> {
        use TensorRole::*;
        let Ssm { kind, inner, state: keys, conv, heads, groups, .. } = *ssm;
        let by_channel = kind == Recurrent::Mamba1;
        let matrix = self.matrix(SsmIn, i)?;
        let len = self.program.tensors[matrix as usize].desc.rows as usize;
        let wide = self.floats("state space's input", len);
        self.products(input, &[matrix], wide, sys::PEN_STORE);
        // z is the gate, x the input of the convolution
        let (z_heads, dim) = if by_channel { (1, inner) } else { (heads, inner / heads) };
        let (z, x) = match kind {
            Recurrent::Mamba1 => (part(wide, inner, 0), part(wide, 0, 0)),
            Recurrent::MambaPlamo => {
                // each head holds its z, then its x
                let sorted = self.floats("channels in order", inner);
                self.op(copy(part(wide, dim, 2 * dim), part(sorted, 0, dim), heads, dim));
                (part(wide, 0, 2 * dim), part(sorted, 0, 0))
            }
            _ => (part(wide, 0, dim), part(wide, inner, 0)),
        };
        let mixed = self.convolution(i, x, ssm.conv_channels(), (SsmConv, SsmConvBias, true, conv), 0)?;
        let mut steps = if kind == Recurrent::Mamba2 {
            let (b, c) = (part(mixed, inner, keys), part(mixed, inner + groups * keys, keys));
            Steps { dt: part(wide, len - heads, 1), b, c, group: heads / groups }
        } else {
            self.low_rank(i, ssm, mixed)?
        };
        let width = if by_channel { inner } else { heads };
        let dt = self.floats("time steps", width);
        let bias = self.required_vector(SsmDtBias, i)?;
        self.op(sys::pen_map { bias, f: sys::PEN_SOFTPLUS, ..copy(steps.dt, part(dt, 0, 0), 1, width) });
        steps.dt = part(dt, 0, 1);
        let a = self.required_vector(SsmA, i)?;
        let decays = if by_channel {
            NO_PART
        } else {
            let decays = self.floats("decays", heads);
            let of = copy(steps.dt, part(decays, 0, 0), 1, heads);
            self.op(sys::pen_map { scale: a, scale_group: 1, then: sys::PEN_EXP, ..of });
            part(decays, 0, 1)
        };
        let scanned = self.floats("scanned channels", inner);
        self.op(sys::pen_scan {
            x: part(mixed, 0, dim),
            b: steps.b,
            c: steps.c,
            factors: decays,
            steps: steps.dt,
            state: sys::pen_state { layer: self.states[i], first: ((conv - 1) * ssm.conv_channels()) as u32 },
            constant_factors: NONE,
            a: if by_channel { a } else { NONE },
            by_channel: u32::from(by_channel),
            group: steps.group as u32,
            heads: z_heads as u32,
            keys: keys as u32,
            values: dim as u32,
            out: scanned,
        });
        // the channels' direct part d · x, and the gate
        let (all, d) = (part(scanned, 0, 0), self.required_vector(SsmD, i)?);
        let direct = copy(part(mixed, 0, 0), all, 1, inner);
        self.op(sys::pen_map { scale: d, scale_group: if by_channel { 1 } else { dim as u32 }, add: 1, ..direct });
        let out = self.halves("state space's output", inner);
        let norm = if kind == Recurrent::Mamba2 { self.vector(SsmNorm, i) } else { NONE };
        let gated = if norm == NONE { out } else { scanned };
        let gate = copy(part(scanned, 0, dim), part(gated, 0, dim), z_heads, dim);
        self.op(sys::pen_map { by: z, g: sys::PEN_SILU, ..gate });
        if norm != NONE {
            let each = inner / groups;
            self.op(sys::pen_group_norm {
                r#in: part(scanned, 0, each),
                out: part(out, 0, each),
                kind: sys::PEN_RMS_NORM,
                heads: groups as u32,
                dim: each as u32,
                weight: norm,
                bias: NONE,
                own: 1,
                eps: self.weights.spec.norm_eps,
                length: 0.0,
            });
        }
        Ok(Mixed { rows: out, output: SsmOut, bias: NONE })
    }

    /// A layer's convolution over time. The earlier rows begin at `first` in the layer's state.
    pub fn convolution(
        &mut self,
        i: usize,
        from: sys::pen_part,
        channels: usize,
        (kernel, bias, silu, taps): (TensorRole, TensorRole, bool, usize),
        first: usize,
    ) -> Result<u32, EngineError> {
        let mixed = self.floats("channels over time", channels);
        self.convolve(i, [from, part(mixed, 0, 0)], channels, (kernel, Some(bias), silu, taps), first)?;
        Ok(mixed)
    }

    pub fn convolve(
        &mut self,
        i: usize,
        [from, to]: [sys::pen_part; 2],
        channels: usize,
        (kernel, bias, silu, taps): (TensorRole, Option<TensorRole>, bool, usize),
        first: usize,
    ) -> Result<(), EngineError> {
        let op = sys::pen_convolve {
            r#in: from,
            out: to,
            state: sys::pen_state { layer: self.states[i], first: first as u32 },
            kernel: self.required_vector(kernel, i)?,
            bias: bias.map_or(NONE, |bias| self.vector(bias, i)),
            channels: channels as u32,
            taps: taps as u32,
            silu: u32::from(silu),
        };
        self.op(op);
        Ok(())
    }

    /// The time step, b and c as low-rank projections of x (Mamba 1 and PLaMo 2).
    fn low_rank(&mut self, i: usize, ssm: &Ssm, mixed: u32) -> Result<Steps, EngineError> {
        use TensorRole::*;
        let (keys, inner) = (ssm.state, ssm.inner);
        let rank = ssm.time_rank(self.weights.spec.hidden_dim);
        // the starts of dt, b and c in the projection of x
        let starts = if ssm.kind == Recurrent::Mamba1 { [0, rank, rank + keys] } else { [2 * keys, 0, keys] };
        let x = self.rounded("channels for the time step", part(mixed, 0, 0), inner);
        let down = self.matrix(SsmX, i)?;
        let low = self.product(x, down, "time step of low rank");
        let has_norms = self.has(SsmDtNorm, i);
        for ((role, start), len) in [SsmDtNorm, SsmBNorm, SsmCNorm].into_iter().zip(starts).zip([rank, keys, keys]) {
            if has_norms || ssm.normalised {
                let weight = if has_norms { self.required_vector(role, i)? } else { NONE };
                self.op(sys::pen_group_norm {
                    r#in: part(low, start, 0),
                    out: part(low, start, 0),
                    kind: sys::PEN_RMS_NORM,
                    heads: 1,
                    dim: len as u32,
                    weight,
                    bias: NONE,
                    own: 0,
                    eps: self.weights.spec.norm_eps,
                    length: 0.0,
                });
            }
        }
        let rows = self.rounded("time step of low rank", part(low, starts[0], 0), rank);
        let up = self.matrix(SsmDt, i)?;
        let dt = self.product(rows, up, "unfinished time steps");
        let group = if ssm.kind == Recurrent::Mamba1 { 1 } else { ssm.heads };
        Ok(Steps { dt: part(dt, 0, 1), b: part(low, starts[1], 0), c: part(low, starts[2], 0), group })
    }
}

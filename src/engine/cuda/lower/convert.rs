//! Ops that the device computes one by one.

use super::super::sys;
use super::lowering::Lowering;
use super::parts::{NO_PART, NONE};
use crate::EngineError;
use crate::program::op::StatePart;
use crate::program::{Convolve, Correct, Decay, Delta, Embed, Function, Map, Match, Predict, Scan};
use model::Activation;

pub fn activation(kind: Activation) -> u32 {
    match kind {
        Activation::GeluQuick => sys::PEN_GELU_QUICK,
        Activation::Silu => sys::PEN_SILU,
        Activation::Gelu => sys::PEN_GELU,
        Activation::GeluErf => sys::PEN_GELU_ERF,
        Activation::Relu => sys::PEN_RELU,
        Activation::ReluSquared => sys::PEN_RELU_SQUARED,
        Activation::SwigluClamped => sys::PEN_SWIGLU_CLAMPED,
        Activation::Xielu => sys::PEN_XIELU,
    }
}

fn function(function: Function) -> u32 {
    match function {
        Function::Identity => sys::PEN_IDENTITY,
        Function::Sigmoid => sys::PEN_SIGMOID,
        Function::Tanh => sys::PEN_TANH,
        Function::Softplus => sys::PEN_SOFTPLUS,
        Function::Exp => sys::PEN_EXP,
        Function::Activation(kind) => activation(kind),
    }
}

fn state(at: StatePart) -> sys::pen_state {
    sys::pen_state { layer: at.state as u32, first: at.first as u32 }
}

impl Lowering<'_> {
    pub fn embed(&mut self, op: &Embed) -> Result<(), EngineError> {
        let (table, positions) = (self.matrix(op.table)?, self.optional_matrix(op.positions)?);
        let (types, out) = (self.vector_or_none(op.types), self.buffer(op.out));
        self.op(sys::pen_embed { table, types, positions, out, pads_embeddings: u32::from(op.pads_embeddings), scale: op.scale });
        Ok(())
    }

    pub fn map(&mut self, op: &Map) -> Result<(), EngineError> {
        let (from, out) = (self.part(op.from), self.part(op.to));
        let by = op.by.map(|(by, _)| self.part(by));
        let (bias, scale) = (self.vector_or_none(op.bias), self.vector_or_none(op.scale.map(|(scale, _)| scale)));
        self.op(sys::pen_map {
            r#in: from,
            by: by.unwrap_or(NO_PART),
            out,
            heads: op.heads as u32,
            dim: op.dim as u32,
            bias,
            f: function(op.f),
            scale,
            scale_group: op.scale.map_or(0, |(_, group)| group as u32),
            then: function(op.then),
            g: op.by.map_or(sys::PEN_IDENTITY, |(_, g)| function(g)),
            add: u32::from(op.add),
            factor: op.factor,
        });
        Ok(())
    }

    pub fn convolve(&mut self, op: &Convolve) -> Result<(), EngineError> {
        let (from, out) = (self.part(op.from), self.part(op.to));
        let (kernel, bias) = (self.vector(op.kernel), self.vector_or_none(op.bias));
        let (channels, taps, silu) = (op.channels as u32, op.taps as u32, u32::from(op.silu));
        self.op(sys::pen_convolve { r#in: from, out, state: state(op.state), kernel, bias, channels, taps, silu });
        Ok(())
    }

    pub fn scan(&mut self, op: &Scan) -> Result<(), EngineError> {
        let [x, b, c] = [op.x, op.b, op.c].map(|part| self.part(part));
        let (mut factors, mut steps, mut constant_factors, mut a) = (NO_PART, NO_PART, NONE, NONE);
        match op.decay {
            Decay::PerHead { factors: of, steps: by } => (factors, steps) = (self.part(of), self.part(by)),
            Decay::Constant(of) => constant_factors = self.vector(of),
            Decay::PerChannel { steps: by, a: of } => (steps, a) = (self.part(by), self.vector(of)),
        }
        let out = self.buffer(op.out);
        self.op(sys::pen_scan {
            x,
            b,
            c,
            factors,
            steps,
            state: state(op.state),
            constant_factors,
            a,
            by_channel: u32::from(matches!(op.decay, Decay::PerChannel { .. })),
            group: op.group as u32,
            heads: op.heads as u32,
            keys: op.keys as u32,
            values: op.values as u32,
            out,
        });
        Ok(())
    }

    pub fn delta(&mut self, op: &Delta) -> Result<(), EngineError> {
        let [q, k, v, decay, beta] = [op.q, op.k, op.v, op.decay, op.beta].map(|part| self.part(part));
        let out = self.buffer(op.out);
        self.op(sys::pen_delta {
            q,
            k,
            v,
            decay,
            beta,
            state: state(op.state),
            by_key: u32::from(op.by_key),
            tiled: u32::from(op.tiled),
            heads: op.heads as u32,
            key_heads: op.key_heads as u32,
            keys: op.keys as u32,
            values: op.values as u32,
            out,
        });
        Ok(())
    }

    pub fn predict(&mut self, op: &Predict) -> Result<(), EngineError> {
        let (streams, router, coefficients) = (self.buffer(op.streams), self.buffer(op.router), self.vector(op.coefficients));
        let hidden = self.from.buffer(self.from.stream).width as u32;
        self.op(sys::pen_predict { streams, router, coefficients, hidden });
        Ok(())
    }

    pub fn correct(&mut self, op: &Correct) -> Result<(), EngineError> {
        let [streams, x, router] = [op.streams, op.x, op.router].map(|id| self.buffer(id));
        let coefficients = self.vector(op.coefficients);
        let hidden = self.from.buffer(self.from.stream).width as u32;
        self.op(sys::pen_correct { streams, x, router, coefficients, hidden });
        Ok(())
    }

    pub fn match_length(&mut self, op: &Match) -> Result<(), EngineError> {
        let [from, like, out] = [op.from, op.like, op.to].map(|part| self.part(part));
        self.op(sys::pen_match { r#in: from, like, out, dim: op.dim as u32, add: u32::from(op.add) });
        Ok(())
    }
}

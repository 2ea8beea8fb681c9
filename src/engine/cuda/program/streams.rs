//! Builds AltUp's streams and the low-rank connection in parallel with attention (Gemma 3n), as in `cpu/altup.rs`.

use super::super::sys;
use super::builder::{Builder, Input, Norm, copy, part};
use super::parts::NONE;
use crate::EngineError;
use model::arch::Block;
use model::spec::ALTUP_STREAMS as STREAMS;
use model::{NormKind, TensorRole};

impl Builder<'_> {
    fn hidden(&self) -> usize {
        self.weights.spec.hidden_dim
    }

    fn streams(&mut self) -> u32 {
        let hidden = self.hidden();
        self.floats("streams", STREAMS * hidden)
    }

    /// Makes the streams: x, and projections of x that are scaled to the magnitude of x.
    pub fn begin_streams(&mut self) -> Result<(), EngineError> {
        if self.weights.spec.block != Block::Altup {
            return Ok(());
        }
        let (hidden, streams, x) = (self.hidden(), self.streams(), part(self.x, 0, 0));
        self.op(copy(x, part(streams, 0, 0), 1, hidden));
        let rows = self.rounded_stream("stream");
        for stream in 1..STREAMS {
            let matrix = self.part(TensorRole::AltupProj, stream - 1, STREAMS - 1)?;
            let other = part(self.product(rows, matrix, "other stream"), 0, 0);
            let out = part(streams, stream * hidden, 0);
            self.op(sys::pen_match { r#in: other, like: x, out, dim: hidden as u32, add: 0 });
        }
        Ok(())
    }

    /// x = the mean of stream 0 and of projections of the other streams that are scaled to its magnitude.
    pub fn end_streams(&mut self) -> Result<(), EngineError> {
        if self.weights.spec.block != Block::Altup {
            return Ok(());
        }
        let (hidden, streams, x) = (self.hidden(), self.streams(), part(self.x, 0, 0));
        let first = part(streams, 0, 0);
        self.settle();
        self.op(copy(first, x, 1, hidden));
        for stream in 1..STREAMS {
            let rows = self.rounded("stream", part(streams, stream * hidden, 0), hidden);
            let matrix = self.part(TensorRole::AltupUnembdProj, stream - 1, STREAMS - 1)?;
            let other = part(self.product(rows, matrix, "other stream"), 0, 0);
            self.op(sys::pen_match { r#in: other, like: first, out: x, dim: hidden as u32, add: 1 });
        }
        self.scale_stream(1.0 / STREAMS as f32);
        Ok(())
    }

    /// Replaces the streams by the layer's predictions of them, then sets x to stream 0.
    pub fn predict_streams(&mut self, i: usize) -> Result<(), EngineError> {
        let (hidden, streams) = (self.hidden(), self.streams());
        let first = copy(part(streams, 0, 0), part(self.x, 0, 0), 1, hidden);
        self.settle();
        self.op(first);
        let router = self.route_streams(i)?;
        let coefficients = self.required_vector(TensorRole::AltupPredictCoef, i)?;
        self.op(sys::pen_predict { streams, router, coefficients, hidden: hidden as u32 });
        self.op(first);
        Ok(())
    }

    /// Corrects the streams by the difference between x, which the layer computed, and its prediction. Then sets x to the scaled
    /// stream 0, the input of the per-layer part.
    pub fn correct_streams(&mut self, i: usize) -> Result<(), EngineError> {
        let (hidden, streams) = (self.hidden(), self.streams());
        let router = self.route_streams(i)?;
        let coefficients = self.required_vector(TensorRole::AltupCorrectCoef, i)?;
        self.op(sys::pen_correct { streams, x: self.x, router, coefficients, hidden: hidden as u32 });
        let scale = self.required_vector(TensorRole::AltupCorrectScale, i)?;
        let first = copy(part(streams, 0, 0), part(self.x, 0, 0), 1, hidden);
        self.op(sys::pen_map { scale, scale_group: 1, ..first });
        Ok(())
    }

    /// Adds rows to all streams except stream 0.
    pub fn add_to_streams(&mut self, rows: u32) {
        let (hidden, streams) = (self.hidden(), self.streams());
        for stream in 1..STREAMS {
            self.op(sys::pen_map { add: 1, ..copy(part(rows, 0, 0), part(streams, stream * hidden, 0), 1, hidden) });
        }
    }

    /// tanh(router(norm(x)))
    fn route_streams(&mut self, i: usize) -> Result<u32, EngineError> {
        let weight = self.vector_with(TensorRole::AltupRouterNorm, i, |all| {
            let len = all.len() as f32;
            all.into_iter().map(|weight| weight / len).collect()
        });
        let h = self.input(Some(Norm { kind: NormKind::Rms, weight, bias: NONE }), "router's h");
        let h = self.ready(h);
        let matrix = self.matrix(TensorRole::AltupRouter, i)?;
        let router = self.product(h, matrix, "streams' router");
        let all = part(router, 0, 0);
        self.op(sys::pen_map { f: sys::PEN_TANH, ..copy(all, all, 1, STREAMS) });
        Ok(router)
    }

    /// Computes the low-rank connection from attention's input.
    pub fn laurel(&mut self, i: usize, h: u32) -> Result<(), EngineError> {
        let hidden = self.hidden();
        let (down, up) = (self.matrix(TensorRole::LaurelL, i)?, self.matrix(TensorRole::LaurelR, i)?);
        let rank = self.program.tensors[down as usize].desc.rows as usize;
        let low = self.product(h, down, "connection of low rank");
        let rows = self.rounded("connection of low rank", part(low, 0, 0), rank);
        let laurel = self.floats("connection", hidden);
        self.products(Input::Ready(rows), &[up], laurel, sys::PEN_STORE);
        let norm = self.rms_norm(TensorRole::LaurelPostNorm, i)?;
        self.norm_in_place(laurel, hidden, norm);
        self.op(sys::pen_map { add: 1, ..copy(part(h, 0, 0), part(laurel, 0, 0), 1, hidden) });
        Ok(())
    }

    /// x = (x + connection) / sqrt(2)
    pub fn join_laurel(&mut self) {
        let hidden = self.hidden();
        self.settle();
        let laurel = self.floats("connection", hidden);
        self.op(sys::pen_map { add: 1, ..copy(part(laurel, 0, 0), part(self.x, 0, 0), 1, hidden) });
        self.scale_stream(std::f32::consts::FRAC_1_SQRT_2);
    }
}

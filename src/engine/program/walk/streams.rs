//! Writes AltUp (Baykal et al. 2023) and LAuReL (Menghani et al. 2024): several residual streams, of which a layer computes one and
//! predicts the others (Gemma 3n). Stream 0 is the computed one.

use super::*;
use crate::program::tensor::Change;
use model::arch::Block;
use model::spec::ALTUP_STREAMS as STREAMS;

impl Walk<'_> {
    fn streams(&mut self) -> BufferId {
        let hidden = self.hidden();
        self.buffer("streams", STREAMS * hidden)
    }

    /// Makes the streams: x, and projections of x that are scaled to the magnitude of x.
    pub fn begin_streams(&mut self) -> Result<(), EngineError> {
        if self.spec().block != Block::Altup {
            return Ok(());
        }
        let (hidden, streams) = (self.hidden(), self.streams());
        self.map(copy(whole(self.x), part(streams, 0, 0), 1, hidden));
        for stream in 1..STREAMS {
            let matrix = self.part_of(TensorRole::AltupProj, stream - 1, STREAMS - 1)?;
            let other = self.product(self.x, matrix, "other stream");
            let to = part(streams, stream * hidden, 0);
            self.op(Op::Match(Match { from: whole(other), like: whole(self.x), to, dim: hidden, add: false }));
        }
        Ok(())
    }

    /// x = the mean of stream 0 and of projections of the other streams that are scaled to its magnitude.
    pub fn end_streams(&mut self) -> Result<(), EngineError> {
        if self.spec().block != Block::Altup {
            return Ok(());
        }
        let (hidden, streams) = (self.hidden(), self.streams());
        let first = part(streams, 0, 0);
        self.map(copy(first, whole(self.x), 1, hidden));
        let one = self.buffer("one stream", hidden);
        for stream in 1..STREAMS {
            self.map(copy(part(streams, stream * hidden, 0), whole(one), 1, hidden));
            let matrix = self.part_of(TensorRole::AltupUnembdProj, stream - 1, STREAMS - 1)?;
            let other = self.product(one, matrix, "other stream");
            self.op(Op::Match(Match { from: whole(other), like: first, to: whole(self.x), dim: hidden, add: true }));
        }
        self.scale_stream(1.0 / STREAMS as f32);
        Ok(())
    }

    /// Replaces the streams by the layer's predictions of them, then sets x to stream 0.
    pub fn predict_streams(&mut self, i: usize) -> Result<(), EngineError> {
        let (hidden, streams) = (self.hidden(), self.streams());
        let first = copy(part(streams, 0, 0), whole(self.x), 1, hidden);
        self.map(first);
        let router = self.route_streams(i)?;
        let coefficients = self.required_vector(TensorRole::AltupPredictCoef, i)?;
        self.op(Op::Predict(Predict { streams, router, coefficients }));
        self.map(first);
        Ok(())
    }

    /// Corrects the streams by the difference between x, which the layer computed, and its prediction. Then sets x to the scaled
    /// stream 0, the input of the per-layer part.
    pub fn correct_streams(&mut self, i: usize) -> Result<(), EngineError> {
        let (hidden, streams) = (self.hidden(), self.streams());
        let router = self.route_streams(i)?;
        let coefficients = self.required_vector(TensorRole::AltupCorrectCoef, i)?;
        self.op(Op::Correct(Correct { streams, x: self.x, router, coefficients }));
        let scale = self.required_vector(TensorRole::AltupCorrectScale, i)?;
        self.map(Map { scale: Some((scale, 1)), ..copy(part(streams, 0, 0), whole(self.x), 1, hidden) });
        Ok(())
    }

    /// Adds rows to all streams except stream 0.
    pub fn add_to_streams(&mut self, rows: BufferId) {
        let (hidden, streams) = (self.hidden(), self.streams());
        for stream in 1..STREAMS {
            self.map(Map { add: true, ..copy(whole(rows), part(streams, stream * hidden, 0), 1, hidden) });
        }
    }

    /// tanh(router(norm(x)))
    fn route_streams(&mut self, i: usize) -> Result<BufferId, EngineError> {
        use TensorRole::*;
        let weight = self.required_changed(AltupRouterNorm, i, Change::OverLength)?;
        let h = self.normed("router's h", Some(self.rms(Some(weight))));
        let matrix = self.matrix(AltupRouter, i)?;
        let router = self.product(h, matrix, "streams' router");
        let all = whole(router);
        self.map(Map { f: Function::Tanh, ..copy(all, all, 1, STREAMS) });
        Ok(router)
    }

    /// Computes the low-rank connection from attention's input.
    pub fn laurel(&mut self, i: usize, h: BufferId) -> Result<(), EngineError> {
        let (down, up) = (self.matrix(TensorRole::LaurelL, i)?, self.matrix(TensorRole::LaurelR, i)?);
        let low = self.product(h, down, "connection of low rank");
        let laurel = self.product(low, up, "connection");
        let norm = self.rms_norm(TensorRole::LaurelPostNorm, i)?;
        self.norm_in_place(laurel, norm);
        self.map(Map { add: true, ..copy(whole(h), whole(laurel), 1, self.hidden()) });
        Ok(())
    }

    /// x = (x + connection) / sqrt(2)
    pub fn join_laurel(&mut self) {
        let hidden = self.hidden();
        let laurel = self.buffer("connection", hidden);
        self.map(Map { add: true, ..copy(whole(laurel), whole(self.x), 1, hidden) });
        self.scale_stream(std::f32::consts::FRAC_1_SQRT_2);
    }
}

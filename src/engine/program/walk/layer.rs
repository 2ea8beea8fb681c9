//! Writes a layer, with its branches and its residual stream wired as [`Block`] says.

use super::*;
use model::arch::{Beside, Block, Recurrent};
use model::{FeedForward, Mixer, Ssm};

impl Walk<'_> {
    pub fn write_layer(&mut self, i: usize) -> Result<(), EngineError> {
        use TensorRole::*;
        let spec = self.spec();
        let (block, layer, hidden) = (spec.block, spec.layers[i], spec.hidden_dim);
        if block == Block::Altup {
            self.predict_streams(i)?;
        }
        self.look_ahead(i)?;
        let attn_norm = self.norm(AttnNorm, AttnNormBias, i);
        let ffn_norm = self.norm(FfnNorm, FfnNormBias, i);
        let h = self.normed("h", attn_norm);
        if block == Block::Altup {
            self.laurel(i, h)?;
        }
        // the layer's input as the feed-forward part or its experts see it
        let early_norm = if spec.arch.experts.beside == Beside::Residual { self.own_norm(FfnNormExps, FfnNormBias, i) } else { None };
        let early = early_norm.or(ffn_norm.filter(|_| block == Block::Parallel)).map(|norm| self.normed("early h", Some(norm)));
        if block == Block::NormedResidual {
            self.map(Map { factor: spec.residual_scale, ..copy(whole(h), whole(self.x), 1, hidden) });
        }
        let scale = if block == Block::NormedResidual { 1.0 } else { spec.residual_scale };
        let [attn_scales, ffn_scales] = [AttnScale, FfnScale].map(|role| self.vector(role, i));
        let finish = |norm: Option<NormParams>, scales| Finish { norm: norm.filter(|_| block != Block::PostNorm), scale, scales };
        let post_attn = self.own_norm(PostAttnNorm, PostAttnNormBias, i);
        for mixed in self.mixers(i, h)? {
            self.branch(i, &mixed, finish(post_attn, attn_scales))?;
        }
        if let (Block::PostNorm, Some(norm)) = (block, post_attn) {
            self.norm_in_place(self.x, norm);
        }
        if block == Block::Altup {
            self.join_laurel();
        }
        let post_ffn = self.own_norm(PostFfnNorm, PostFfnNormBias, i);
        if layer.ffn != FeedForward::None {
            let h = if block == Block::Parallel { early.unwrap_or(h) } else { self.normed("h", ffn_norm) };
            if block == Block::NormedResidual {
                self.map(Map { factor: spec.residual_scale, ..copy(whole(h), whole(self.x), 1, hidden) });
            }
            self.feed_forward(i, h, early, finish(post_ffn, ffn_scales))?;
            if let (Block::PostNorm, Some(norm)) = (block, post_ffn) {
                self.norm_in_place(self.x, norm);
            }
        }
        self.end_layer(i)
    }

    /// The norm of the stream, or a copy of the stream without a norm.
    pub fn normed(&mut self, name: &str, norm: Option<NormParams>) -> BufferId {
        let (hidden, x) = (self.hidden(), self.x);
        let h = self.buffer(name, hidden);
        match norm {
            Some(norm) => self.norm_to(x, h, norm),
            None => self.map(copy(whole(x), whole(h), 1, hidden)),
        }
        h
    }

    /// The outputs of the layer's mixers, which all read the same input.
    fn mixers(&mut self, i: usize, h: BufferId) -> Result<Vec<Mixed>, EngineError> {
        match self.spec().layers[i].mixer {
            Mixer::None => Ok(Vec::new()),
            Mixer::Attention(attention) => Ok(vec![self.attention(i, &attention, h)?]),
            Mixer::Latent(latent) => Ok(vec![self.latent(i, &latent, h)?]),
            Mixer::Recurrent(ssm) => Ok(vec![self.recurrent(i, &ssm, h)?]),
            Mixer::Both(attention, ssm) => Ok(vec![self.attention(i, &attention, h)?, self.recurrent(i, &ssm, h)?]),
        }
    }

    fn recurrent(&mut self, i: usize, ssm: &Ssm, h: BufferId) -> Result<Mixed, EngineError> {
        match ssm.kind {
            Recurrent::Mamba1 | Recurrent::Mamba2 | Recurrent::MambaPlamo => self.mamba(i, ssm, h),
            Recurrent::Delta | Recurrent::DeltaNext | Recurrent::Kda => self.delta(i, ssm, h),
            Recurrent::ShortConv => self.short_conv(i, ssm, h),
            Recurrent::Lightning => self.lightning(i, ssm, h),
        }
    }

    /// Ends a layer after its branches: corrects the streams, adds the layer's own input and applies the layer's factor.
    fn end_layer(&mut self, i: usize) -> Result<(), EngineError> {
        let (hidden, altup) = (self.hidden(), self.spec().block == Block::Altup);
        if altup {
            self.correct_streams(i)?;
        }
        if self.spec().per_layer_input > 0 {
            let own = self.per_layer(i)?;
            if altup {
                self.add_to_streams(own);
            } else {
                self.map(Map { add: true, ..copy(whole(own), whole(self.x), 1, hidden) });
            }
        }
        if let Some(scale) = self.vector(TensorRole::LayerOutputScale, i) {
            self.map(Map { scale: Some((scale, hidden)), ..copy(whole(self.x), whole(self.x), 1, hidden) });
        }
        if i < self.spec().deepstack {
            self.op(Op::AddSlice(AddSlice { slice: i + 1, to: self.x }));
        }
        Ok(())
    }
}

//! Builds a layer, with its branches and its residual stream wired as [`Block`] says.

use super::super::sys;
use super::builder::{Builder, Input, Norm, copy, part};
use super::parts::NONE;
use crate::EngineError;
use model::arch::{Beside, Block, Recurrent};
use model::{Mixer, Ssm, TensorRole};

/// The output of a mixer before its output projection.
pub struct Mixed {
    /// [num_tokens, …] of float16
    pub rows: u32,
    pub output: TensorRole,
    pub bias: u32,
}

impl Builder<'_> {
    pub fn layer(&mut self, i: usize) -> Result<(), EngineError> {
        use TensorRole::*;
        let spec = &self.weights.spec;
        let (block, scale, layer) = (spec.block, spec.residual_scale, spec.layers[i]);
        if block == Block::Altup {
            self.predict_streams(i)?;
        }
        self.look_ahead(i)?;
        // the experts' norm of the layer's input, in architectures whose experts see that input before attention
        let early_norm = if spec.arch.experts.beside == Beside::Residual { self.own_norm(FfnNormExps, FfnNormBias, i) } else { None };
        let ffn_norm = self.norm(FfnNorm, FfnNormBias, i);
        let early = early_norm.or(ffn_norm.filter(|_| block == Block::Parallel));
        let attn_norm = self.norm(AttnNorm, AttnNormBias, i);
        let mut input = match (block, attn_norm) {
            (Block::NormedResidual, Some(norm)) => Input::Ready(self.normed_stream(norm, "h", scale)),
            _ => self.input(attn_norm, "h"),
        };
        if block == Block::Altup {
            let h = self.ready(input);
            self.laurel(i, h)?;
            input = Input::Ready(h);
        }
        let mut ffn_input = None;
        if early.is_some() || block == Block::Parallel {
            let h = self.ready(input);
            input = Input::Ready(h);
            let own = early.map(|norm| self.input(Some(norm), "early h"));
            ffn_input = Some(own.map_or(h, |own| self.ready(own)));
        }
        let branch_scale = if block == Block::NormedResidual { 1.0 } else { scale };
        let post_attn = self.own_norm(PostAttnNorm, PostAttnNormBias, i);
        let post_ffn = self.own_norm(PostFfnNorm, PostFfnNormBias, i);
        let behind = |norm: Option<Norm>| norm.filter(|_| block != Block::PostNorm);
        let both = matches!(layer.mixer, Mixer::Both(..));
        if both {
            input = Input::Ready(self.ready(input));
        }
        for mixed in self.mixers(i, input)? {
            let output = self.matrix(mixed.output, i)?;
            self.branch(output, mixed.rows, mixed.bias, behind(post_attn), branch_scale);
        }
        if let (Block::PostNorm, Some(norm)) = (block, post_attn) {
            self.norm_in_place(self.x, spec.hidden_dim, norm);
        }
        if block == Block::Altup {
            self.join_laurel();
        }
        let input = match block {
            Block::Parallel => ffn_input.map(Input::Ready),
            Block::NormedResidual if layer.ffn != model::FeedForward::None => {
                ffn_norm.map(|norm| Input::Ready(self.normed_stream(norm, "h", scale)))
            }
            _ => None,
        };
        self.feed_forward(i, input, ffn_norm, ffn_input, (behind(post_ffn), branch_scale))?;
        if let (Block::PostNorm, Some(norm)) = (block, post_ffn) {
            self.norm_in_place(self.x, spec.hidden_dim, norm);
        }
        self.end_layer(i)
    }

    /// h = norm(x), x = scale · h (MiniMax-01). Returns h, rounded.
    fn normed_stream(&mut self, norm: Norm, name: &str, scale: f32) -> u32 {
        let hidden = self.weights.spec.hidden_dim;
        self.settle();
        self.norm_in_place(self.x, hidden, norm);
        let h = self.rounded_stream(name);
        self.scale_stream(scale);
        h
    }

    /// The outputs of the layer's mixers, which all read the same input.
    fn mixers(&mut self, i: usize, input: Input) -> Result<Vec<Mixed>, EngineError> {
        match self.weights.spec.layers[i].mixer {
            Mixer::None => Ok(Vec::new()),
            Mixer::Attention(attention) => Ok(vec![self.attention(i, &attention, input)?]),
            Mixer::Latent(latent) => Ok(vec![self.latent(i, &latent, input)?]),
            Mixer::Recurrent(ssm) => Ok(vec![self.recurrent(i, &ssm, input)?]),
            Mixer::Both(attention, ssm) => Ok(vec![self.attention(i, &attention, input)?, self.recurrent(i, &ssm, input)?]),
        }
    }

    fn recurrent(&mut self, i: usize, ssm: &Ssm, input: Input) -> Result<Mixed, EngineError> {
        match ssm.kind {
            Recurrent::Mamba1 | Recurrent::Mamba2 | Recurrent::MambaPlamo => self.mamba(i, ssm, input),
            Recurrent::Delta | Recurrent::DeltaNext | Recurrent::Kda => self.delta(i, ssm, input),
            Recurrent::ShortConv => self.short_conv(i, ssm, input),
            Recurrent::Lightning => self.lightning(i, ssm, input),
        }
    }

    /// Ends a layer after its branches: corrects the streams, adds the layer's own input and applies the layer's factor.
    fn end_layer(&mut self, i: usize) -> Result<(), EngineError> {
        let hidden = self.weights.spec.hidden_dim;
        let altup = self.weights.spec.block == Block::Altup;
        if altup {
            self.correct_streams(i)?;
        }
        if self.weights.spec.per_layer_input > 0 {
            let own = self.per_layer(i)?;
            if altup {
                self.add_to_streams(own);
            } else {
                self.op(sys::pen_map { add: 1, ..copy(part(own, 0, 0), part(self.x, 0, 0), 1, hidden) });
            }
        }
        let scale = self.vector(TensorRole::LayerOutputScale, i);
        if scale != NONE {
            self.settle();
            let scaled = copy(part(self.x, 0, 0), part(self.x, 0, 0), 1, hidden);
            self.op(sys::pen_map { scale, scale_group: hidden as u32, ..scaled });
        }
        Ok(())
    }
}

//! Writes a draft head (multi-token prediction): a layer behind the model's layers, which reads a token and the model's row before it.
//!
//! x = W · [norm(embedding of the token), norm(row before it)], then the layer, a norm, and the matrix of the logits. What a head does not
//! have of its own are the model's: the embeddings, the norm, the matrix.

use super::*;
use crate::program::scope::Span;

impl Walk<'_> {
    /// Whether the scope is the model's draft head.
    pub fn is_draft_head(&self) -> bool {
        self.spec().draft_head == Some(self.scope.layers.start)
    }

    /// Joins each row, which is in the stream, with the embedding of the row's token.
    pub fn join_token(&mut self) -> Result<(), EngineError> {
        use TensorRole::*;
        let (hidden, head) = (self.hidden(), self.scope.layers.start);
        self.layer = Some(head);
        let (token, pair) = (self.buffer("token", hidden), self.buffer("token and row", 2 * hidden));
        let table = match self.has(NextnTokenEmbd, head) {
            true => self.stack(NextnTokenEmbd, head, Span::all(1), 0)?,
            false => self.table(TokenEmbd)?,
        };
        let scale = self.spec().embedding_scale;
        self.op(Op::Embed(Embed { table, types: None, positions: None, scale, pads_embeddings: false, out: token }));
        for (role, from, first) in [(NextnTokenNorm, token, 0), (NextnRowNorm, self.x, hidden)] {
            let params = NormParams { kind: self.spec().arch.norm, ..self.rms_norm(role, head)? };
            self.op(Op::Norm(Norm { from: whole(from), to: part(pair, first, 0), heads: 1, dim: hidden, params, own: false }));
        }
        let matrix = self.matrix(NextnProj, head)?;
        self.products(pair, [(matrix, self.x)], false);
        Ok(())
    }

    /// The norm behind the head's layer: its own, or the model's.
    pub fn draft_norm(&mut self) -> Option<NormParams> {
        use TensorRole::*;
        let (arch, head) = (self.spec().arch, self.scope.layers.start);
        match self.vector(NextnOutputNorm, head) {
            Some(weight) => {
                let kind = arch.draft_norm.unwrap_or(arch.norm);
                Some(NormParams { kind, weight: Some(weight), bias: None, eps: self.spec().norm_eps })
            }
            None => self.norm(OutputNorm, OutputNormBias, 0),
        }
    }

    /// A head with a matrix of its own.
    pub fn own_draft_output(&mut self) -> Result<(), EngineError> {
        let (spec, head) = (self.spec(), self.scope.layers.start);
        let norm = self.draft_norm();
        let matrix = self.matrix(TensorRole::NextnOutput, head)?;
        let vocab = Span::all(spec.vocab_size);
        let (scale, soft_cap) = (spec.logit_scale, spec.final_soft_cap);
        self.program.head = Some(Head { norm, vocab, matrix, bias: None, scale, soft_cap, classifier: None });
        Ok(())
    }
}

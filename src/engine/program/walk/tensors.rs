//! Adds tensors to a program, each of them once.

use super::super::scope::Span;
use super::super::tensor::{Change, Slice, Source, Tensor, TensorId, missing};
use super::Walk;
use crate::EngineError;
use model::{TensorRole, Weight};

impl Walk<'_> {
    pub fn has(&self, role: TensorRole, layer: usize) -> bool {
        self.weights.get(role, layer).is_some()
    }

    /// Looks up a tensor of the file.
    ///
    /// # Errors
    /// [`EngineError::Tensor`] if the file does not have it.
    pub fn weight(&self, role: TensorRole, layer: usize) -> Result<Weight, EngineError> {
        self.weights.get(role, layer).copied().ok_or_else(|| missing(&role.name(layer)))
    }

    /// A matrix of the file.
    pub fn matrix(&mut self, role: TensorRole, layer: usize) -> Result<TensorId, EngineError> {
        let rows = self.weight(role, layer)?.rows;
        self.rows(role, layer, Span::all(rows))
    }

    /// Some rows of a matrix of the file.
    pub fn rows(&mut self, role: TensorRole, layer: usize, span: Span) -> Result<TensorId, EngineError> {
        let cols = self.weight(role, layer)?.cols;
        let slice = if span.is_whole() { Slice::Whole } else { Slice::Rows(span) };
        Ok(self.add_part(Source::File(role, layer), slice, [span.len, cols, 1, 1], role.name(layer)))
    }

    /// Some columns of a matrix of the file.
    pub fn columns(&mut self, role: TensorRole, layer: usize, span: Span) -> Result<TensorId, EngineError> {
        let rows = self.weight(role, layer)?.rows;
        let slice = if span.is_whole() { Slice::Whole } else { Slice::Columns(span) };
        Ok(self.add_part(Source::File(role, layer), slice, [rows, span.len, 1, 1], role.name(layer)))
    }

    /// A table outside the layers, of which a row reads one row. A tied head reads the whole table of tokens.
    pub fn table(&mut self, role: TensorRole) -> Result<TensorId, EngineError> {
        let tied = role == TensorRole::TokenEmbd && crate::info::has_tied_head(self.weights) && self.shard().is_whole();
        self.stack(role, 0, Span::all(1), usize::from(tied))
    }

    /// Some matrices of a stack, of which a row uses at most `read`.
    pub fn stack(&mut self, role: TensorRole, layer: usize, own: Span, read: usize) -> Result<TensorId, EngineError> {
        let weight = self.weight(role, layer)?;
        let slice = if own.is_whole() { Slice::Whole } else { Slice::Matrices(own) };
        let shape = [weight.rows / own.of, weight.cols, own.len, read.min(own.len)];
        Ok(self.add_part(Source::File(role, layer), slice, shape, role.name(layer)))
    }

    /// Matrix `index` of a stack of `count` outside the layers, as a separate matrix.
    pub fn part_of(&mut self, role: TensorRole, index: usize, count: usize) -> Result<TensorId, EngineError> {
        let whole = self.weight(role, 0)?;
        Ok(self.add(Source::Part { role, index, count }, [whole.rows / count, whole.cols, 1, 1], role.name(0)))
    }

    /// Latent attention's matrices of some heads, from the layer's combined tensor.
    pub fn latent_part(&mut self, source: Source, layer: usize, [rows, cols]: [usize; 2], own: Span) -> Result<TensorId, EngineError> {
        self.weight(TensorRole::AttnKvB, layer)?;
        let slice = if own.is_whole() { Slice::Whole } else { Slice::Matrices(own) };
        Ok(self.add_part(source, slice, [rows, cols, own.len, own.len], TensorRole::AttnKvB.name(layer)))
    }

    /// All weights of a tensor as a vector. None if the file does not have the tensor.
    pub fn vector(&mut self, role: TensorRole, layer: usize) -> Option<TensorId> {
        let weight = *self.weights.get(role, layer)?;
        Some(self.add(Source::File(role, layer), [1, weight.rows * weight.cols, 1, 1], role.name(layer)))
    }

    /// Some elements of a vector. None if the file does not have the tensor.
    pub fn vector_part(&mut self, role: TensorRole, layer: usize, span: Span) -> Option<TensorId> {
        if span.is_whole() {
            return self.vector(role, layer);
        }
        self.weights.get(role, layer)?;
        Some(self.add_part(Source::File(role, layer), Slice::Columns(span), [1, span.len, 1, 1], role.name(layer)))
    }

    pub fn required_vector(&mut self, role: TensorRole, layer: usize) -> Result<TensorId, EngineError> {
        self.vector(role, layer).ok_or_else(|| missing(&role.name(layer)))
    }

    /// Some elements of a vector that is changed when the model is loaded.
    pub fn changed(&mut self, role: TensorRole, layer: usize, change: Change, span: Span) -> Option<TensorId> {
        self.weights.get(role, layer)?;
        let slice = if span.is_whole() { Slice::Whole } else { Slice::Columns(span) };
        Some(self.add_part(Source::Changed(role, layer, change), slice, [1, span.len, 1, 1], role.name(layer)))
    }

    pub fn required_changed(&mut self, role: TensorRole, layer: usize, change: Change) -> Result<TensorId, EngineError> {
        let weight = self.weight(role, layer)?;
        self.changed(role, layer, change, Span::all(weight.rows * weight.cols)).ok_or_else(|| missing(&role.name(layer)))
    }

    pub fn ones(&mut self, len: usize) -> TensorId {
        self.add(Source::Ones, [1, len, 1, 1], "a norm without weights".into())
    }

    pub fn lightning_factors(&mut self, layer: usize, heads: usize) -> TensorId {
        let num_layers = self.spec().num_layers();
        self.add(Source::LightningFactors { layer, num_layers }, [1, heads, 1, 1], format!("the decays of layer {layer}"))
    }

    pub fn add(&mut self, source: Source, shape: [usize; 4], name: String) -> TensorId {
        self.add_part(source, Slice::Whole, shape, name)
    }

    fn add_part(&mut self, source: Source, slice: Slice, [rows, cols, count, read]: [usize; 4], name: String) -> TensorId {
        let tensors = &mut self.program.tensors;
        *self.tensors.entry((source, slice)).or_insert_with(|| {
            tensors.push(Tensor { name, source, slice, rows, cols, count, read });
            TensorId(tensors.len() - 1)
        })
    }
}

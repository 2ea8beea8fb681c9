//! Adds tensors to a program, each of them once.

use super::super::tensor::{Change, Source, Tensor, TensorId, missing};
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
    fn weight(&self, role: TensorRole, layer: usize) -> Result<Weight, EngineError> {
        self.weights.get(role, layer).copied().ok_or_else(|| missing(&role.name(layer)))
    }

    /// A matrix of the file.
    pub fn matrix(&mut self, role: TensorRole, layer: usize) -> Result<TensorId, EngineError> {
        self.stack(role, layer, 1, 1)
    }

    /// A table outside the layers, of which a row reads one row. A tied head reads the whole table of tokens.
    pub fn table(&mut self, role: TensorRole) -> Result<TensorId, EngineError> {
        let tied = role == TensorRole::TokenEmbd && crate::info::has_tied_head(self.weights);
        self.stack(role, 0, 1, usize::from(tied))
    }

    /// A stack of `count` matrices, of which a row uses `read`.
    pub fn stack(&mut self, role: TensorRole, layer: usize, count: usize, read: usize) -> Result<TensorId, EngineError> {
        let weight = self.weight(role, layer)?;
        Ok(self.add(Source::File(role, layer), [weight.rows / count, weight.cols, count, read], role.name(layer)))
    }

    /// Matrix `index` of a stack of `count` outside the layers, as a separate matrix.
    pub fn part_of(&mut self, role: TensorRole, index: usize, count: usize) -> Result<TensorId, EngineError> {
        let whole = self.weight(role, 0)?;
        Ok(self.add(Source::Part { role, index, count }, [whole.rows / count, whole.cols, 1, 1], role.name(0)))
    }

    /// Latent attention's matrices of the heads, from the layer's combined tensor.
    pub fn latent_part(&mut self, source: Source, layer: usize, [rows, cols, count]: [usize; 3]) -> Result<TensorId, EngineError> {
        self.weight(TensorRole::AttnKvB, layer)?;
        Ok(self.add(source, [rows, cols, count, count], TensorRole::AttnKvB.name(layer)))
    }

    /// All weights of a tensor as a vector. None if the file does not have the tensor.
    pub fn vector(&mut self, role: TensorRole, layer: usize) -> Option<TensorId> {
        let weight = *self.weights.get(role, layer)?;
        Some(self.add(Source::File(role, layer), [1, weight.rows * weight.cols, 1, 1], role.name(layer)))
    }

    pub fn required_vector(&mut self, role: TensorRole, layer: usize) -> Result<TensorId, EngineError> {
        self.vector(role, layer).ok_or_else(|| missing(&role.name(layer)))
    }

    /// A vector that is changed when the model is loaded.
    pub fn changed(&mut self, role: TensorRole, layer: usize, change: Change) -> Option<TensorId> {
        let weight = *self.weights.get(role, layer)?;
        Some(self.add(Source::Changed(role, layer, change), [1, weight.rows * weight.cols, 1, 1], role.name(layer)))
    }

    pub fn required_changed(&mut self, role: TensorRole, layer: usize, change: Change) -> Result<TensorId, EngineError> {
        self.changed(role, layer, change).ok_or_else(|| missing(&role.name(layer)))
    }

    pub fn ones(&mut self, len: usize) -> TensorId {
        self.add(Source::Ones, [1, len, 1, 1], "a norm without weights".into())
    }

    pub fn lightning_factors(&mut self, layer: usize, heads: usize) -> TensorId {
        let num_layers = self.spec().num_layers();
        self.add(Source::LightningFactors { layer, num_layers }, [1, heads, 1, 1], format!("the decays of layer {layer}"))
    }

    fn add(&mut self, source: Source, [rows, cols, count, read]: [usize; 4], name: String) -> TensorId {
        let tensors = &mut self.program.tensors;
        *self.tensors.entry(source).or_insert_with(|| {
            tensors.push(Tensor { name, source, rows, cols, count, read });
            TensorId(tensors.len() - 1)
        })
    }
}

//! A model as the C side takes it: dimensions, layers, and every tensor with its type.

use std::ptr;
use std::sync::Arc;

use super::raii::{self, Context, Model};
use super::supported::Uniform;
use super::sys;
use crate::info::has_tied_head;
use crate::rope::{Rope, ropes};
use crate::{EngineError, EngineOptions};
use model::{Activation, LayerSpec, NormKind, QUANTS, RopePairing, TensorSlot, Weight, Weights};

/// ggml's id of float32: the type of vectors on the device, whatever type they have in the file.
const F32: u32 = QUANTS[0].id;

/// A tensor to copy.
pub struct Item {
    pub slot: TensorSlot,
    pub layer: usize,
    pub weight: Weight,
}

impl Item {
    /// Whether the tensor goes to the device as a float32 vector. The shared expert's router does: it is a matrix of one row.
    pub fn is_vector(&self) -> bool {
        self.weight.rows == 1
    }
}

/// Every tensor to copy. The rotation tables hold the rotations' factors, and a tied head is the embedding.
pub fn items(weights: &Weights) -> Vec<Item> {
    use TensorSlot::*;
    let tied = has_tied_head(weights);
    let is_sent = |slot| !(matches!(slot, RopeFreqs | RopeFactorsLong | RopeFactorsShort) || slot == Output && tied);
    let items = weights.by_slot.iter().filter(|((slot, _), _)| is_sent(*slot));
    items.map(|(&(slot, layer), &weight)| Item { slot, layer, weight }).collect()
}

/// What a [`sys::pen_model_desc`] is made of and points to.
pub struct Description<'a> {
    weights: &'a Weights,
    uniform: Uniform,
    options: &'a EngineOptions,
    ropes: Vec<Rope>,
    layers: Vec<sys::pen_layer_desc>,
    tensors: Vec<sys::pen_tensor>,
}

impl<'a> Description<'a> {
    /// # Errors
    /// [`EngineError::Unsupported`] if no kernel computes what the model asks for.
    pub fn new(weights: &'a Weights, options: &'a EngineOptions) -> Result<Self, EngineError> {
        let uniform = Uniform::of(weights)?;
        let (ropes, rope_of) = ropes(weights, options.context);
        let window = |layer: &LayerSpec| layer.attention().and_then(|attention| attention.window).unwrap_or(0) as u32;
        let layers = weights.spec.layers.iter().zip(rope_of);
        let layers = layers.map(|(layer, rope)| sys::pen_layer_desc { window: window(layer), rope: rope.unwrap_or(0) as u32 }).collect();
        let tensor = |item: &Item| sys::pen_tensor {
            slot: item.slot as u32,
            layer: item.layer as u32,
            r#type: if item.is_vector() { F32 } else { item.weight.quant.id },
        };
        Ok(Self { weights, options, uniform, ropes, layers, tensors: items(weights).iter().map(tensor).collect() })
    }

    /// What the model takes of a device's memory.
    pub fn need(&self) -> Result<sys::pen_need, EngineError> {
        raii::need(&self.desc(ptr::null()))
    }

    /// Describes the model to the device and reserves memory for it.
    pub fn begin(&self, context: &Arc<Context>) -> Result<Model, EngineError> {
        let (positions, dim) = (self.max_positions(), self.rope_dim());
        let mut tables = vec![0f32; self.ropes.len() * positions * dim]; // [num_ropes, max_positions, rope_dim]
        for (rope, table) in self.ropes.iter().zip(tables.chunks_exact_mut((positions * dim).max(1))) {
            table.chunks_exact_mut(dim).enumerate().for_each(|(position, row)| rope.turn(position as u32, row));
        }
        Model::begin(context, &self.desc(tables.as_ptr()))
    }

    /// Rotated elements per head. 0: the model does not rotate.
    fn rope_dim(&self) -> usize {
        self.uniform.attention.rope.map_or(0, |rope| rope.dim)
    }

    fn max_blocks(&self) -> usize {
        self.options.context.div_ceil(self.options.block_size.max(1))
    }

    fn max_positions(&self) -> usize {
        (self.max_blocks() * self.options.block_size).min(self.weights.spec.max_positions().unwrap_or(usize::MAX))
    }

    /// The description for one call: it points into `self`.
    fn desc(&self, rope_tables: *const f32) -> sys::pen_model_desc {
        let (spec, arch) = (&self.weights.spec, self.weights.spec.arch);
        let (attention, experts) = (&self.uniform.attention, self.uniform.experts.unwrap_or_default());
        sys::pen_model_desc {
            num_layers: spec.num_layers() as u32,
            vocab_size: spec.vocab_size as u32,
            hidden_dim: spec.hidden_dim as u32,
            num_heads: attention.num_heads as u32,
            num_kv_heads: attention.num_kv_heads as u32,
            head_dim: attention.head_dim as u32,
            ffn_dim: self.uniform.ffn_dim as u32,
            rope_dim: self.rope_dim() as u32,
            rope_pairs: u32::from(spec.rope_pairing == RopePairing::Halves),
            activation: u32::from(arch.activation == Activation::Gelu),
            layer_norm: u32::from(arch.norm == NormKind::Layer),
            num_positions: spec.max_positions().unwrap_or(0) as u32,
            num_experts: experts.count as u32,
            experts_used: experts.used as u32,
            expert_ffn_dim: experts.ffn_dim as u32,
            normalise_experts: u32::from(experts.normalise),
            norm_eps: spec.norm_eps,
            attn_scale: attention.scale,
            attn_soft_cap: attention.soft_cap.unwrap_or(0.0),
            final_soft_cap: spec.final_soft_cap.unwrap_or(0.0),
            embedding_scale: spec.embedding_scale,
            max_positions: self.max_positions() as u32,
            num_ropes: self.ropes.len() as u32,
            rope_tables,
            layers: self.layers.as_ptr(),
            tensors: self.tensors.as_ptr(),
            num_tensors: self.tensors.len() as u32,
            max_batch_tokens: self.options.max_batch_tokens as u32,
            max_slots: self.options.max_slots as u32,
            max_blocks: self.max_blocks() as u32,
        }
    }
}

#[cfg(test)]
#[path = "describe_tests.rs"]
mod tests;

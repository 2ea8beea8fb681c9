//! Reads the layer of a draft head, which follows the model's layers: one of the model's family, always with attention.

use super::keys::{Fallible, Keys};
use super::shape::Shape;
use super::{attn_cap, read_layers};
use crate::error::ModelError;
use crate::spec::{Mixer, ModelSpec};
use gguf::GgufFile;

impl ModelSpec {
    /// The spec of the model with its first draft head as a further layer. None if the file has no tensor of such a head.
    ///
    /// # Errors
    /// [`ModelError`] names a key that does not describe a layer.
    pub fn with_draft_head(&self, file: &GgufFile) -> Result<Option<Self>, ModelError> {
        read(self, file).map_err(|fault| ModelError { path: file.path().to_owned(), fault })
    }
}

fn read(spec: &ModelSpec, file: &GgufFile) -> Fallible<Option<ModelSpec>> {
    let (head, keys) = (spec.num_layers(), Keys { file, arch: spec.arch });
    let prefix = format!("{}blk.{head}.nextn.", spec.arch.prefix);
    if !file.tensors().iter().any(|tensor| tensor.name.starts_with(&prefix)) {
        return Ok(None);
    }
    let shape = Shape {
        hidden_dim: spec.hidden_dim,
        num_layers: head + 1,
        context_length: spec.context_length,
        attn_cap: attn_cap(&keys)?,
        draft_head: Some(head),
    };
    let layer = read_layers(&keys, &shape)?.pop().filter(|layer| layer.mixer != Mixer::None);
    let Some(layer) = layer else { return keys.wrong("attention.head_count_kv", format!("at least one head in layer {head}")) };
    let mut whole = spec.clone();
    whole.layers.push(layer);
    Ok(Some(ModelSpec { draft_head: Some(head), ..whole }))
}

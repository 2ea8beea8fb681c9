//! [`TensorInfo`]: an entry of the tensor table.

use crate::types::ggml_type;

/// A tensor's name, shape, type and position.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    pub name: String,
    /// Innermost dimension first, as in the file.
    pub dims: Vec<u64>,
    /// The id of the type in ggml.
    pub type_id: u32,
    /// The index of the file that holds the tensor, for a model split over several files.
    pub shard: usize,
    /// The first byte's offset from the start of that file.
    pub offset: u64,
    pub nbytes: u64,
}

impl TensorInfo {
    /// The name of the type, for example `Q4_K`.
    pub fn type_name(&self) -> &'static str {
        ggml_type(self.type_id).map_or("unknown", |kind| kind.name)
    }

    /// The number of weights.
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }
}

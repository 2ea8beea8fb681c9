//! [`TensorInfo`]: an entry of the tensor table.

use crate::types::ggml_type;

/// A tensor's name, shape and type, and where its bytes are.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    pub name: String,
    /// In file order: the innermost dimension first.
    pub dims: Vec<u64>,
    /// ggml's type id.
    pub type_id: u32,
    /// Index of the file that holds the tensor, for a model split over several files.
    pub shard: usize,
    /// Position of the first byte, counted from the start of that file.
    pub offset: u64,
    pub nbytes: u64,
}

impl TensorInfo {
    /// The type's name (`Q4_K`).
    pub fn type_name(&self) -> &'static str {
        ggml_type(self.type_id).map_or("unknown", |kind| kind.name)
    }

    /// Number of weights.
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }
}

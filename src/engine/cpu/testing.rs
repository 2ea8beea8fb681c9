//! Opens engines of small models, for tests.

use std::sync::Arc;

use super::simd::Kernels;
use super::{CpuEngine, CpuOptions, Cut};
use crate::CacheType;
use gguf::{GgufBuilder, GgufFile};
use model::Weights;

/// Options for four sequences of at most 96 tokens.
pub fn options() -> CpuOptions {
    CpuOptions {
        threads: 2,
        context: 96,
        num_blocks: 96,
        least_blocks: 0,
        block_size: 32,
        cache_type: CacheType::F32,
        max_slots: 4,
        max_batch_tokens: 128,
        state_slots: 5,
        draft_states: 0,
        draft_head: false,
        max_adapters: 4,
        cut: Cut::default(),
    }
}

/// Opens an engine of the model in a file, with memory for all blocks.
///
/// # Errors
/// Why the model does not load or the engine refuses it.
pub fn open(file: &GgufBuilder, options: &CpuOptions, kernels: &'static Kernels) -> Result<CpuEngine, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    file.write(&path).unwrap();
    let weights = Weights::load(Arc::new(GgufFile::open(&path).unwrap())).map_err(|error| error.to_string())?;
    let options = CpuOptions { least_blocks: options.num_blocks, ..options.clone() };
    CpuEngine::new(weights, &options, kernels).map_err(|error| error.to_string())
}

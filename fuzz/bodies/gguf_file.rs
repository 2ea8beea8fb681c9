//! Reads a GGUF file as `serve` does before an engine starts.

use std::hint::black_box;
use std::sync::Arc;

use engine::{BackendKind, EngineOptions};
use gguf::{Backing, GgufFile};
use model::{VisionWeights, Weights};
use serving::ModelFile;

use crate::memory_file::MemoryFile;

/// Largest tensor that is dequantised [weights].
const MAX_WEIGHTS: usize = 1 << 16;
/// Most tensors that are dequantised.
const MAX_TENSORS: usize = 32;

/// Bytes appended to an input, so that inputs can be files without their tensors' data.
const DATA: usize = 1 << 21;
/// Patterns of these bytes. As float32 they are 0, 0.05 and -0.05.
const PATTERNS: [[u8; 4]; 3] = [[0; 4], [0xcd, 0xcc, 0x4c, 0x3d], [0xcd, 0xcc, 0x4c, 0xbd]];

/// Turns an input into a file, with or without data appended.
pub fn file(input: &[u8]) -> MemoryFile {
    match PATTERNS.get(input.len() % (PATTERNS.len() + 1)) {
        Some(pattern) => MemoryFile::padded(input, *pattern, DATA),
        None => MemoryFile::new(input),
    }
}

pub fn body(input: &[u8]) {
    let memory = file(input);
    let backing = if input.len().is_multiple_of(2) { Backing::Mapped } else { Backing::Private };
    let Ok(file) = GgufFile::open_with(memory.path(), backing) else { return };
    read(&file);
    let file = Arc::new(file);
    weights(file.clone());
    let _ = black_box(VisionWeights::load(file));
    if let Ok(model) = ModelFile::open(memory.path(), backing) {
        serve(&model);
    }
}

fn read(file: &GgufFile) {
    for tensor in file.tensors() {
        assert_eq!(file.data(tensor).len() as u64, tensor.nbytes, "{} lies in the file", tensor.name);
        black_box(tensor.type_name());
    }
    for (key, value) in file.metadata() {
        assert!(file.get(key).is_some());
        black_box((value.type_name(), value.as_array().map(|array| (array.len(), array.first(3), array.ints()))));
    }
    black_box((file.vocab_size(), file.num_layers(), file.num_kv_heads(), file.head_dim(), file.context_length()));
    let _ = black_box((file.digest(), model::vocab_check::check_file(file)));
}

fn weights(file: Arc<GgufFile>) {
    let Ok(weights) = Weights::load(file) else { return };
    let small = weights.by_role.iter().filter(|(_, weight)| weight.rows.saturating_mul(weight.cols) <= MAX_WEIGHTS);
    for ((slot, layer), weight) in small.take(MAX_TENSORS) {
        let values = weights.vector(*slot, *layer).expect("the slot is filled");
        assert_eq!(values.len(), weight.rows * weight.cols);
        black_box(weights.scales(weight));
    }
}

fn serve(model: &ModelFile) {
    let options = EngineOptions { threads: 1, ..EngineOptions::default() };
    black_box((model.sampling(), model.context_length()));
    let device = engine::device(BackendKind::Cpu, 0).expect("a processor");
    let _ = black_box(model.auto_context(&*device, &options, 0));
    let _ = black_box(model.chat_template(None));
}

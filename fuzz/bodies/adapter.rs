//! Reads an adapter: a GGUF file, or the two files of PEFT's folder.

use std::hint::black_box;
use std::sync::{Arc, LazyLock};

use gguf::GgufFile;
use model::Weights;
use model::testing::TinyModel;

use crate::memory_file::MemoryFile;
use crate::sections::sections;

/// A model that adapters of the seeds fit.
pub fn tiny() -> TinyModel {
    let llama = TinyModel::all().next().expect("a model");
    TinyModel { hidden_dim: 32, num_heads: 2, num_kv_heads: 1, head_dim: 16, ffn_dim: 48, vocab_size: 8, num_layers: 2, ..llama }
}

static MODEL: LazyLock<Weights> = LazyLock::new(|| {
    let memory = MemoryFile::new(&tiny().build().build());
    Weights::load(Arc::new(GgufFile::open_with(memory.path(), gguf::Backing::Private).expect("a file"))).expect("a model")
});

/// The first byte says which form follows. In a folder, the configuration and the tensors are two sections.
pub fn body(input: &[u8]) {
    let Some((&form, rest)) = input.split_first() else { return };
    if form.is_multiple_of(2) {
        let memory = MemoryFile::new(rest);
        read(memory.path());
        return;
    }
    let [config, tensors] = sections(rest);
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("adapter_config.json"), config).expect("a file");
    std::fs::write(folder.path().join("adapter_model.safetensors"), tensors).expect("a file");
    read(folder.path());
}

fn read(path: &std::path::Path) {
    match adapters::open(path, &MODEL) {
        Ok(open) => {
            let numbers = open.adapter.changes.iter().map(|change| change.count * change.rows * change.cols).sum::<usize>();
            assert!(numbers > 0 || !open.adapter.directions.is_empty(), "an adapter changes something");
            black_box(adapters::first_row(&open.invocation, &[1, 2, 3]));
        }
        Err(error) => assert!(!error.to_string().contains('\u{1b}'), "names of others are harmless"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_adapters_of_the_model() {
        for seed in crate::seeds::adapter() {
            let [config, tensors] = sections(&seed[1..]);
            let folder = tempfile::tempdir().expect("a folder");
            let path = match seed[0] {
                0 => folder.path().join("adapter.gguf"),
                _ => folder.path().to_owned(),
            };
            if seed[0] == 0 {
                std::fs::write(&path, &seed[1..]).expect("a file");
            } else {
                std::fs::write(path.join("adapter_config.json"), config).expect("a file");
                std::fs::write(path.join("adapter_model.safetensors"), tensors).expect("a file");
            }
            adapters::open(&path, &MODEL).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

//! Real files and golden blocks.

use super::*;

#[test]
fn quants_match_the_gguf_package_on_every_bit() {
    for quant in QUANTS {
        let path = format!("{}/tests/golden/quants/{}.bin", env!("CARGO_MANIFEST_DIR"), quant.name);
        let file = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        let blocks = file.len() / (quant.block_bytes + 4 * quant.block_size);
        let (src, expected) = file.split_at(blocks * quant.block_bytes);
        assert!(blocks >= 6 && expected.len() == blocks * quant.block_size * 4, "{path}");
        let mut weights = vec![f32::NAN; blocks * quant.block_size];
        (quant.dequantize)(src, &mut weights);
        for (i, (weight, expected)) in weights.iter().zip(expected.as_chunks::<4>().0).enumerate() {
            let expected = f32::from_le_bytes(*expected);
            assert_eq!(weight.to_bits(), expected.to_bits(), "{} weight {i}: {weight} is not {expected}", quant.name);
        }
    }
}

/// `PENSTOCK_TEST_MODELS`: a directory with SmolLM2-135M, Qwen2.5-Coder-0.5B and Gemma-3-270m as smollm2*.gguf, qwen*.gguf, gemma*.gguf.
#[test]
fn real_models_load() {
    let Some(dir) = std::env::var_os("PENSTOCK_TEST_MODELS").map(std::path::PathBuf::from) else {
        println!("skipped: PENSTOCK_TEST_MODELS is not set");
        return;
    };
    for (name, arch, layers, tensors) in [("smollm2", "llama", 30, 273), ("qwen", "qwen2", 24, 291), ("gemma", "gemma3", 18, 237)] {
        let is_model = |path: &std::path::Path| {
            path.extension().is_some_and(|e| e == "gguf") && path.file_name().is_some_and(|f| f.to_string_lossy().starts_with(name))
        };
        let mut paths = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
        let path = paths.find(|path| is_model(path)).unwrap_or_else(|| panic!("no {name}*.gguf in {}", dir.display()));
        let start = std::time::Instant::now();
        let file = std::sync::Arc::new(crate::gguf::GgufFile::open(&path).unwrap());
        let opened = start.elapsed();
        let weights = Weights::load(file.clone()).unwrap();
        println!("{name}: opened in {opened:?}, loaded after {:?}: {:?}", start.elapsed(), weights.spec);
        assert_eq!((weights.spec.arch.name, weights.spec.num_layers), (arch, layers));
        assert_eq!(weights.by_slot.len(), tensors);
        let norm = weights.get(TensorSlot::AttnNorm, layers - 1).unwrap();
        let mut row = vec![0.0; norm.cols];
        (norm.quant.dequantize)(weights.data(norm), &mut row);
        assert!(row.iter().all(|x| x.is_finite()) && row.iter().any(|x| *x != 0.0));
        assert!(opened.as_millis() < 2000, "{opened:?}");
    }
}

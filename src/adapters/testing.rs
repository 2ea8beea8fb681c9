//! Writes tiny models and adapters to temporary folders, for this crate's tests.

use std::path::PathBuf;
use std::sync::Arc;

use engine::{ChangeKind, WeightChange};
use gguf::{GgufBuilder, GgufFile};
use model::Weights;
use model::arch::Arch;
use model::testing::{Random, TinyModel};

use crate::{OpenAdapter, open};

/// A folder with a model.
pub struct Bench {
    pub dir: tempfile::TempDir,
    pub weights: Weights,
}

/// A tiny model of an architecture, with float32 weights and fewer columns than rows in the feed-forward part.
pub fn tiny(arch: &str) -> TinyModel {
    let ffn_dim = 96;
    TinyModel {
        hidden_dim: 64,
        ffn_dim,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 16,
        vocab_size: 48,
        ..TinyModel::new(Arch::by_name(arch).unwrap())
    }
}

impl Bench {
    pub fn of(model: &GgufBuilder) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        model.write(&path).unwrap();
        let weights = Weights::load(Arc::new(GgufFile::open(&path).unwrap())).unwrap();
        Self { dir, weights }
    }

    pub fn new(arch: &str) -> Self {
        Self::of(&tiny(arch).build())
    }

    pub fn write(&self, adapter: &GgufBuilder) -> PathBuf {
        let path = self.dir.path().join("adapter.gguf");
        adapter.write(&path).unwrap();
        path
    }

    pub fn open(&self, adapter: &GgufBuilder) -> OpenAdapter {
        open(&self.write(adapter), &self.weights).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The changes of an adapter.
    pub fn changes(&self, adapter: &GgufBuilder) -> Vec<WeightChange> {
        self.open(adapter).adapter.changes
    }

    /// The error that an adapter is refused with. It names the file.
    pub fn fault(&self, adapter: &GgufBuilder) -> String {
        let path = self.write(adapter);
        let error = open(&path, &self.weights).map(|_| ()).unwrap_err();
        assert_eq!(error.path, path);
        error.fault
    }
}

/// The head of a LoRA adapter for an architecture.
pub fn head(arch: &str) -> GgufBuilder {
    GgufBuilder::new()
        .kv("general.type", "adapter")
        .kv("general.architecture", arch)
        .kv("adapter.type", "lora")
        .kv("adapter.lora.alpha", 8.0f32)
}

/// Numbers that follow from a name.
pub fn values(name: &str, count: usize) -> Vec<f32> {
    let mut random = Random(name.bytes().fold(7, |sum: u64, byte| sum.wrapping_mul(31) + u64::from(byte)));
    (0..count).map(|_| random.centred()).collect()
}

/// The head of an adapter, with both halves of each tensor: name, [cols, rows, count] and rank.
pub fn lora(arch: &str, tensors: &[(&str, [usize; 3], usize)]) -> GgufBuilder {
    tensors.iter().fold(head(arch), |file, &(name, shape, rank)| with_pair(file, name, shape, rank))
}

pub fn with_pair(file: GgufBuilder, name: &str, [cols, rows, count]: [usize; 3], rank: usize) -> GgufBuilder {
    let half = |file: GgufBuilder, end: &str, dims: [usize; 3]| {
        let name = format!("{name}.{end}");
        let dims: Vec<u64> = dims.iter().take(if count > 1 { 3 } else { 2 }).map(|&dim| dim as u64).collect();
        let numbers = values(&name, dims.iter().product::<u64>() as usize);
        file.tensor_f32(&name, &dims, &numbers)
    };
    half(half(file, "lora_a", [cols, rank, count]), "lora_b", [rank, rows, count])
}

/// scale · B A of one matrix, from the halves of a file.
pub fn product(name: &str, [cols, rows, count]: [usize; 3], rank: usize, scale: f32) -> Vec<f32> {
    let a = values(&format!("{name}.lora_a"), cols * rank * count);
    let b = values(&format!("{name}.lora_b"), rank * rows * count);
    multiplied([count, rows, rank, cols], &a, &b, scale)
}

/// scale · B A [count, rows, cols]
pub fn multiplied([count, rows, rank, cols]: [usize; 4], a: &[f32], b: &[f32], scale: f32) -> Vec<f32> {
    let mut out = vec![0.0; count * rows * cols];
    for (i, out) in out.iter_mut().enumerate() {
        let (matrix, row, col) = (i / (rows * cols), i / cols % rows, i % cols);
        let sum: f64 =
            (0..rank).map(|r| f64::from(b[(matrix * rows + row) * rank + r]) * f64::from(a[(matrix * rank + r) * cols + col])).sum();
        *out = (sum * f64::from(scale)) as f32;
    }
    out
}

/// What a change adds to the weights of a model.
pub fn delta(change: &WeightChange) -> Vec<f32> {
    let ChangeKind::Low(low) = &change.kind else { panic!("{} is replaced", change.tensor) };
    assert_eq!(low.a.len(), change.count * low.rank * change.cols);
    assert_eq!(low.b.len(), change.count * change.rows * low.rank);
    multiplied([change.count, change.rows, low.rank, change.cols], &low.a, &low.b, low.scale)
}

pub fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() <= 1e-5 * (1.0 + expected.abs()), "element {i} is {found}, expected {expected}");
    }
}

/// A folder as PEFT writes it.
pub struct PeftFolder {
    pub config: serde_json::Value,
    /// Names, shapes (outermost dimension first) and numbers.
    pub tensors: Vec<(String, Vec<usize>, Vec<f32>)>,
}

impl PeftFolder {
    pub fn new() -> Self {
        let config = serde_json::json!({"peft_type": "LORA", "base_model_name_or_path": "org/base", "r": 4, "lora_alpha": 8,
            "target_modules": ["q_proj"], "bias": "none", "fan_in_fan_out": false, "init_lora_weights": true, "modules_to_save": null,
            "rank_pattern": {}, "alpha_pattern": {}, "use_rslora": false, "use_dora": false, "qalora_group_size": 16});
        Self { config, tensors: Vec::new() }
    }

    pub fn set(mut self, key: &str, value: impl Into<serde_json::Value>) -> Self {
        self.config[key] = value.into();
        self
    }

    /// Adds a tensor whose numbers follow from its name.
    pub fn tensor(mut self, name: &str, shape: &[usize]) -> Self {
        let name = format!("base_model.model.{name}");
        let numbers = values(&name, shape.iter().product());
        self.tensors.push((name, shape.to_vec(), numbers));
        self
    }

    /// Adds both halves of a module's change.
    pub fn pair(self, module: &str, [rows, cols]: [usize; 2], rank: usize) -> Self {
        self.tensor(&format!("{module}.lora_A.weight"), &[rank, cols]).tensor(&format!("{module}.lora_B.weight"), &[rows, rank])
    }

    pub fn numbers(&self, name: &str) -> &[f32] {
        let name = format!("base_model.model.{name}");
        &self.tensors.iter().find(|(known, ..)| *known == name).unwrap().2
    }

    /// The bytes of `adapter_model.safetensors`.
    pub fn tensor_bytes(&self) -> Vec<u8> {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        header.insert("__metadata__".into(), serde_json::json!({"format": "pt"}));
        for (name, shape, numbers) in &self.tensors {
            let start = data.len();
            data.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
            header.insert(name.clone(), serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]}));
        }
        let header = serde_json::Value::Object(header).to_string();
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
    }

    pub fn write(&self, dir: &std::path::Path) -> PathBuf {
        let path = dir.join("adapter");
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("adapter_config.json"), self.config.to_string()).unwrap();
        std::fs::write(path.join("adapter_model.safetensors"), self.tensor_bytes()).unwrap();
        path
    }

    pub fn open(&self, bench: &Bench) -> OpenAdapter {
        open(&self.write(bench.dir.path()), &bench.weights).unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn fault(&self, bench: &Bench) -> String {
        open(&self.write(bench.dir.path()), &bench.weights).map(|_| ()).unwrap_err().fault
    }
}

/// The change of a tensor.
pub fn change_of<'a>(opened: &'a OpenAdapter, tensor: &str) -> &'a WeightChange {
    let found = opened.adapter.changes.iter().find(|change| change.tensor == tensor);
    found.unwrap_or_else(|| panic!("{tensor} is not changed"))
}

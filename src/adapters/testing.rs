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

//! Lists the kernels that a step of a model would run.

use std::fmt::Write;

use super::describe::Description;
use super::lower::{DeviceProgram, Op};
use super::raii::KernelDevice;
use super::sys;
use crate::{EngineError, EngineOptions, StepSize};
use model::Weights;

/// The sequences for which a server's workspace is sized, unless the step has more.
const SLOTS: usize = 256;
const ROWS: usize = 2048;

/// One line per op and its kernels, in the order of the program, with how many times it occurs.
pub fn list(weights: &Weights, on: &KernelDevice, size: StepSize) -> Result<String, EngineError> {
    let [sequences, rows, context] = [size.sequences, size.rows, size.context].map(|n| n as usize);
    let options = EngineOptions {
        context: context.max(1),
        max_slots: sequences.max(SLOTS),
        max_batch_tokens: (sequences * rows).max(ROWS),
        state_slots: sequences.max(SLOTS),
        ..EngineOptions::default()
    };
    let description = Description::new(weights, &options)?;
    let load = sys::pen_load { num_seqs: size.sequences, rows: size.rows, context: size.context };
    let kernels = description.kernels(on, &load)?;
    let program = description.program();
    let labels = program.ops.iter().map(|op| label(op, program)).chain(["Head and sampling".to_owned()]);
    let mut lines: Vec<(String, String, usize)> = Vec::new();
    for (label, kernels) in labels.zip(kernels).filter(|(_, kernels)| !kernels.is_empty()) {
        match lines.iter_mut().find(|line| line.0 == label && line.1 == kernels) {
            Some(line) => line.2 += 1,
            None => lines.push((label, kernels, 1)),
        }
    }
    let width = lines.iter().map(|line| line.0.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for (label, kernels, count) in lines {
        let _ = writeln!(out, "{count:>5} × {label:width$}  {kernels}");
    }
    Ok(out)
}

/// An op's name and shape.
fn label(op: &Op, program: &DeviceProgram) -> String {
    let matrix = |tensor: u32| program.tensors.get(tensor as usize).map(|tensor| tensor.desc);
    match op {
        Op::Linear(of) => {
            let halves = |kind| if kind == sys::PEN_UPPER_HALF { 2 } else { 1 };
            let rows: u32 = [of.w0, of.w1, of.w2].into_iter().filter_map(matrix).map(|w| w.rows * halves(w.kind)).sum();
            format!("Linear {} → {rows}", matrix(of.w0).map_or(0, |w| w.cols))
        }
        Op::Attention(of) => {
            let sys::pen_cache { heads, key_dim, .. } = program.caches[of.cache as usize];
            let window = if of.window == 0 { String::new() } else { format!(", window {}", of.window) };
            format!("Attention {} heads over {heads} of {key_dim}{window}", of.heads)
        }
        Op::Heads(of) => format!("Heads {} of {}", of.heads, of.dim),
        Op::EachHead(of) => format!("EachHead {}", of.heads),
        Op::Experts(of) => format!("Experts {} of {}, {} → {}", of.used, of.count, of.hidden, of.dim),
        other => other.name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::super::raii::Context;
    use super::*;
    use gguf::GgufFile;

    const ARCHS: [&str; 5] = ["sm_90a", "sm_89", "sm_86", "sm_80", "sm_75"];

    /// Every op of every model has kernels, whose files exist.
    #[test]
    fn every_op_has_kernels_on_every_architecture() {
        let folder = tempfile::tempdir().unwrap();
        let cuda = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cuda");
        let (_, models) = fixtures::architectures::architectures();
        let mut files = std::collections::BTreeSet::new();
        for model in &models {
            let weights = Weights::load(Arc::new(GgufFile::open(&model.write(folder.path())).unwrap())).unwrap();
            for (arch, [sequences, rows, context]) in ARCHS.iter().zip([[1, 1, 1], [8, 1, 600], [64, 1, 90], [1, 40, 40], [2, 300, 900]]) {
                let text = list(&weights, &KernelDevice::named(arch).unwrap(), StepSize { sequences, rows, context }).unwrap();
                let of_op = |line: &str| {
                    let (_, kernels) = line.rsplit_once("  ").unwrap_or_else(|| panic!("{}: {line}", model.name));
                    kernels.split(", ").map(|kernel| kernel.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
                };
                files.extend(text.lines().flat_map(of_op));
                assert!(text.contains("Head and sampling"), "{}: {text}", model.name);
            }
        }
        let missing: Vec<_> = files.iter().filter(|file| !cuda.join(file).is_file()).collect();
        assert!(missing.is_empty() && files.len() > 20, "{missing:?} of {files:?}");
    }

    fn tiny() -> Weights {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        model::testing::TinyModel::new(&model::ARCHS[0]).build().write(&path).unwrap();
        Weights::load(Arc::new(GgufFile::open(&path).unwrap())).unwrap()
    }

    #[test]
    fn the_architecture_and_the_batch_decide() {
        let weights = tiny();
        let of = |arch: &str, sequences| list(&weights, &KernelDevice::named(arch).unwrap(), StepSize { sequences, rows: 1, context: 100 });
        let [hopper, ampere] = ["sm_90a", "sm_80"].map(|arch| of(arch, 1).unwrap());
        assert!(hopper.contains("attention/cluster.cuh") && !ampere.contains("attention/cluster.cuh"), "{hopper}{ampere}");
        assert!(ampere.contains("linear/decode.cuh") && of("sm_80", 16).unwrap().contains("linear/batch.cuh"));
        let error = of("sm_42", 1).unwrap_err().to_string();
        assert!(error.contains("sm_42 is known, expected one of sm_90a (H100)"), "{error}");
    }

    #[test]
    #[ignore = "needs a GPU"]
    fn a_device_that_is_there_has_kernels_for_the_same_ops_on_the_gpu() {
        let (weights, context) = (tiny(), Context::create(0).unwrap());
        let ops = |on: &KernelDevice| {
            let text = list(&weights, on, StepSize { sequences: 8, rows: 1, context: 100 }).unwrap();
            text.lines().map(|line| line.rsplit_once("  ").unwrap().0.trim().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(ops(&KernelDevice::Present(&context)), ops(&KernelDevice::named("sm_90a").unwrap()));
    }
}

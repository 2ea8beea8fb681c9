//! Lists kernels of the golden layouts for each architecture, and compares a device that is there with the one assumed for it.

use std::path::Path;
use std::sync::Arc;

use super::super::DEFAULT_LOAD;
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
            let text = list(&weights, &KernelDevice::named(arch).unwrap(), StepSize { sequences, rows, context }, DEFAULT_LOAD).unwrap();
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
    let of = |arch: &str, sequences| {
        list(&weights, &KernelDevice::named(arch).unwrap(), StepSize { sequences, rows: 1, context: 100 }, DEFAULT_LOAD)
    };
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
        let text = list(&weights, on, StepSize { sequences: 8, rows: 1, context: 100 }, DEFAULT_LOAD).unwrap();
        text.lines().map(|line| line.rsplit_once("  ").unwrap().0.trim().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ops(&KernelDevice::Present(&context)), ops(&KernelDevice::named("sm_90a").unwrap()));
}

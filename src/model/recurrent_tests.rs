//! Malformed files of models with recurrent state are refused by key or tensor, before anything is allocated.

use std::sync::Arc;

use crate::Weights;
use fixtures::architectures::architectures;
use gguf::{GgufBuilder, GgufFile, Value};

fn error(file: &GgufBuilder) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    file.write(&path).unwrap();
    Weights::load(Arc::new(GgufFile::open(&path).unwrap())).err().map_or_else(String::new, |error| error.to_string())
}

#[test]
fn impossible_shapes_of_recurrent_state_are_refused_by_key_and_value() {
    let (_, models) = architectures();
    let huge = (1u32 << 31) - 1;
    let cases: &[(&str, &str, u32, &str)] = &[
        ("mamba-dense", "ssm.state_size", 0, "is 0, expected an integer from 1"),
        ("mamba-dense", "ssm.state_size", huge, "is 2147483647, expected a state of at most"),
        ("mamba-dense", "ssm.conv_kernel", 0, "is 0, expected an integer from 1"),
        ("mamba-dense", "ssm.conv_kernel", 1 << 20, "is 1048576, expected an integer from 1 to 1024"),
        ("mamba-dense", "ssm.inner_size", 0, "is 0"),
        ("mamba-dense", "ssm.time_step_rank", 0, "is 0"),
        ("mamba2-dense", "ssm.group_count", 3, "is 3, expected a divisor of the 2 heads"),
        ("mamba2-dense", "ssm.time_step_rank", 3, "is 3, expected a divisor of the inner size 256"),
        ("mamba2-dense", "ssm.state_size", huge, "is 2147483647"),
        ("falcon-h1-dense", "ssm.group_count", 5, "is 5, expected a divisor of the 2 heads"),
        ("plamo2-dense", "ssm.time_step_rank", 3, "is 3, expected a divisor of the inner size 256"),
        ("qwen35-dense", "ssm.group_count", 0, "is 0, expected an integer from 1"),
        ("qwen3next-moe", "ssm.group_count", 3, "is 3, expected a divisor of the 2 heads"),
        ("kimi-linear-moe", "kda.head_dim", 0, "is 0"),
        ("kimi-linear-moe", "kda.head_dim", huge, "is 2147483647, expected a state of at most"),
        ("lfm2-dense", "shortconv.l_cache", 0, "is 0"),
        ("lfm2-dense", "shortconv.l_cache", huge, "is 2147483647"),
    ];
    for (name, suffix, value, expected) in cases {
        let mut file = models.iter().find(|model| model.name == *name).unwrap().build();
        let Some((_, Value::String(arch))) = file.metadata.iter().find(|(key, _)| key == "general.architecture").cloned() else {
            panic!("{name} has no architecture")
        };
        let key = format!("{arch}.{suffix}");
        file.set(&key, *value);
        let error = error(&file);
        assert!(error.contains(&key) && error.contains(expected), "{name}, {suffix} = {value}: {error}");
        file.remove(&key);
        if *value == 0 && *suffix != "ssm.group_count" {
            assert!(self::error(&file).contains(&format!("{key} is missing")), "{name} without {suffix}");
        }
    }
}

#[test]
fn a_decay_that_lets_the_state_grow_is_refused_by_tensor_and_place() {
    let (_, models) = architectures();
    for name in ["mamba-dense", "mamba2-dense", "qwen35-dense"] {
        for bad in [f32::NAN, f32::NEG_INFINITY, 0.5] {
            let mut file = models.iter().find(|model| model.name == name).unwrap().build();
            let tensor = file.tensors.iter_mut().find(|tensor| tensor.name == "blk.0.ssm_a").unwrap();
            tensor.bytes[4..8].copy_from_slice(&bad.to_le_bytes());
            let error = error(&file);
            let expected = format!("tensor blk.0.ssm_a holds {bad} at index 1, expected a negative number or 0");
            assert!(error.contains(&expected), "{name}: {error}");
        }
    }
}

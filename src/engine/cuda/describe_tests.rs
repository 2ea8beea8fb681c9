//! Device memory and programs of tiny models, computed without a device.

use std::fmt::Write;
use std::sync::Arc;

use super::super::encoder_describe::EncoderDescription;
use super::super::lower::Op;
use super::*;
use crate::program::{RowSet, Shard};
use gguf::GgufFile;
use model::testing::TinyModel;
use model::{ARCHS, QUANTS, TensorRole};

fn options() -> EngineOptions {
    EngineOptions { context: 100, max_slots: 4, max_batch_tokens: 64, ..EngineOptions::default() }
}

fn weights(model: &TinyModel) -> Weights {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    model.build().write(&path).unwrap();
    Weights::load(Arc::new(GgufFile::open(&path).unwrap())).unwrap()
}

#[test]
fn every_architecture_has_a_need() {
    for model in TinyModel::all() {
        let (arch, weights, options) = (model.arch, weights(&model), options());
        let description = Description::new(&weights, &options).unwrap();
        let need = description.need().unwrap();
        // on the device, matrices are float16 in tiles of 16 rows × 64 columns, and vectors are float32
        let elements: u64 = description.tensors.iter().map(|t| u64::from(t.rows) * u64::from(t.cols) * u64::from(t.count)).sum();
        assert!(need.weights >= 2 * elements, "{}: {} bytes for {elements} weights", arch.name, need.weights);
        assert!(need.weights <= 64 * 2 * elements, "{}: {} bytes for {elements} weights", arch.name, need.weights);
        assert!(0 < need.step_weights && need.step_weights <= need.weights, "{}", arch.name);
        let spec = &weights.spec;
        let attention = spec.attention().unwrap();
        // layers of different cache groups share places
        let places = description.program.caches.iter().map(|cache| cache.place + 1).max().unwrap_or(0) as usize;
        assert_eq!(places, spec.cache_groups().iter().map(|group| group.layers.len()).max().unwrap_or(0), "{}", arch.name);
        let floats = 2 * places * attention.num_kv_heads * attention.head_dim;
        assert_eq!(need.kv_token, 2 * floats as u64, "{}", arch.name);
    }
}

/// The ops of a program name only what exists, and the program uses every tensor of the file.
#[test]
fn every_architecture_has_a_program() {
    let folder = tempfile::tempdir().unwrap();
    let (_, models) = fixtures::architectures::architectures();
    for model in &models {
        let weights = Weights::load(Arc::new(GgufFile::open(&model.write(folder.path())).unwrap())).unwrap();
        let options = EngineOptions { state_slots: 4, ..options() };
        let description = Description::new(&weights, &options).unwrap_or_else(|error| panic!("{}: {error}", model.name));
        let need = description.need().unwrap_or_else(|error| panic!("{}: {error}", model.name));
        assert_eq!(need.state > 0, weights.spec.is_recurrent(), "{}", model.name);
        let names: std::collections::HashSet<_> = description.program.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        for (role, layer) in weights.by_role.keys() {
            use TensorRole::*;
            // used in rotation tables, in halves, tied to the embedding, or present in two forms
            let classifier = matches!(role, Classifier | ClassifierBias | ClassifierOutput | ClassifierOutputBias);
            let elsewhere = classifier || matches!(role, RopeFreqs | RopeFactorsLong | RopeFactorsShort | AttnKvB | Output | SsmIn);
            assert!(elsewhere || names.contains(role.name(*layer).as_str()), "{}: {} is not used", model.name, role.name(*layer));
        }
    }
}

/// Encoders of all families run on the device, with every tensor of their files.
#[test]
fn every_picture_encoder_has_a_program() {
    for model in fixtures::vision::vision_models() {
        let vision = crate::picture_testing::encoder_weights(&model);
        let of = |patches| EncoderDescription::new(&vision, patches).unwrap_or_else(|error| panic!("{}: {error}", model.name));
        let (small, large) = (of(64), of(4096));
        let [small_need, large_need] = [&small, &large].map(|description| description.need().unwrap());
        assert!(small_need.weights > 0 && small_need.weights == large_need.weights, "{}", model.name);
        assert!(small_need.scratch < large_need.scratch, "{}: buffers are as long as the picture", model.name);
        let program = large.program();
        assert!(program.op_rows.iter().all(|&rows| rows != RowSet::Step), "{}: an op per row of a step", model.name);
        assert_eq!(program.buffers[program.output.unwrap() as usize].width as usize, vision.spec.row_width(), "{}", model.name);
        let names: std::collections::HashSet<_> = program.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        let is_used = |role: &TensorRole, layer: usize| {
            let name = role.name(layer);
            // the row between rows of tiles is not computed
            *role == TensorRole::NewlineEmbd || names.iter().any(|known| known.ends_with(&name))
        };
        for (role, layer) in vision.weights.by_role.keys() {
            assert!(is_used(role, *layer), "{}: {} is not used", model.name, role.name(*layer));
        }
    }
}

/// Compares the ops of all encoders with `tests/golden/encoders-gpu.txt`, so that no fusion changes unseen. `PENSTOCK_WRITE_GOLDEN=1`
/// writes the file anew, and `PENSTOCK_LIST_ENCODER` prints one with all arguments.
#[test]
fn every_picture_encoder_has_its_ops() {
    let mut text = String::new();
    for model in fixtures::vision::vision_models() {
        let vision = crate::picture_testing::encoder_weights(&model);
        let description = EncoderDescription::new(&vision, 64).unwrap();
        let program = description.program();
        if std::env::var("PENSTOCK_LIST_ENCODER").is_ok_and(|name| name == model.name) {
            println!("{}", program.listing());
        }
        let _ = writeln!(text, "{}", model.name);
        let mut lines: Vec<(String, usize)> = Vec::new();
        for (op, rows) in program.ops.iter().zip(&program.op_rows) {
            let line = format!("{rows:?} {}", op.name());
            match lines.last_mut().filter(|last| last.0 == line) {
                Some(last) => last.1 += 1,
                None => lines.push((line, 1)),
            }
        }
        for (line, count) in lines {
            let _ = writeln!(text, "  {line}{}", if count > 1 { format!(" × {count}") } else { String::new() });
        }
    }
    let path = fixtures::golden("encoders-gpu.txt");
    if std::env::var_os("PENSTOCK_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap_or_default());
}

#[test]
fn scratch_memory_grows_with_the_batch_and_the_roles() {
    let weights = weights(&TinyModel::new(&ARCHS[0]));
    let scratch = |change: &dyn Fn(&mut EngineOptions)| {
        let mut options = options();
        change(&mut options);
        Description::new(&weights, &options).unwrap().need().unwrap().scratch
    };
    let one = scratch(&|_| ());
    assert!(scratch(&|options| options.max_batch_tokens = 1 << 16) > one + (1 << 20));
    assert!(scratch(&|options| options.max_slots = 256) > one + (1 << 20));
    assert!(scratch(&|options| options.context = 1 << 20) > one + (1 << 20));
}

#[test]
fn quantised_weights_take_less_memory() {
    let need = |name| {
        let quant = QUANTS.iter().find(|quant| quant.name == name).unwrap();
        let model = TinyModel { quant, ..TinyModel::new(&ARCHS[0]) };
        Description::new(&weights(&model), &options()).unwrap().need().unwrap().weights
    };
    assert!(need("Q4_0") < need("Q8_0") && need("Q8_0") < need("F16"));
    assert_eq!(need("F16"), need("BF16"));
}

/// Gate and up share a matrix. Half of one would leave memory that is never written.
#[test]
fn halves_of_a_matrix_come_in_pairs() {
    let (weights, options) = (weights(&TinyModel::new(&ARCHS[0])), options());
    let refusal = |change: &dyn Fn(&mut [sys::pen_tensor])| {
        let mut description = Description::new(&weights, &options).unwrap();
        let upper = description.tensors.iter().position(|tensor| tensor.kind == sys::PEN_UPPER_HALF).expect("a gate");
        change(&mut description.tensors[upper..upper + 2]);
        description.need().err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert_eq!(refusal(&|_| ()), "");
    type Change = fn(&mut [sys::pen_tensor]);
    let changes: [(Change, &str); 8] = [
        (|pair| pair[0].kind = sys::PEN_MATRIX, "in front of it"),
        (|pair| pair[0].kind = sys::PEN_LOWER_HALF, "in front of it"),
        (|pair| pair.swap(0, 1), "in front of it"),
        (|pair| pair[1].rows += 16, "in front of it"),
        (|pair| pair[0].cols *= 2, "in front of it"),
        (|pair| pair[1].count += 1, "in front of it"),
        (|pair| pair[1].kind = sys::PEN_MATRIX, "behind it"),
        (|pair| pair[1].kind = sys::PEN_UPPER_HALF, "behind it"),
    ];
    for (i, (change, expected)) in changes.into_iter().enumerate() {
        let refusal = refusal(&change);
        assert!(refusal.contains("has no other half") && refusal.contains(expected), "change {i}: {refusal}");
    }
    let other = QUANTS.iter().find(|quant| quant.name == "Q8_0").unwrap().id;
    assert!(refusal(&|pair| pair[1].r#type = other).contains("in front of it"));
}

/// Ops are resolved when a model is made, which needs a device.
#[test]
#[ignore = "needs a GPU"]
fn a_program_that_names_what_is_not_there_is_refused_on_the_gpu() {
    let (weights, options) = (weights(&TinyModel::new(&ARCHS[0])), options());
    let refusal = |change: &dyn Fn(&mut Op, &DeviceProgram)| {
        let mut description = Description::new(&weights, &options).unwrap();
        let mut ops = std::mem::take(&mut description.program.ops);
        ops.iter_mut().for_each(|op| change(op, &description.program));
        description.ops = ops.iter().map(|op| op.raw(sys::PEN_ROWS_STEP)).collect();
        description.begin(Context::create(0).unwrap()).err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert_eq!(refusal(&|_, _| ()), "");
    type Change = fn(&mut Op, &DeviceProgram);
    let changes: [(Change, &str); 6] = [
        (
            |op, of| {
                if let Op::Linear(linear) = op {
                    linear.w0 = of.tensors.len() as u32
                }
            },
            "does not exist",
        ),
        (
            |op, of| {
                if let Op::Linear(linear) = op {
                    linear.r#in = of.buffers.len() as u32
                }
            },
            "does not exist",
        ),
        (
            |op, of| {
                if let Op::Embed(embed) = op {
                    embed.table = of.tensors.len() as u32
                }
            },
            "does not exist",
        ),
        (
            |op, of| {
                if let Op::Attention(attention) = op {
                    attention.cache = of.caches.len() as u32
                }
            },
            "does not exist",
        ),
        (
            |op, of| {
                if let Op::Embed(embed) = op {
                    embed.table = vector(of)
                }
            },
            "is no matrix",
        ),
        (
            |op, of| {
                if let Op::Linear(linear) = op {
                    linear.norm.weight = matrix(of)
                }
            },
            "is no vector",
        ),
    ];
    for (i, (change, expected)) in changes.into_iter().enumerate() {
        let refusal = refusal(&change);
        assert!(refusal.contains(expected), "change {i}: {refusal:?}");
    }
}

/// The first vector of a program.
fn vector(program: &DeviceProgram) -> u32 {
    program.tensors.iter().position(|tensor| tensor.desc.kind == sys::PEN_VECTOR).expect("a norm") as u32
}

/// The first matrix of a program.
fn matrix(program: &DeviceProgram) -> u32 {
    program.tensors.iter().position(|tensor| tensor.desc.kind == sys::PEN_MATRIX).expect("a product") as u32
}

/// The ops of two ranges of layers are those of the whole model. Only a branch that the next layer's norm would have added is added by
/// an op of its own.
#[test]
fn ranges_of_layers_join_to_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (_, models) = fixtures::architectures::architectures();
    let (mut joined, mut settled) = (0, 0);
    for model in &models {
        let weights = Weights::load(Arc::new(GgufFile::open(&model.write(folder.path())).unwrap())).unwrap();
        let (links, end, hidden) = (ropes(&weights, 100).1, weights.spec.num_layers(), weights.spec.hidden_dim as u32);
        let of = |layers| {
            let program = Program::new(&weights, &links, &Scope { layers, ..Scope::whole(&weights.spec) })?;
            DeviceProgram::new(&weights, &program)
        };
        let Ok(whole) = of(0..end) else { panic!("{}: every model runs on a GPU", model.name) };
        let (Ok(first), Ok(second)) = (of(0..end / 2), of(end / 2..end)) else { continue };
        let names = |program: &DeviceProgram| program.ops.iter().map(Op::name).collect::<Vec<_>>();
        let (mut before, both) = (names(&first), names(&whole));
        if before.len() + names(&second).len() > both.len() {
            assert_eq!(before.split_off(before.len() - 1), ["Normalise"], "{}", model.name);
            settled += 1;
        }
        assert_eq!([before, names(&second)].concat(), both, "{}", model.name);
        assert_eq!((first.inputs.len(), second.output, first.head.w), (0, None, sys::PEN_NONE), "{}", model.name);
        for (program, rows) in [(&first, first.output), (&second, second.inputs.first().copied())] {
            let buffer = program.buffers[rows.expect("rows of the stream") as usize];
            assert_eq!(
                buffer,
                sys::pen_buffer { r#type: sys::PEN_F32, width: hidden, per_token: 1, rows: sys::PEN_ROWS_STEP },
                "{}",
                model.name
            );
            let mut next = 0;
            for cache in &program.caches {
                assert!(cache.place <= next, "{}: place {} of {next}", model.name, cache.place);
                next = next.max(cache.place + 1);
            }
        }
        joined += 1;
    }
    assert!(joined > 80 && settled > 0, "{joined} models have been cut, {settled} of them within a fusion");
}

#[test]
fn a_shard_is_refused_by_its_number() {
    let weights = weights(&TinyModel { num_heads: 4, num_kv_heads: 2, ffn_dim: 512, ..TinyModel::new(&ARCHS[0]) });
    let scope = Scope { shard: Shard { index: 1, count: 2 }, ..Scope::whole(&weights.spec) };
    let program = Program::new(&weights, &ropes(&weights, 100).1, &scope).unwrap();
    let error = DeviceProgram::new(&weights, &program).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("shard 1 of 2 on a GPU: use --backend cpu"), "{error}");
}

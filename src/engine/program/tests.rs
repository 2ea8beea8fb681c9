//! The programs of all architectures, and programs that are wrong.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::{Arc, LazyLock};

use super::*;
use crate::rope::ropes;
use fixtures::architectures::{architectures, embedders};
use gguf::GgufFile;
use model::arch::Block;
use model::testing::TinyModel;
use model::{ARCHS, Weights};

/// The models of the fixtures, and tiny ones of the architectures that these lack.
static MODELS: LazyLock<Vec<(String, Weights)>> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let load = |path: &std::path::Path| Weights::load(Arc::new(GgufFile::open(path).unwrap()));
    let fixtures = architectures().1.into_iter().chain(embedders());
    let mut all: Vec<_> = fixtures.map(|model| (model.name.clone(), load(&model.write(folder.path())).unwrap())).collect();
    let known: BTreeSet<_> = all.iter().map(|(_, weights)| weights.spec.arch.name).collect();
    for arch in ARCHS.iter().filter(|arch| !known.contains(arch.name)) {
        let path = folder.path().join(format!("{}.gguf", arch.name));
        let tiny = TinyModel { optional: true, ..TinyModel::new(arch) };
        let mut file = tiny.build();
        if arch.block == Block::PostNorm {
            // encoders call their norms otherwise
            let names =
                (0..tiny.num_layers).flat_map(|layer| ["attn_output_norm", "layer_output_norm"].map(|norm| format!("blk.{layer}.{norm}")));
            for name in names.chain(["token_embd_norm".into()]).flat_map(|name| ["weight", "bias"].map(|part| format!("{name}.{part}"))) {
                if !file.tensors.iter().any(|tensor| tensor.name == name) {
                    file = file.tensor_f32(&name, &[tiny.hidden_dim as u64], &vec![0.5; tiny.hidden_dim]);
                }
            }
        }
        file.write(&path).unwrap();
        all.push((format!("{} (tiny)", arch.name), load(&path).unwrap_or_else(|error| panic!("{}: {error}", arch.name))));
    }
    all
});

fn program(weights: &Weights) -> Result<Program, EngineError> {
    Program::new(weights, &ropes(weights, 128).1)
}

/// The programs are those of `tests/golden/programs.txt.gz`. After a change that is meant, write them anew: `PENSTOCK_PROGRAMS` names the
/// file to write, which gzip then packs.
#[test]
fn every_architecture_has_its_program() {
    let mut found = String::new();
    for (name, weights) in MODELS.iter() {
        let program = program(weights).unwrap_or_else(|error| panic!("{name}: {error}"));
        let _ = writeln!(found, "# {name}\n{}", program.listing(weights));
    }
    if let Ok(path) = std::env::var("PENSTOCK_PROGRAMS") {
        std::fs::write(path, &found).unwrap();
    }
    let expected = fixtures::packed_text("programs.txt.gz");
    let title = |text: &str, line: usize| text.lines().take(line + 1).filter(|line| line.starts_with("# ")).last().unwrap_or("").to_owned();
    for (i, (found_line, expected_line)) in found.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found_line, expected_line, "{}, line {}", title(&found, i), i + 1);
    }
    assert_eq!(found.lines().count(), expected.lines().count());
    let known: BTreeSet<_> = MODELS.iter().map(|(_, weights)| weights.spec.arch.name).collect();
    let missing: Vec<_> = ARCHS.iter().map(|arch| arch.name).filter(|name| !known.contains(name)).collect();
    assert!(missing.is_empty(), "architectures without a program: {missing:?}");
}

/// Plain data: the same model gives an equal program, and a copy of it is equal.
#[test]
fn programs_can_be_compared() {
    let programs: Vec<Program> = MODELS.iter().map(|(_, weights)| program(weights).unwrap()).collect();
    for (i, (name, weights)) in MODELS.iter().enumerate() {
        assert_eq!(program(weights).unwrap(), programs[i].clone(), "{name}");
    }
    assert_ne!(programs[0], programs[1]);
}

#[test]
fn a_program_whose_shapes_do_not_fit_is_refused() {
    let (_, weights) = MODELS.iter().find(|(name, _)| name == "llama-dense").expect("a plain model");
    let good = program(weights).unwrap();
    let hidden = weights.spec.hidden_dim;
    assert!(good.check(hidden).is_ok());
    let at = |name: &str| good.ops.iter().position(|placed| placed.op.name() == name).unwrap();
    type Change = fn(&mut Program, usize);
    let cases: [(&str, Change, &str); 8] = [
        ("linear", |program, at| drop(program.ops.remove(at - 1)), "op linear in layer 0: `h` is read before it is written"),
        ("norm", |program, at| program.ops.swap(at, at + 1), "op linear in layer 0: `h` is read before it is written"),
        ("norm", |program, at| edit_norm(program, at, |norm| norm.dim += 1), "op norm in layer 0: element"),
        ("norm", |program, at| edit_norm(program, at, |norm| norm.from.buffer = BufferId(99)), "op norm in layer 0: there is no buffer 99"),
        ("norm", |program, at| edit_norm(program, at, |norm| norm.params.weight = Some(TensorId(999))), "there is no tensor 999"),
        ("attention", |program, _| program.caches.clear(), "op attention in layer 0: there is no cache 0"),
        ("attention", |program, at| edit_attention(program, at, |op| op.queries.count += 1), "op attention in layer 0: element"),
        ("linear", |program, _| program.buffers[1].width -= 1, "in layer 0: element"),
    ];
    for (name, change, expected) in cases {
        let mut wrong = good.clone();
        change(&mut wrong, at(name));
        let error = wrong.check(hidden).expect_err(expected).to_string();
        assert!(error.contains(expected), "{name}: {error}, expected {expected}");
    }
    assert!(good.check(hidden + 1).unwrap_err().to_string().contains("the head does not fit"));
}

fn edit_norm(program: &mut Program, at: usize, edit: fn(&mut Norm)) {
    let Op::Norm(norm) = &mut program.ops[at].op else { panic!("a norm") };
    edit(norm);
}

fn edit_attention(program: &mut Program, at: usize, edit: fn(&mut Attention)) {
    let Op::Attention(op) = &mut program.ops[at].op else { panic!("an attention") };
    edit(op);
}

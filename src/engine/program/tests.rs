//! The programs of all architectures, and programs that are wrong.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::{Arc, LazyLock};

use super::tensor::Slice;
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
    Program::new(weights, &ropes(weights, 128).1, &Scope::whole(&weights.spec))
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

/// The ops of a listing, without the sums over all of them.
fn lines(program: &Program, weights: &Weights) -> Vec<String> {
    program.listing(weights).lines().skip(1).take_while(|line| !line.trim_start().starts_with("all ")).map(str::to_owned).collect()
}

#[test]
fn ranges_of_layers_join_to_the_whole() {
    let mut cut = 0;
    for (name, weights) in MODELS.iter().filter(|(_, weights)| weights.spec.num_layers() > 1) {
        let (links, end) = (ropes(weights, 128).1, weights.spec.num_layers());
        let of = |layers| Program::new(weights, &links, &Scope { layers, shard: Shard::WHOLE });
        let (first, second) = match (of(0..end / 2), of(end / 2..end)) {
            (Ok(first), Ok(second)) => (first, second),
            (first, second) => {
                let why = [first, second].map(|part| part.err().map_or(String::new(), |error| error.to_string())).concat();
                assert!(why.contains("pass through all layers") || why.contains("reads the cache of layer"), "{name}: {why}");
                continue;
            }
        };
        let whole = program(weights).unwrap();
        assert_eq!([lines(&first, weights), lines(&second, weights)].concat(), lines(&whole, weights), "{name}");
        assert_eq!((first.head, second.head.map(|head| head.vocab)), (None, whole.head.map(|head| head.vocab)), "{name}");
        assert_eq!(first.caches.len() + second.caches.len(), whole.caches.len(), "{name}");
        cut += 1;
    }
    assert!(cut > 80, "{cut} models have been cut");
}

fn shards(weights: &Weights, count: usize) -> Result<Vec<Program>, EngineError> {
    let (links, layers) = (ropes(weights, 128).1, 0..weights.spec.num_layers());
    let of = |index| Program::new(weights, &links, &Scope { layers: layers.clone(), shard: Shard { index, count } });
    (0..count).map(of).collect()
}

/// A model whose heads, inner elements and experts can be cut into eight.
fn wide(name: &str, experts: bool) -> Weights {
    let arch = model::Arch::by_name(name).unwrap();
    let tiny = TinyModel { num_heads: 8, num_kv_heads: 4, ffn_dim: 512, optional: true, ..TinyModel::new(arch) };
    let experts = experts.then(|| model::Experts { count: 11, ..TinyModel::experts(arch) });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wide.gguf");
    TinyModel { experts, ..tiny }.build().write(&path).unwrap();
    Weights::load(Arc::new(GgufFile::open(&path).unwrap())).unwrap()
}

#[test]
fn shards_have_each_part_of_a_tensor_once_and_exchange_what_they_sum() {
    for (weights, count) in [("llama", false), ("qwen2", false), ("qwen3moe", true), ("qwen2moe", true), ("gemma2", false)]
        .into_iter()
        .flat_map(|(name, experts)| [1, 2, 4, 8].map(|count| (wide(name, experts), count)))
    {
        let whole = program(&weights).unwrap();
        let shards = shards(&weights, count).unwrap();
        let names = |program: &Program| program.ops.iter().map(|placed| placed.op.name()).collect::<Vec<_>>();
        for shard in &shards {
            assert_eq!(names(shard), names(&shards[0]), "all shards reach the same exchanges");
            let without: Vec<_> = names(shard).into_iter().filter(|name| *name != "exchange").collect();
            assert_eq!(without, names(&whole));
        }
        let sums = |program: &Program| {
            let is_sum = |op: &Op| matches!(op, Op::Experts(_)) || matches!(op, Op::Linear(linear) if linear.in_slices);
            program.ops.iter().filter(|placed| is_sum(&placed.op)).count()
        };
        let exchanges = names(&shards[0]).into_iter().filter(|name| *name == "exchange").count();
        assert_eq!(exchanges, if count == 1 { 0 } else { sums(&whole) });
        for (i, tensor) in shards[0].tensors.iter().enumerate() {
            let mut end = 0;
            for shard in &shards {
                let (Slice::Rows(span) | Slice::Columns(span) | Slice::Matrices(span)) = shard.tensors[i].slice else {
                    assert_eq!(shard.tensors[i], *tensor, "all shards have it whole");
                    continue;
                };
                // keys and values of a head that shards share are copies
                let is_copy = tensor.name.contains("attn_k") || tensor.name.contains("attn_v");
                assert!(span.first == end || is_copy && count == 8 && span.range().end == end, "{}: {span:?}", tensor.name);
                end = span.range().end;
                assert!(span.len > 0 && end <= span.of);
            }
            let has_slices = tensor.slice != Slice::Whole;
            assert!(
                !has_slices || matches!(tensor.slice, Slice::Rows(span) | Slice::Columns(span) | Slice::Matrices(span) if span.of == end)
            );
        }
    }
}

/// A layer that reads another one's cache has queries alone.
#[test]
fn a_layer_reads_the_cache_that_it_is_linked_to() {
    let (_, weights) = MODELS.iter().find(|(name, _)| name == "llama-dense").expect("a plain model");
    let (links, layers) = (ropes(weights, 128).1, weights.spec.num_layers());
    let with = |layer: usize, cache| {
        let mut links = links.clone();
        links.caches[layer] = cache;
        Program::new(weights, &links, &Scope::whole(&weights.spec))
    };
    assert_eq!(links.caches, (0..layers).map(Some).collect::<Vec<_>>());
    let program = with(1, Some(0)).unwrap();
    let attentions: Vec<_> =
        program.ops.iter().filter_map(|placed| if let Op::Attention(op) = &placed.op { Some(op) } else { None }).collect();
    let found: Vec<_> = attentions.iter().map(|op| (op.cache, op.keys.is_some(), op.values.is_some())).collect();
    let expected: Vec<_> =
        (0..layers).map(|i| if i == 1 { (0, false, false) } else { (i.saturating_sub(usize::from(i > 1)), true, true) }).collect();
    assert_eq!((found, program.caches.len()), (expected, layers - 1));
    for (layer, cache, expected) in [
        (0, Some(1), "op attention in layer 0: it reads the cache of layer 1, which is not one of 0..0"),
        (1, None, "op attention in layer 1: it has no cache"),
    ] {
        let error = with(layer, cache).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn what_cannot_be_cut_is_refused_by_name() {
    let of = |name: &str, scope: Scope| {
        let (_, weights) = MODELS.iter().find(|(model, _)| model == name).unwrap_or_else(|| panic!("no model {name}"));
        Program::new(weights, &ropes(weights, 128).1, &scope).expect_err(name).to_string()
    };
    let shard = |count| Scope {
        layers: 0..MODELS.iter().find(|(name, _)| name == "llama-dense").unwrap().1.spec.num_layers(),
        shard: Shard { index: 0, count },
    };
    let cases = [
        ("llama-dense", 3, "unsupported: shard 0 of 3: expected 0/2 to 7/8, of 1, 2, 4 or 8 shards"),
        ("mamba2-dense", 2, "op scan in layer 0: a recurrent state cannot be cut into 2 shards"),
        ("falcon-h1-dense", 2, "op scan in layer 0: a recurrent state cannot be cut into 2 shards"),
        ("gemma3n-dense", 2, "op predict: the streams of AltUp cannot be cut into 2 shards"),
        ("gemma4-dense", 2, "op embed: the layers' own inputs cannot be cut into 2 shards"),
        ("bloom-dense", 2, "op attention in layer 0: ALiBi's slopes of all heads cannot be cut into 2 shards"),
        ("olmo2-dense", 2, "op attention in layer 0: a norm of all heads cannot be cut into 2 shards"),
        ("bitnet-dense", 2, "op norm in layer 0: a norm of all heads cannot be cut into 2 shards"),
        ("llama-dense", 8, "op attention in layer 0: 2 heads cannot be cut into 8 shards"),
    ];
    for (name, count, expected) in cases {
        let error = of(name, shard(count));
        assert!(error.contains(expected), "{name}: {error}");
    }
    let range = |layers| Scope { layers, shard: Shard::WHOLE };
    assert!(of("gemma3n-dense", range(0..1)).contains("the streams of AltUp pass through all layers"));
    assert!(of("llama-dense", range(1..1)).contains("layers 1..1 of a model with layers 0.."));
    // four slices of 128 columns of 32 columns would cut its blocks of 256
    let narrow = |quant: &str, count| {
        let quant = model::QUANTS.iter().find(|row| row.name == quant).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("narrow.gguf");
        let arch = model::Arch::by_name("llama").unwrap();
        let tiny = TinyModel { num_heads: 8, num_kv_heads: 8, ffn_dim: 512, quant, ..TinyModel::new(arch) };
        tiny.build().write(&path).unwrap();
        shards(&Weights::load(Arc::new(GgufFile::open(&path).unwrap())).unwrap(), count).map(|_| ())
    };
    assert!(narrow("Q8_0", 8).is_ok() && narrow("Q4_K", 2).is_ok());
    let error = narrow("Q4_K", 4).unwrap_err().to_string();
    assert!(
        error.ends_with("blk.0.attn_output.weight, in blocks of 256, are cut into 2 slices at most, and there are 4 shards"),
        "{error}"
    );
}

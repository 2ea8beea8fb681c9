//! Pictures on a GPU, compared with the CPU and with the reference: encoders of all families, language models with rows of pictures, and
//! the time that encoders of real sizes take, alone and beside streams that decode.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::super::{CudaEngine, MAX_IN_FLIGHT, tests};
use super::*;
use crate::cpu::CpuEncoder;
use crate::picture_testing::{apart, difference, divergence, encode, encoder_weights, last_logits, only, prompt, row_difference, sizes};
use crate::{BackendKind, BlockTables, Engine, EngineOptions, StepOutput};
use fixtures::vision::{Chunk, VisionModel, picture, vision_models};
use gguf::{GgufBuilder, GgufFile};
use model::testing::TinyModel;
use model::{Arch, QUANTS, Weights};

/// The largest difference of a row's float from the CPU and the reference, in the row's root mean square: inputs of products are float16.
/// An H200's are 2.2e-3 to 8.0e-3.
const ROW_BOUND: f64 = 2e-2;
/// The largest divergence of the next token's distribution from the CPU's. An H200's are 7.8e-8 to 7.5e-6.
const KL_BOUND: f64 = 2e-5;
/// A family whose weights magnify what is rounded, even if they are calm. With another token's padding, or rows that do not see each other,
/// it would diverge by 0.4 and more.
const ROUGH: (&str, f64) = ("gemma4", 1e-3);
const CONTEXT: usize = 1024;

fn encoder(model: &VisionModel) -> CudaEncoder {
    let made = CudaEncoder::new(Context::create(0).unwrap(), &encoder_weights(model), 4096);
    made.unwrap_or_else(|error| panic!("{}: {error}", model.name))
}

fn on_cpu(model: &VisionModel) -> CpuEncoder {
    CpuEncoder::new(encoder_weights(model), 2).unwrap_or_else(|error| panic!("{}: {error}", model.name))
}

#[test]
#[ignore = "needs a GPU"]
fn encoders_give_the_rows_of_the_cpu_on_the_gpu() {
    let mut wrong = Vec::new();
    for model in only(vision_models()) {
        let (mut gpu, mut cpu) = (encoder(&model), on_cpu(&model));
        let (mut worst, mut from_reference) = (0f64, 0f64);
        let sizes = sizes(cpu.spec());
        let pixels: Vec<_> = sizes.iter().map(|&size| picture(size)).collect();
        let pictures: Vec<_> =
            sizes.iter().zip(&pixels).map(|([width, height], rgb)| Picture { width: *width, height: *height, rgb }).collect();
        let (got, expected) = (gpu.encode(&pictures).unwrap(), cpu.encode(&pictures).unwrap());
        got.iter().zip(&expected).for_each(|(got, expected)| worst = worst.max(apart(got, expected)));
        // alone, in another order, and behind others: the same bits
        for (picture, before) in pictures.iter().zip(&got).rev() {
            let alone = gpu.encode(&[*picture]).unwrap();
            if alone[0].iter().zip(before).any(|(a, b)| a.to_bits() != b.to_bits()) {
                wrong.push(format!("{}: a picture of {} × {} has other bits alone", model.name, picture.width, picture.height));
            }
        }
        for case in &model.cases {
            let Some(rows) = encode(&mut gpu, case) else { continue };
            let chunks = case.chunks.iter().filter_map(|chunk| if let Chunk::Picture(rows) = chunk { Some(rows) } else { None });
            rows.iter().zip(chunks).for_each(|(found, expected)| from_reference = from_reference.max(row_difference(found, expected)));
        }
        println!("{:10} {} pictures: {worst:.1e} from the CPU, {from_reference:.1e} from the reference", model.name, sizes.len());
        if !(worst <= ROW_BOUND && from_reference <= ROW_BOUND) {
            wrong.push(format!("{}: rows {worst:.1e}, {from_reference:.1e}", model.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn engine(model: &VisionModel, backend: BackendKind) -> Box<dyn Engine> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let file = if model.name.starts_with(ROUGH.0) { model.calm_language_model() } else { model.language_model() };
    file.write(&path).unwrap();
    let weights = Weights::load(Arc::new(GgufFile::open(&path).unwrap())).unwrap();
    let sizes = EngineOptions { context: CONTEXT, kv_tokens: 4096, block_size: 32, ..EngineOptions::default() };
    let options = EngineOptions { max_slots: 4, max_batch_tokens: CONTEXT, threads: 2, ..sizes };
    let mut engine = crate::open(weights, &options, Some(backend)).unwrap_or_else(|error| panic!("{}: {error}", model.name));
    let num_blocks = engine.kv_capacity().num_blocks;
    engine.resize_cache(num_blocks).unwrap();
    engine
}

#[test]
#[ignore = "needs a GPU"]
fn language_models_read_rows_of_pictures_as_on_the_cpu_on_the_gpu() {
    let mut wrong = Vec::new();
    for model in only(vision_models()) {
        let (mut gpu, mut cpu) = (encoder(&model), on_cpu(&model));
        let [mut language, mut exact] = [BackendKind::Cuda, BackendKind::Cpu].map(|backend| engine(&model, backend));
        let [mut same_rows, mut own_rows, mut reference] = [0f64; 3];
        for size in sizes(cpu.spec()) {
            let case = prompt(language.spec(), cpu.spec(), size);
            let pixels = picture(size);
            let shown = [Picture { width: size[0], height: size[1], rgb: &pixels }];
            let rows = [&mut gpu as &mut dyn Encoder, &mut cpu].map(|encoder| encoder.encode(&shown).unwrap());
            let expected = last_logits(&mut *exact, &case, &rows[1]);
            let got = [1, 0].map(|of| divergence(&expected, &last_logits(&mut *language, &case, &rows[of])));
            (same_rows, own_rows) = (same_rows.max(got[0]), own_rows.max(got[1]));
        }
        for case in &model.cases {
            let Some(rows) = encode(&mut gpu, case).filter(|_| model.has_logits()) else { continue };
            reference = reference.max(difference(&last_logits(&mut *language, case, &rows), &case.logits));
        }
        println!(
            "{:10} divergence {same_rows:.1e} with the CPU's rows, {own_rows:.1e} with its own; {reference:.1e} σ from the reference",
            model.name
        );
        let bound = if model.name.starts_with(ROUGH.0) { ROUGH.1 } else { KL_BOUND };
        if !(same_rows <= bound && own_rows <= bound) {
            wrong.push(format!("{}: {same_rows:.1e}, {own_rows:.1e}", model.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// An encoder of a real size, with weights that a formula gives.
struct Real {
    name: &'static str,
    family: &'static str,
    numbers: &'static [(&'static str, u32)],
    hidden: usize,
    ffn: usize,
    layers: usize,
    gated: bool,
    /// The matrices outside of the layers: their names, columns and rows.
    matrices: &'static [(&'static str, usize, usize)],
    vectors: &'static [(&'static str, usize)],
    picture: [usize; 2],
    bound_ms: f64,
}

const REAL: [Real; 2] = [
    Real {
        name: "SigLIP-400M of Gemma 3 4B",
        family: "gemma3",
        numbers: &[("image_size", 896), ("attention.head_count", 16), ("projection_dim", 2560), ("projector.scale_factor", 4)],
        hidden: 1152,
        ffn: 4304,
        layers: 27,
        gated: false,
        matrices: &[("v.position_embd.weight", 1152, 4096), ("mm.input_projection.weight", 2560, 1152)],
        vectors: &[("v.post_ln.weight", 1152), ("v.post_ln.bias", 1152), ("mm.soft_emb_norm.weight", 1152)],
        picture: [896, 896],
        bound_ms: 8.0,
    },
    Real {
        name: "Qwen2.5-VL 7B",
        family: "qwen2.5vl_merger",
        numbers: &[("image_size", 560), ("attention.head_count", 16), ("projection_dim", 3584), ("n_wa_pattern", 8)],
        hidden: 1280,
        ffn: 3420,
        layers: 32,
        gated: true,
        matrices: &[("mm.0.weight", 5120, 5120), ("mm.2.weight", 5120, 3584)],
        vectors: &[("v.post_ln.weight", 1280), ("mm.0.bias", 5120), ("mm.2.bias", 3584)],
        picture: [1036, 1036],
        bound_ms: 15.0,
    },
];

impl Real {
    fn weights(&self) -> VisionWeights {
        let key = |name: &str| format!("clip.vision.{name}");
        let half = |value: f32| half::f16::from_f32(value).to_le_bytes();
        let random = |i: u32| i.wrapping_mul(2_654_435_761).rotate_left(15).wrapping_mul(2_246_822_519) as f32 / u32::MAX as f32 - 0.5;
        let pattern: Vec<f32> = (0..65_521).map(random).collect();
        let matrix = |cols: usize, rows: usize| -> Vec<u8> {
            let scale = 2.0 / (cols as f32).sqrt();
            let row: Vec<u8> = pattern.iter().flat_map(|x| half(x * scale)).collect();
            row.iter().copied().cycle().take(2 * cols * rows).collect()
        };
        let vector = |name: &str, len: usize| -> Vec<f32> {
            let is_norm = name.ends_with("weight");
            pattern[..len].iter().map(|x| if is_norm { 1.0 + 0.2 * x } else { 0.2 * x }).collect()
        };
        let array = |values: [f32; 3]| gguf::Value::Array(gguf::Array::F32(values.to_vec()));
        let mut file = GgufBuilder::new()
            .kv("general.architecture", "clip".to_owned())
            .kv("clip.has_vision_encoder", true)
            .kv("clip.projector_type", self.family.to_owned())
            .kv(if self.gated { "clip.use_silu" } else { "clip.use_gelu" }, true)
            .kv(&key("patch_size"), 14u32)
            .kv(&key("embedding_length"), self.hidden as u32)
            .kv(&key("feed_forward_length"), self.ffn as u32)
            .kv(&key("block_count"), self.layers as u32)
            .kv(&key("attention.layer_norm_epsilon"), 1e-6f32)
            .kv(&key("image_mean"), array([0.5; 3]))
            .kv(&key("image_std"), array([0.5; 3]));
        for (name, value) in self.numbers {
            file = file.kv(&key(name), *value);
        }
        let (hidden, ffn) = (self.hidden, self.ffn);
        let mut matrices: Vec<(String, usize, usize)> = self.matrices.iter().map(|&(name, cols, rows)| (name.into(), cols, rows)).collect();
        let mut vectors: Vec<(String, usize)> = self.vectors.iter().map(|&(name, len)| (name.into(), len)).collect();
        for layer in 0..self.layers {
            let of = |name: &str| format!("v.blk.{layer}.{name}");
            let gate = self.gated.then_some(("ffn_gate", hidden, ffn));
            let square = ["attn_q", "attn_k", "attn_v", "attn_out"].map(|name| (name, hidden, hidden));
            for (name, cols, rows) in square.into_iter().chain(gate).chain([("ffn_up", hidden, ffn), ("ffn_down", ffn, hidden)]) {
                matrices.push((of(&format!("{name}.weight")), cols, rows));
                vectors.push((of(&format!("{name}.bias")), rows));
            }
            for norm in ["ln1", "ln2"] {
                vectors.push((of(&format!("{norm}.weight")), hidden));
                vectors.extend((!self.gated).then(|| (of(&format!("{norm}.bias")), hidden)));
            }
        }
        let dims = [14, 14, 3, hidden as u64];
        file = file.tensor("v.patch_embd.weight", &dims, 1, matrix(588, hidden));
        match self.gated {
            true => file = file.tensor("v.patch_embd.weight.1", &dims, 1, matrix(588, hidden)),
            false => vectors.push(("v.patch_embd.bias".into(), hidden)),
        }
        for (name, cols, rows) in &matrices {
            file = file.tensor(name, &[*cols as u64, *rows as u64], 1, matrix(*cols, *rows));
        }
        for (name, len) in &vectors {
            file = file.tensor_f32(name, &[*len as u64], &vector(name, *len));
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mmproj.gguf");
        file.write(&path).unwrap();
        VisionWeights::load(Arc::new(GgufFile::open(&path).unwrap())).unwrap()
    }
}

/// Prints the times. `PENSTOCK_COMPARE_CPU` also compares the rows with the CPU's, which take a while.
#[test]
#[ignore = "needs a GPU"]
fn encoders_of_real_sizes_take_this_time_on_the_gpu() {
    for real in REAL {
        let vision = real.weights();
        let [width, height] = real.picture;
        let patches = width / 14 * (height / 14);
        let mut encoder = CudaEncoder::new(Context::create(0).unwrap(), &vision, patches).unwrap();
        let pixels = picture(real.picture);
        let shown = [Picture { width, height, rgb: &pixels }];
        let first = encoder.encode(&shown).unwrap();
        let mut times: Vec<f64> = (0..10)
            .map(|_| {
                let begin = Instant::now();
                let rows = encoder.encode(&shown).unwrap();
                let time = begin.elapsed().as_secs_f64() * 1e3;
                assert!(rows == first, "{}: other bits in another run", real.name);
                time
            })
            .collect();
        times.sort_by(f64::total_cmp);
        let need = CudaEncoder::need(&vision, patches).unwrap();
        let memory = need as f64 / (1u64 << 30) as f64;
        println!("{}: {width} × {height}, {patches} patches: {:.2} ms, bar {} ms; {memory:.2} GiB", real.name, times[5], real.bound_ms);
        assert!(first[0].iter().all(|x| x.is_finite()), "{}", real.name);
        if std::env::var_os("PENSTOCK_COMPARE_CPU").is_some() {
            let expected = CpuEncoder::new(vision, 0).unwrap().encode(&shown).unwrap();
            println!("{}: {:.1e} from the CPU", real.name, apart(&first[0], &expected[0]));
        }
    }
}

/// A model whose decode steps of 64 rows take about a millisecond.
fn decoding_engine() -> CudaEngine {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let arch = Arch::by_name("llama").unwrap();
    let shape = TinyModel { hidden_dim: 2048, num_heads: 16, num_kv_heads: 4, head_dim: 128, ..TinyModel::new(arch) };
    let model = TinyModel { num_layers: 12, ffn_dim: 5632, context_length: 8192, quant: &QUANTS[1], ..shape };
    model.build().write(&path).unwrap();
    let weights = Weights::load(Arc::new(GgufFile::open(&path).unwrap())).unwrap();
    let sizes = EngineOptions { context: 8192, kv_tokens: STREAMS * 8192, max_slots: STREAMS, ..EngineOptions::default() };
    let mut engine = CudaEngine::new(Context::create(0).unwrap(), 0, weights, &EngineOptions { max_batch_tokens: 2048, ..sizes }).unwrap();
    let num_blocks = engine.kv_capacity().num_blocks;
    engine.resize_cache(num_blocks).unwrap();
    engine
}

const STREAMS: usize = 64;
const PROMPT: u32 = 32;

/// Decodes all streams for some time with two steps in flight. Returns the times between steps [ms], sorted.
fn intervals(engine: &mut CudaEngine, seconds: f64) -> Vec<f64> {
    let mut tables = BlockTables::new(engine.kv_capacity(), STREAMS);
    let (mut flying, mut all) = (VecDeque::new(), Vec::new());
    let (begin, mut last, mut length) = (Instant::now(), Instant::now(), 0);
    while begin.elapsed().as_secs_f64() < seconds && length < 8000 {
        let count = if length == 0 { PROMPT } else { 1 };
        let runs: Vec<_> = (0..STREAMS as u32).map(|slot| (slot, length, count)).collect();
        flying.push_back(engine.submit(&tests::batch(&mut tables, &runs)).unwrap());
        length += count;
        if flying.len() == MAX_IN_FLIGHT {
            engine.collect(flying.pop_front().unwrap(), &mut StepOutput::default()).unwrap();
            let now = Instant::now();
            all.push((now - last).as_secs_f64() * 1e3);
            last = now;
        }
    }
    flying.into_iter().for_each(|step| engine.collect(step, &mut StepOutput::default()).unwrap());
    let mut all = all.split_off(all.len() / 10);
    all.sort_by(f64::total_cmp);
    all
}

/// 64 streams decode, alone and while eight pictures per second are encoded.
#[test]
#[ignore = "needs a GPU"]
fn streams_keep_their_pace_beside_pictures_on_the_gpu() {
    let real = &REAL[0];
    let vision = real.weights();
    let mut encoder = CudaEncoder::new(Context::create(0).unwrap(), &vision, 4096).unwrap();
    let pixels = picture(real.picture);
    let shown = [Picture { width: real.picture[0], height: real.picture[1], rgb: &pixels }];
    encoder.encode(&shown).unwrap();
    let mut engine = decoding_engine();
    let at = |times: &[f64], share: f64| times[(times.len() as f64 * share) as usize];
    let report = |what: &str, times: &[f64]| {
        let [half, most] = [0.5, 0.99].map(|share| at(times, share));
        println!("{what}: {} steps, p50 {half:.3} ms, p99 {most:.3} ms, longest {:.3} ms", times.len(), times[times.len() - 1]);
        most
    };
    let alone = report("alone", &intervals(&mut engine, 2.0));
    let (stop, mut took) = (AtomicBool::new(false), Vec::new());
    let beside = std::thread::scope(|scope| {
        scope.spawn(|| {
            let begin = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                let start = Instant::now();
                encoder.encode(&shown).unwrap();
                took.push(start.elapsed().as_secs_f64() * 1e3);
                let next = Duration::from_millis(125 * took.len() as u64);
                std::thread::sleep(next.saturating_sub(begin.elapsed()));
            }
        });
        let times = intervals(&mut engine, 3.0);
        stop.store(true, Ordering::Relaxed);
        report("beside 8 pictures per second", &times)
    });
    took.sort_by(f64::total_cmp);
    println!("{} pictures, p50 {:.2} ms; p99 between steps is {:.2} times that alone", took.len(), at(&took, 0.5), beside / alone);
    assert!(took.len() >= 8 && beside < 100.0, "neither may stop the other");
}

//! Compares every instruction set with exact arithmetic. Every number of tokens must give the bits of one token at a time.

use std::ops::Range;

use super::dispatch::available;
use super::fixed_block::{FIXED_BLOCK, FixedBlock};
use super::linear::{LinearArgs, ROW_BLOCK, scratch_len};
use super::norm::Norm;
use super::{Kernels, LANES, Sigmoidal};
use crate::program::slices::{TILE, tree};
use crate::program::{Shard, Slices};
use model::testing::{Random, random_blocks};
use model::{NormKind, QUANTS, Quant};

pub(super) struct Case {
    w: Vec<u8>,
    x: Vec<f32>,
    /// Floats to skip, so that the first row of `x` starts on a cache line.
    skip: usize,
    rows: usize,
    cols: usize,
    row_bytes: usize,
}

impl Case {
    pub fn new(quant: &Quant, rows: usize, cols: usize, tokens: usize, seed: u64) -> Self {
        let mut random = Random(seed);
        let w = random_blocks(quant, rows * cols, &mut random);
        let x: Vec<f32> = (0..tokens * cols + 16).map(|_| random.centred()).collect();
        let skip = x.as_ptr().align_offset(64);
        Self { w, x, skip, rows, cols, row_bytes: quant.row_bytes(cols) }
    }

    /// The inputs of token `t`.
    pub fn input(&mut self, t: usize) -> &mut [f32] {
        &mut self.x[self.skip + t * self.cols..][..self.cols]
    }

    /// Multiplies `tokens` tokens at once, and returns [tokens, rows].
    pub fn run(&self, kernels: &Kernels, quant: &Quant, from: usize, tokens: usize) -> Vec<f32> {
        self.run_columns(kernels, quant, from..from + tokens, (0, Slices::one(self.cols)))
    }

    /// Multiplies some tokens with some columns, from the first of them.
    fn run_columns(&self, kernels: &Kernels, quant: &Quant, tokens: Range<usize>, (first, slices): (usize, Slices)) -> Vec<f32> {
        let (from, tokens, cols) = (tokens.start, tokens.len(), slices.cols());
        let mut out = vec![f32::NAN; tokens * self.rows];
        let mut scratch = vec![0f32; scratch_len(tokens) + LANES];
        let scratch_skip = scratch.as_ptr().align_offset(64);
        let kernel = (kernels.linear_of)(quant.id).expect("every type has a kernel");
        let x = self.x[self.skip + from * self.cols + first..].as_ptr();
        let ldf = cols.div_ceil(FIXED_BLOCK);
        let mut fixed = vec![FixedBlock::ZERO; tokens * ldf];
        for (t, row) in fixed.chunks_exact_mut(ldf).enumerate() {
            if let Some(split) = kernel.split {
                // SAFETY: the processor has the instruction set (`available`); a row has `cols` floats and as many fixed blocks.
                unsafe { split(x.add(t * self.cols), cols, row.as_mut_ptr()) };
            }
        }
        let block = if tokens < super::linear::GEMM_FROM { 256 } else { ROW_BLOCK };
        for row in (0..self.rows).step_by(block) {
            let args = LinearArgs {
                w: self.w[row * self.row_bytes + quant.row_bytes(first)..].as_ptr(),
                row_bytes: self.row_bytes,
                rows: block.min(self.rows - row),
                cols,
                slices,
                x,
                ldx: self.cols,
                fixed: fixed.as_ptr(),
                ldf,
                tokens,
                out: out[row..].as_mut_ptr(),
                ldo: self.rows,
                scale: 1.0,
                accumulate: false,
                scratch: scratch[scratch_skip..].as_mut_ptr(),
                micro: kernels.micro,
            };
            // SAFETY: the processor has the instruction set (`available`); the buffers have the sizes in the arguments.
            unsafe { (kernel.run)(&args) };
        }
        out
    }
}

/// Rows and columns. Few of them under Miri, which is hundreds of times slower.
const SHAPES: &[(usize, usize)] =
    if cfg!(miri) { &[(5, 256), (6, 32)] } else { &[(37, 256), (16, 1280), (5, 768), (6, 32), (9, 96), (4, 416)] };

/// Whether a type's products take inputs in fixed point.
pub(super) fn is_fixed(kernels: &Kernels, quant: &Quant) -> bool {
    (kernels.linear_of)(quant.id).is_some_and(|kernel| kernel.split.is_some())
}

/// What a product is off by at most because each 16 inputs are rounded to fixed point of 16 bits.
fn rounding(w: &[f32], x: &[f32]) -> f64 {
    let group = |(w, x): (&[f32], &[f32])| {
        let largest = x.iter().fold(0f32, |largest, x| largest.max(x.abs()));
        f64::from(largest) / (2.0 * 32639.0) * w.iter().map(|w| f64::from(w.abs())).sum::<f64>()
    };
    w.chunks(16).zip(x.chunks(16)).map(group).sum()
}

#[test]
fn linear_layers_are_exact_enough_and_do_not_depend_on_the_number_of_tokens() {
    for quant in QUANTS {
        for &(rows, cols) in SHAPES {
            if cols % quant.block_size != 0 {
                continue;
            }
            let mut case = Case::new(quant, rows, cols, 23, 7);
            // outliers: some rows of input take another path than their neighbours
            (1..23).step_by(3).for_each(|t| case.input(t)[cols / 2] *= 1000.0);
            let mut w = vec![0f32; rows * cols];
            (quant.dequantize)(&case.w, &mut w);
            for kernels in available() {
                let alone: Vec<f32> = (0..23).flat_map(|t| case.run(kernels, quant, t, 1)).collect();
                for t in 0..23 {
                    for r in 0..rows {
                        let terms = || {
                            w[r * cols..][..cols].iter().zip(&case.x[case.skip + t * cols..]).map(|(w, x)| f64::from(*w) * f64::from(*x))
                        };
                        let (exact, size) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
                        let rounding = if is_fixed(kernels, quant) {
                            rounding(&w[r * cols..][..cols], &case.x[case.skip + t * cols..][..cols])
                        } else {
                            0.0
                        };
                        let got = f64::from(alone[t * rows + r]);
                        assert!(
                            (got - exact).abs() <= 1e-6 * size + rounding,
                            "{} {} {rows}x{cols}: {got} {exact}",
                            kernels.name,
                            quant.name
                        );
                    }
                }
                for (from, tokens) in [(0, 23), (3, 2), (1, 3), (4, 4), (2, 5), (0, 6), (5, 7), (1, 13)] {
                    let together = case.run(kernels, quant, from, tokens);
                    let same = together.iter().zip(&alone[from * rows..]).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{} {}: {tokens} tokens at once differ from one at a time", kernels.name, quant.name);
                }
            }
        }
    }
}

/// Rows and columns: whole K tiles and others, blocks that four or two slices at most do not cut.
const SLICED: &[(usize, usize)] =
    if cfg!(miri) { &[(5, 256)] } else { &[(37, 576), (16, 2048), (6, 1280), (9, 608), (5, 4096), (4, 3072)] };

#[test]
fn shards_of_a_sum_join_to_the_whole_with_any_number_of_tokens() {
    for quant in QUANTS {
        for &(rows, cols) in SLICED.iter().filter(|(_, cols)| cols.is_multiple_of(quant.block_size)) {
            let case = Case::new(quant, rows, cols, 9, 11);
            for kernels in available() {
                let all = Slices::of(cols, if is_fixed(kernels, quant) { FIXED_BLOCK } else { quant.block_size }, TILE);
                let bits = |sums: &[f32]| sums.iter().map(|sum| sum.to_bits()).collect::<Vec<_>>();
                let whole = bits(&case.run_columns(kernels, quant, 0..9, (0, all)));
                for (from, tokens) in [(0, 1), (8, 1), (3, 2), (2, 3), (1, 4), (2, 5), (0, 6), (1, 7)] {
                    let some = bits(&case.run_columns(kernels, quant, from..from + tokens, (0, all)));
                    assert_eq!(some, whole[from * rows..][..tokens * rows], "{} {} of {cols}", kernels.name, quant.name);
                }
                let close = |sum: &u32, one: &f32| (f32::from_bits(*sum) - one).abs() < 1e-4 * (1.0 + one.abs());
                assert!(whole.iter().zip(&case.run(kernels, quant, 0, 9)).all(|(sum, one)| close(sum, one)));
                for count in [2, 4, 8].into_iter().filter(|&count| count <= all.ends().len()) {
                    let shard = |index| {
                        let (own, columns) = all.of_shard(Shard { index, count }).unwrap();
                        case.run_columns(kernels, quant, 0..9, (columns.first, own))
                    };
                    let shards: Vec<Vec<f32>> = (0..count).map(shard).collect();
                    let join = |i: usize| tree(&shards.iter().map(|sums| sums[i]).collect::<Vec<_>>());
                    let joined: Vec<f32> = (0..9 * rows).map(join).collect();
                    assert_eq!(bits(&joined), whole, "{} {}: {count} shards of {cols} columns", kernels.name, quant.name);
                }
            }
        }
    }
}

#[test]
fn weights_have_the_bits_of_the_scalar_dequantisers() {
    for quant in QUANTS {
        let (rows, cols) = (if cfg!(miri) { 4 } else { 16 }, 256);
        let mut case = Case::new(quant, rows, cols, cols, 5);
        let mut w = vec![0f32; rows * cols];
        (quant.dequantize)(&case.w, &mut w);
        for t in 0..cols {
            case.input(t).fill(0.0);
            case.input(t)[t] = 1.0;
        }
        for kernels in available() {
            if is_fixed(kernels, quant) {
                continue; // integers agree up to rounding, which is compared above
            }
            for (t, row) in case.run(kernels, quant, 0, cols).chunks_exact(rows).enumerate() {
                // the sum of zeros and a negative zero is zero
                let same = row.iter().enumerate().all(|(r, got)| got.to_bits() == (w[r * cols + t] + 0.0).to_bits());
                assert!(same, "{} {}: column {t}", kernels.name, quant.name);
            }
        }
    }
}

#[test]
fn wide_instruction_sets_agree_on_bits() {
    let sets: Vec<_> = available().into_iter().filter(|k| k.name != "portable").collect();
    for quant in QUANTS {
        if sets.iter().any(|k| is_fixed(k, quant)) {
            continue; // integers and floats agree up to rounding, which is compared above
        }
        let case = Case::new(quant, 16, 512, 9, 3);
        for pair in sets.windows(2) {
            let [a, b] = [pair[0], pair[1]].map(|k| case.run(k, quant, 0, 9).iter().map(|x| x.to_bits()).collect::<Vec<_>>());
            assert_eq!(a, b, "{}", quant.name);
        }
    }
}

#[test]
fn norms_caps_and_activations_are_exact_enough_at_every_length() {
    let mut random = Random(5);
    for len in [1, 15, 16, 17, 32, 100] {
        let mut numbers = || (0..len).map(|_| 3.0 * random.centred()).collect::<Vec<f32>>();
        let (x, weight, bias) = (numbers(), numbers(), numbers());
        let close = |got: &[f32], exact: &dyn Fn(usize) -> f64, what: &str| {
            for (i, got) in got.iter().enumerate() {
                let exact = exact(i);
                assert!((f64::from(*got) - exact).abs() < 2e-6 * (1.0 + exact.abs()), "{what} of {len}: {got} is not {exact}");
            }
        };
        let wide = |i: usize| f64::from(x[i]);
        let mean = (0..len).map(wide).sum::<f64>() / len as f64;
        let variance = (0..len).map(|i| (wide(i) - mean).powi(2)).sum::<f64>() / len as f64;
        for kernels in available() {
            let mut out = vec![0f32; len];
            for bias in [None, Some(bias.clone())] {
                let norm = Norm { kind: NormKind::Layer, weight: weight.clone(), bias: bias.clone(), eps: 1e-3 };
                kernels.norm(&mut out, &x, &norm);
                let exact = |i| {
                    let bias = bias.as_ref().map_or(0.0, |bias| f64::from(bias[i]));
                    (wide(i) - mean) / (variance + f64::from(1e-3f32)).sqrt() * f64::from(weight[i]) + bias
                };
                close(&out, &exact, "LayerNorm");
            }
            out.clone_from(&x);
            kernels.activate(&mut out, Sigmoidal::Silu);
            close(&out, &|i| wide(i) / (1.0 + (-wide(i)).exp()), "SiLU");
            out.clone_from(&x);
            kernels.cap(&mut out, 1.5);
            close(&out, &|i| 1.5 * (wide(i) / 1.5).tanh(), "the soft cap");
            out.fill(f32::NAN);
            out[0] = f32::INFINITY;
            kernels.cap(&mut out, 30.0);
            assert!(out.iter().all(|x| x.is_nan()), "{}: a row that is not finite must not look finite", kernels.name);
        }
    }
}

/// Run with `cargo test --release -- --ignored --nocapture linear_speed`. Prints one thread's GB/s at 1 token from memory, and GFLOP/s at 4
/// … 256.
#[test]
#[ignore = "a measurement"]
fn linear_speed() {
    for kernels in available() {
        for quant in QUANTS {
            let (rows, cols) = (65536, 1536);
            let case = Case::new(quant, rows, cols, 1, 1);
            let small = Case { w: case.w[..1536 * case.row_bytes].to_vec(), ..Case::new(quant, 1536, cols, 256, 1) };
            let time = |case: &Case, tokens: usize, reps: usize| {
                let mut best = f64::MAX;
                for _ in 0..reps {
                    let start = std::time::Instant::now();
                    std::hint::black_box(case.run(kernels, quant, 0, tokens));
                    best = best.min(start.elapsed().as_secs_f64());
                }
                best
            };
            let gb = case.w.len() as f64 / time(&case, 1, 3) / 1e9;
            let near = small.w.len() as f64 / time(&small, 1, 20) / 1e9;
            let gflop = |t: usize, n| 2.0 * (1536 * cols * t) as f64 / time(&small, t, n) / 1e9;
            let (g4, g8, g256) = (gflop(4, 8), gflop(8, 8), gflop(256, 4));
            println!(
                "{:9} {:5} {gb:6.1} {near:6.1} GB/s from memory, cache  {g4:6.1} {g8:6.1} {g256:6.1} GFLOP/s at 4, 8, 256",
                kernels.name, quant.name
            );
        }
    }
}

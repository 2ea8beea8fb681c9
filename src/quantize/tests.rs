//! Compares encoders with ggml's own blocks (`tests/golden/encoders`) and with our exact dequantisers.

use std::path::PathBuf;

use proptest::prelude::*;

use crate::{ENCODERS, Encoder, FILE_TYPES};

/// The types that are defined by a formula.
const FORMULAS: [&str; 10] = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4"];
/// The types whose blocks are found by a search.
const SEARCHED: [&str; 7] = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"];
/// The number of weights in `weights.bin` that resemble those of a model.
const LIKE_A_MODEL: usize = 12 * 256;

fn golden(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/encoders").join(format!("{name}.bin"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn weights() -> Vec<f32> {
    let bytes = golden("weights");
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn all() -> Vec<Encoder> {
    ENCODERS.iter().map(|row| Encoder::by_id(row.0).expect("a type of QUANTS")).collect()
}

fn encoder(name: &str) -> Encoder {
    all().into_iter().find(|encoder| encoder.quant.name == name).expect("an encoder")
}

fn encoded(encoder: &Encoder, weights: &[f32]) -> Vec<u8> {
    let mut out = vec![0xa5; weights.len() / encoder.quant.block_size * encoder.quant.block_bytes];
    encoder.encode(weights, &mut out);
    out
}

fn squared_error(encoder: &Encoder, weights: &[f32], blocks: &[u8]) -> f64 {
    let mut back = vec![0f32; weights.len()];
    (encoder.quant.dequantize)(blocks, &mut back);
    weights.iter().zip(back).map(|(x, back)| (f64::from(back) - f64::from(*x)).powi(2)).sum()
}

#[test]
fn every_type_is_tested_against_ggml() {
    let mut tested: Vec<&str> = FORMULAS.into_iter().chain(SEARCHED).chain(["F32"]).collect();
    let mut known: Vec<&str> = all().iter().map(|encoder| encoder.quant.name).collect();
    tested.sort_unstable();
    known.sort_unstable();
    assert_eq!(tested, known);
    for kind in FILE_TYPES {
        assert!(Encoder::by_id(kind.base).is_some(), "{}", kind.name);
    }
}

#[test]
fn formulas_give_the_bits_of_ggml() {
    let weights = weights();
    for name in FORMULAS {
        let (encoder, expected) = (encoder(name), golden(name));
        let found = encoded(&encoder, &weights);
        let bytes = encoder.quant.block_bytes;
        let differing: Vec<usize> =
            (0..found.len() / bytes).filter(|i| found[i * bytes..][..bytes] != expected[i * bytes..][..bytes]).collect();
        assert!(differing.is_empty() && found.len() == expected.len(), "{name}: blocks {differing:?} differ");
    }
}

#[test]
fn searches_err_no_more_than_ggml() {
    let weights = weights();
    for name in SEARCHED {
        let (encoder, theirs) = (encoder(name), golden(name));
        let ours = encoded(&encoder, &weights);
        let per_weight = encoder.quant.block_bytes as f64 / encoder.quant.block_size as f64;
        let error = |blocks: &[u8], from: usize, to: usize| {
            let bytes = |weight: usize| (weight as f64 * per_weight) as usize;
            squared_error(&encoder, &weights[from..to], &blocks[bytes(from)..bytes(to)])
        };
        let ratio = error(&ours, 0, LIKE_A_MODEL) / error(&theirs, 0, LIKE_A_MODEL);
        println!("{name}: {ratio:.4} of ggml's squared error");
        assert!(ratio < 1.0, "{name}: {ratio}");
        // Wild blocks differ by many orders of magnitude, so each block is compared alone. Differences below the rounding of a
        // half-precision scale (relative 2^-11) do not count.
        for from in (LIKE_A_MODEL..weights.len()).step_by(256) {
            let square: f64 = weights[from..from + 256].iter().map(|x| f64::from(*x).powi(2)).sum();
            let (ours, theirs) = (error(&ours, from, from + 256), error(&theirs, from, from + 256));
            assert!(ours <= 1.01 * theirs + square * 2f64.powi(-22), "{name}, weights from {from}: {ours:e} and ggml {theirs:e}");
        }
    }
}

#[test]
fn what_a_type_can_express_is_kept_exactly() {
    for encoder in all() {
        let quant = encoder.quant;
        // codes of a block with scale 1
        let weights: Vec<f32> = (0..512).map(|i| f32::from([-1i8, 0, 1][i % 3])).collect();
        let blocks = encoded(&encoder, &weights);
        let error = squared_error(&encoder, &weights, &blocks);
        let is_exact = !quant.name.starts_with("IQ4") && !matches!(quant.name, "Q4_1" | "Q5_1" | "Q4_0" | "Q5_0" | "Q8_0");
        // A group's scale is a product with a half-precision number, which need not be 1.
        let most = if is_exact { 1e-6 * weights.len() as f64 } else { 0.02 * weights.len() as f64 };
        assert!(error <= most, "{}: {error}", quant.name);
        let zeros = vec![0f32; 512];
        assert_eq!(squared_error(&encoder, &zeros, &encoded(&encoder, &zeros)), 0.0, "{}", quant.name);
    }
}

#[test]
fn more_bits_err_less() {
    let weights = &weights()[..LIKE_A_MODEL];
    let error = |name: &str| squared_error(&encoder(name), weights, &encoded(&encoder(name), weights));
    for order in [&["Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K"][..], &["F32", "F16", "BF16", "Q8_0", "Q5_1", "Q4_1"], &["Q5_0", "Q4_0"]]
    {
        let errors: Vec<f64> = order.iter().map(|name| error(name)).collect();
        assert!(errors.is_sorted(), "{order:?}: {errors:?}");
    }
}

/// Finite floats of every magnitude, many of them special.
fn wild() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |x| x.is_finite()),
        2 => -4f32..4f32,
        1 => prop::sample::select(vec![0.0, -0.0, 1.0, -1.0, f32::MIN_POSITIVE, 1e-45, f32::MAX, f32::MIN, 65504.0, 65520.0]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// No finite weights make an encoder panic, and its output depends on the weights alone.
    #[test]
    fn any_finite_weights_are_encoded(weights in prop::collection::vec(wild(), 256)) {
        for encoder in all() {
            let first = encoded(&encoder, &weights);
            let mut second = vec![0u8; first.len()];
            encoder.encode(&weights, &mut second);
            prop_assert_eq!(&first, &second, "{}", encoder.quant.name);
        }
    }

    /// Within the range of half-precision scales, no weight is off by more than its block's range.
    #[test]
    fn no_weight_leaves_its_blocks_range(weights in prop::collection::vec(-1000f32..1000f32, 256), exponent in -20i32..4) {
        let weights: Vec<f32> = weights.iter().map(|x| x * 2f32.powi(exponent)).collect();
        let most = weights.iter().fold(0f32, |most, x| most.max(x.abs()));
        for encoder in all() {
            let mut back = vec![0f32; weights.len()];
            (encoder.quant.dequantize)(&encoded(&encoder, &weights), &mut back);
            for (x, back) in weights.iter().zip(&back) {
                prop_assert!((x - back).abs() <= 1.3 * most + 1e-6, "{}: {} became {}", encoder.quant.name, x, back);
            }
        }
    }
}

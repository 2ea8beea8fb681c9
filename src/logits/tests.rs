//! Tests penalties, filters, draws and log-probabilities against plain reference computations.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::filter::{Candidate, Filters, argmax, exp, largest};
use super::*;

fn neutral() -> SamplingParams {
    SamplingParams { seed: 1, ..SamplingParams::default() }
}

fn greedy() -> SamplingParams {
    SamplingParams { temperature: 0.0, ..neutral() }
}

fn state(params: SamplingParams) -> SamplingState {
    SamplingState::new(Arc::new(params), &[], &[])
}

/// A repeatable logit in [-8, 8) for element `i` of row `row`.
fn noise(row: u32, i: u32) -> f32 {
    (rng::uniform(u64::from(row), i) * 16.0 - 8.0) as f32
}

fn row(vocab: u32) -> Vec<f32> {
    (0..vocab).map(|i| noise(9, i)).collect()
}

#[test]
fn greedy_takes_the_largest_logit_and_the_lowest_id_among_equals() {
    for vocab in [1usize, 15, 16, 17, 255, 256, 257, 5000] {
        for at in [0, vocab / 2, vocab - 1] {
            let mut logits = vec![-1.0f32; vocab];
            logits[at] = 3.0;
            logits[vocab - 1] = 3.0;
            assert_eq!(state(greedy()).sample(&mut logits, None), Some(at as u32), "{vocab} {at}");
        }
    }
    assert_eq!(argmax(&[f32::NEG_INFINITY, -0.0, 0.0]), Some((1, -0.0)));
}

#[test]
fn rows_that_are_not_finite_are_refused_and_not_recorded() {
    let inf = f32::INFINITY;
    for params in [greedy(), neutral(), SamplingParams { top_p: 0.5, ..neutral() }] {
        let mut state = state(params);
        for at in [0, 300, 999] {
            for poison in [f32::NAN, inf] {
                let mut logits = row(1000);
                logits[at] = poison;
                assert_eq!(state.sample(&mut logits, None), None);
            }
        }
        assert_eq!(state.sample(&mut [-inf; 40], None), None);
        assert_eq!(state.sample(&mut [], None), None);
        assert_eq!(state.num_generated(), 0);
        assert_eq!(state.sample(&mut [-inf, 0.5, -inf], None), Some(1));
    }
    let masked = SamplingParams { suppressed: vec![1], min_tokens: 1, ..greedy() };
    assert_eq!(state(masked).sample(&mut [0.0, f32::NAN], None), None, "suppression must not hide a broken row");
}

#[test]
fn the_repetition_penalty_covers_the_prompt_and_the_others_only_the_output() {
    let mut both = SamplingState::new(Arc::new(SamplingParams { repetition_penalty: 2.0, ..greedy() }), &[0, 1], &[2]);
    let mut logits = [4.0, -4.0, 2.0, 1.5];
    both.adjust(&mut logits).unwrap();
    assert_eq!(logits, [2.0, -8.0, 1.0, 1.5]);
    assert_eq!(both.sample(&mut [4.0, -4.0, 2.0, 2.5], None), Some(3));

    let params = SamplingParams { presence_penalty: 0.5, frequency_penalty: 0.25, ..greedy() };
    let output = SamplingState::new(Arc::new(params), &[0, 1, 1], &[2, 2, 3]);
    let mut logits = [1.0; 5];
    output.adjust(&mut logits).unwrap();
    assert_eq!(logits, [1.0, 1.0, 0.0, 0.25, 1.0]);
}

#[test]
fn a_tiny_repetition_penalty_does_not_make_a_row_invalid() {
    // The smallest float, and 0 for values that were rounded to 0 before.
    for repetition_penalty in [f32::from_bits(1), 0.0] {
        for temperature in [0.0, f32::from_bits(1), 2.0] {
            let params = Arc::new(SamplingParams { repetition_penalty, temperature, ..neutral() });
            let mut state = SamplingState::new(params.clone(), &[1], &[]);
            assert_eq!(state.sample(&mut [30.0, 20.0, 0.0], None), Some(1), "{repetition_penalty} {temperature}");
            assert_eq!(SamplingState::new(params, &[1], &[]).sample(&mut [30.0, f32::INFINITY], None), None, "a broken row stays broken");
        }
    }
}

#[test]
fn bias_is_added_after_the_penalties_and_suppression_ends_at_min_tokens() {
    let params = SamplingParams { repetition_penalty: 2.0, logit_bias: vec![(1, 3.0), (99, 1.0)], ..greedy() };
    let mut logits = [1.0, 4.0];
    SamplingState::new(Arc::new(params), &[1], &[]).adjust(&mut logits).unwrap();
    assert_eq!(logits, [1.0, 5.0]);

    let params = SamplingParams { min_tokens: 2, suppressed: vec![0, 70], logit_bias: vec![(0, 100.0)], ..greedy() };
    let mut state = state(params);
    let tokens: Vec<_> = (0..3).map(|_| state.sample(&mut [5.0, 1.0], None).unwrap()).collect();
    assert_eq!(tokens, [1, 1, 0]);
}

#[test]
fn a_resumed_state_continues_token_for_token() {
    let params = Arc::new(SamplingParams {
        repetition_penalty: 1.3,
        presence_penalty: 0.4,
        frequency_penalty: 0.2,
        top_p: 0.9,
        top_k: 40,
        min_tokens: 3,
        suppressed: vec![5],
        ..neutral()
    });
    let prompt = [1, 2, 3];
    let mut whole = SamplingState::new(params.clone(), &prompt, &[]);
    let tokens: Vec<u32> = (0..20).map(|i| whole.sample(&mut (0..500).map(|j| noise(i, j)).collect::<Vec<_>>(), None).unwrap()).collect();
    for cut in [0, 1, 7, 19] {
        let mut resumed = SamplingState::new(params.clone(), &prompt, &tokens[..cut]);
        for (i, &token) in tokens.iter().enumerate().skip(cut) {
            let mut logits: Vec<f32> = (0..500).map(|j| noise(i as u32, j)).collect();
            assert_eq!(resumed.sample(&mut logits, None), Some(token));
        }
    }
}

#[test]
fn exp_is_accurate_to_3e_7_and_zero_below_minus_87() {
    let mut worst = 0f64;
    for i in 0..200_000 {
        let x = -(i as f32) * 86.9 / 200_000.0;
        worst = worst.max((f64::from(exp(x)) / f64::from(x).exp() - 1.0).abs());
    }
    assert!(worst < 3e-7, "relative error {worst}");
    assert_eq!(exp(0.0), 1.0);
    assert_eq!((exp(-88.0), exp(f32::NEG_INFINITY), exp(-1e30)), (0.0, 0.0, 0.0));
}

/// Chi-square statistic of draws with `params` against the probabilities of `logits` at its temperature, over the ids in `allowed`.
fn chi_square(params: SamplingParams, logits: &[f32], allowed: &[usize]) -> f64 {
    const DRAWS: u32 = 40_000;
    let temperature = f64::from(params.temperature);
    let mut counts = BTreeMap::new();
    let mut state = state(params);
    for _ in 0..DRAWS {
        *counts.entry(state.sample(&mut logits.to_vec(), None).unwrap() as usize).or_insert(0u32) += 1;
    }
    assert!(counts.keys().all(|id| allowed.contains(id)), "an excluded token was drawn");
    let weights: Vec<f64> = allowed.iter().map(|&id| (f64::from(logits[id]) / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    let expected = weights.iter().map(|w| w / total * f64::from(DRAWS));
    let cells = allowed.iter().map(|id| f64::from(*counts.get(id).unwrap_or(&0)));
    cells.zip(expected).map(|(seen, due)| (seen - due).powi(2) / due).sum()
}

#[test]
fn draws_follow_the_distribution() {
    // Twelve likely tokens are spread over several blocks. The other tokens are impossible.
    let mut logits = vec![f32::NEG_INFINITY; 1500];
    let allowed: Vec<usize> = (0..12).map(|i| i * 131 + 3).collect();
    for (i, &id) in allowed.iter().enumerate() {
        logits[id] = -(i as f32) * 0.25 + 2.0;
    }
    // 11 degrees of freedom: one seed in 10,000 exceeds 37.4.
    for temperature in [0.7, 1.0, 1.6] {
        let chi2 = chi_square(SamplingParams { temperature, ..neutral() }, &logits, &allowed);
        assert!(chi2 < 37.4, "chi-square {chi2} at temperature {temperature}");
    }
    let chi2 = chi_square(SamplingParams { top_k: 5, ..neutral() }, &logits, &allowed[..5]);
    assert!(chi2 < 23.6, "chi-square {chi2} with top-k");
    // exp(-0.25 i) >= 0.3 for i <= 4
    let chi2 = chi_square(SamplingParams { min_p: 0.3, ..neutral() }, &logits, &allowed[..5]);
    assert!(chi2 < 23.6, "chi-square {chi2} with min-p");
    // 1 - exp(-0.25 i) over 1 - exp(-3): i = 3 gives 0.555
    let chi2 = chi_square(SamplingParams { top_p: 0.55, ..neutral() }, &logits, &allowed[..3]);
    assert!(chi2 < 18.4, "chi-square {chi2} with top-p");
}

#[test]
fn top_p_applies_to_the_tokens_that_top_k_leaves_and_after_the_temperature() {
    // Weights 8, 4, 2, 1, 1. Top-k 2 leaves 8 and 4, and 8 has 2/3 of their mass.
    let logits: Vec<f32> = [8.0f32, 4.0, 2.0, 1.0, 1.0].iter().map(|w| w.ln()).collect();
    let ids = |temperature: f32, top_k: usize, top_p: f32, min_p: f32| {
        let kept = Filters { temperature, top_k, top_p, min_p }.survivors(&mut logits.clone(), logits[0]);
        kept.iter().map(|c| c.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(1.0, 2, 0.6, 0.0), [0]);
    assert_eq!(ids(1.0, 0, 0.6, 0.0), [0, 1]);
    assert_eq!(ids(1.0, 4, 1.0, 0.0), [0, 1, 2, 3], "the lower id among equals");
    // Halving the temperature squares the weights: 64 of 86 is above 0.6.
    assert_eq!(ids(0.5, 0, 0.6, 0.0), [0]);
    assert_eq!(ids(1.0, 0, 1.0, 0.2), [0, 1, 2]);
    assert_eq!(ids(1.0, 0, 0.9, 0.4), [0, 1]);
    assert_eq!(ids(1.0, 1, 1e-6, 1.0), [0]);
}

/// Reference implementation with a full sort: the sorted candidates, and the mass that top-p must reach.
fn naive(logits: &[f32], filters: Filters) -> (Vec<Candidate>, f64) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    if filters.top_k > 0 {
        order.truncate(filters.top_k);
    }
    let weigh = |id: u32| Candidate { weight: exp((logits[id as usize] - max) / filters.temperature), id };
    let mut kept: Vec<Candidate> = order.into_iter().map(weigh).collect();
    kept.retain(|c| c.weight > 0.0 && c.weight >= filters.min_p);
    kept.sort_by(|a, b| b.weight.total_cmp(&a.weight).then(a.id.cmp(&b.id)));
    let total: f64 = kept.iter().map(|c| f64::from(c.weight)).sum();
    (kept, f64::from(filters.top_p) * total)
}

proptest! {
    #[test]
    fn filters_equal_a_full_sort(
        values in prop::collection::vec(prop_oneof![8 => -12f32..12.0, 1 => Just(3.0f32), 1 => Just(f32::NEG_INFINITY)], 1..3000),
        top_k in prop_oneof![Just(0usize), 1usize..100],
        top_p in prop_oneof![Just(1.0f32), 0.01f32..1.0],
        min_p in prop_oneof![Just(0.0f32), 0.0f32..0.5],
        temperature in 0.1f32..3.0,
    ) {
        prop_assume!(values.iter().any(|x| x.is_finite()));
        let filters = Filters { temperature, top_k, top_p, min_p };
        prop_assume!(!filters.is_neutral(values.len()));
        let (sorted, mass) = naive(&values, filters);
        let max = argmax(&values).unwrap().1;
        let mut kept = filters.survivors(&mut values.clone(), max);
        kept.sort_by(|a, b| b.weight.total_cmp(&a.weight).then(a.id.cmp(&b.id)));
        prop_assert_eq!(&kept[..], &sorted[..kept.len()], "survivors are the heaviest");
        if top_p >= 1.0 {
            prop_assert_eq!(kept.len(), sorted.len());
        } else {
            let sum = |n: usize| sorted[..n].iter().map(|c| f64::from(c.weight)).sum::<f64>();
            // The two totals are summed in different orders and may differ by rounding.
            let slack = 1e-5 * mass;
            prop_assert!(sum(kept.len()) >= mass - slack, "too few");
            prop_assert!(kept.len() == 1 || sum(kept.len() - 1) < mass + slack, "too many");
        }
    }
}

/// `cargo test --release sampling_time -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn sampling_time() {
    let base = row(262_144);
    // Zipf's law, as in text: the probability falls with a power of the rank.
    let peaked: Vec<f32> = base.iter().map(|x| -1.3 * ((x + 8.0) * 16384.0 + 1.0).ln()).collect();
    let settings = [
        ("greedy", greedy()),
        ("temperature", neutral()),
        ("top_k 40", SamplingParams { top_k: 40, ..neutral() }),
        ("top_p 0.9", SamplingParams { top_p: 0.9, ..neutral() }),
        ("top_k 40, top_p 0.9, min_p 0.05", SamplingParams { top_k: 40, top_p: 0.9, min_p: 0.05, ..neutral() }),
    ];
    for (name, params) in settings {
        for (shape, logits) in [("flat", &base), ("peaked", &peaked)] {
            let mut state = state(params.clone());
            let mut work = logits.clone();
            let mut best = f64::MAX;
            for _ in 0..30 {
                work.copy_from_slice(logits);
                let start = std::time::Instant::now();
                assert!(state.sample(&mut work, None).is_some());
                best = best.min(start.elapsed().as_secs_f64());
            }
            println!("{name}, {shape}: {:.0} us", best * 1e6);
        }
    }
}

#[test]
fn signed_zeros_are_equal_and_the_lower_id_wins() {
    // A late +0 after a bound of -0, and a late -0 after a bound of +0.
    for (early, late) in [(-0.0f32, 0.0f32), (0.0, -0.0)] {
        for vocab in [7usize, 2000] {
            let mut logits = vec![-1.0f32; vocab];
            logits[vocab / 3] = early;
            (vocab / 3 + 1..vocab).for_each(|id| logits[id] = late);
            for k in [1u32, 2, 3] {
                let first = vocab as u32 / 3;
                assert_eq!(largest(&logits, k as usize), (first..first + k).collect::<Vec<_>>(), "{vocab} {k}");
                let kept = Filters { temperature: 1.0, top_k: k as usize, top_p: 1.0, min_p: 0.0 }.survivors(&mut logits.clone(), early);
                assert_eq!(kept.iter().map(|c| c.id).collect::<Vec<_>>(), (first..first + k).collect::<Vec<_>>(), "{vocab} {k}");
            }
            assert_eq!(state(SamplingParams { top_k: 1, ..neutral() }).sample(&mut logits.clone(), None), Some(vocab as u32 / 3));
            assert_eq!(state(greedy()).sample(&mut logits, None), Some(vocab as u32 / 3));
        }
    }
}

#[test]
fn no_bias_brings_back_an_id_that_the_mask_forbids() {
    for vocab in [1u32, 31, 32, 33, 320, 1000] {
        let mut mask = vec![0u32; mask_words(vocab as usize)];
        let allowed = [0, vocab / 2, vocab - 1];
        allowed.iter().for_each(|&id| mask[id as usize / 32] |= 1 << (id % 32));
        let bias = (0..vocab).filter(|id| !allowed.contains(id)).map(|id| (id, 100.0)).collect();
        for params in [greedy(), neutral(), SamplingParams { top_k: 5, logit_bias: bias, ..neutral() }] {
            let mut state = state(params);
            for _ in 0..20 {
                assert!(allowed.contains(&state.sample(&mut row(vocab), Some(&mask)).unwrap()), "{vocab}");
            }
        }
        assert_eq!(state(greedy()).sample(&mut row(vocab), Some(&vec![0; mask.len()])), None, "nothing is allowed");
        let everything = vec![u32::MAX; mask.len()];
        assert_eq!(state(neutral()).sample(&mut row(vocab), Some(&everything)), state(neutral()).sample(&mut row(vocab), None));
        if vocab > 3 {
            let mut broken = row(vocab);
            broken[1] = f32::NAN;
            assert_eq!(state(greedy()).sample(&mut broken, Some(&mask)), None, "a mask must not hide a broken row");
            broken[1] = f32::INFINITY;
            assert!(allowed.contains(&state(greedy()).sample(&mut broken.clone(), Some(&mask)).unwrap()));
            assert_eq!(Logprobs::new(&broken, 0, 3), None, "a row with +inf is no distribution");
        }
    }
}

proptest! {
    #[test]
    fn logprobs_are_a_log_softmax(seed in 0u32..1000, vocab in 1u32..3000, n in 0usize..=MAX_LOGPROBS, coarse in any::<bool>()) {
        // Coarse logits have ties, signed zeros and impossible ids.
        let coarsen = |x: f32| if x < -6.0 { f32::NEG_INFINITY } else { (x / 2.0).round() };
        let mut logits: Vec<f32> = (0..vocab).map(|i| noise(seed, i)).map(|x| if coarse { coarsen(x) } else { x }).collect();
        logits[seed as usize % vocab as usize] = 7.0;
        let norm = logits.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
        let close = |got: f32, id: u32| {
            let due = f64::from(logits[id as usize]) - norm;
            f64::from(got) == due || (f64::from(got) - due).abs() < 2e-6 + 1e-6 * due.abs()
        };
        let chosen = seed % vocab;
        let got = Logprobs::new(&logits, chosen, n).unwrap();
        prop_assert!(close(got.chosen, chosen));
        let mut order: Vec<u32> = (0..vocab).collect();
        order.sort_by(|&a, &b| logits[b as usize].partial_cmp(&logits[a as usize]).unwrap().then(a.cmp(&b)));
        order.truncate(n);
        prop_assert_eq!(got.top.iter().map(|&(id, _)| id).collect::<Vec<_>>(), order);
        prop_assert!(got.top.iter().all(|&(id, logprob)| close(logprob, id)));
    }
}

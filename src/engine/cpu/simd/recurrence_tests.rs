//! Compares recurrences with a plain computation in float64, on every instruction set, whole and row by row.

use super::attend::SequenceRows;
use super::dispatch::available;
use super::ops::Gate;
use super::pool::ThreadPool;
use super::recurrence::{Decay, Delta, Heads, KeyHeads, Scan, View};
use super::rows::Rows;
use super::{Kernels, LANES};
use model::testing::Random;

const HEADS: usize = 6;
const GROUPS: usize = 3;
const KEYS: usize = 5;
const TOKENS: usize = 9;

fn rows(tokens: std::ops::Range<usize>, width: usize, value: impl Fn(usize, usize) -> f32) -> Rows {
    let mut rows = Rows::new(width);
    rows.resize(tokens.len());
    for (i, token) in tokens.enumerate() {
        rows.row_mut(i).iter_mut().enumerate().for_each(|(j, x)| *x = value(token, j));
    }
    rows
}

/// Uniform inputs in [-1, 1) that do not depend on how the rows are cut.
fn input(seed: u64) -> impl Fn(usize, usize) -> f32 {
    move |row, column| Random(seed << 40 | (row as u64) << 20 | column as u64).centred()
}

/// Walks the tokens in pieces of at most `step` rows by `run(tokens, heads, out)`. Returns the outputs, [tokens][HEADS * values].
fn walk(values: usize, step: usize, run: impl Fn(std::ops::Range<usize>, &mut Heads, &mut Rows)) -> Vec<f32> {
    let (mut state, mut all) = (vec![0f32; HEADS * KEYS * values], Vec::new());
    for start in (0..TOKENS).step_by(step) {
        let tokens = start..TOKENS.min(start + step);
        let sequences = [SequenceRows { first_row: 0, num_rows: tokens.len(), first_position: start, end: start + tokens.len() }];
        let mut out = rows(tokens.clone(), HEADS * values, |_, _| f32::NAN);
        let states = &mut [&mut state[..]];
        run(tokens.clone(), &mut Heads { count: HEADS, keys: KEYS, values, sequences: &sequences, states }, &mut out);
        (0..tokens.len()).for_each(|i| all.extend_from_slice(out.row(i)));
    }
    all
}

fn check(values: usize, kernels: &Kernels, got: impl Fn(usize) -> Vec<f32>, expected: &[f64]) {
    let whole = got(TOKENS);
    for (i, (got, expected)) in whole.iter().zip(expected).enumerate() {
        assert!((f64::from(*got) - expected).abs() < 1e-5, "{} {values} values, {i}: {got} is not {expected}", kernels.name);
    }
    let bits = |all: Vec<f32>| all.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(got(1)), bits(whole.clone()), "{}", kernels.name);
    assert_eq!(bits(got(4)), bits(whole), "{}", kernels.name);
}

/// Values per head: whole blocks, whole vectors, and incomplete ones.
const VALUES: [usize; 4] = [3, LANES, 4 * LANES + 7, 5 * LANES];

#[test]
fn scans_are_exact_enough_and_do_not_depend_on_how_rows_are_cut() {
    for values in VALUES {
        let width = HEADS * values;
        let [x, b, c, steps, factors] = [1, 2, 3, 4, 5].map(input);
        let a: Vec<f32> = (0..KEYS * width).map(|i| -input(6)(0, i).abs()).collect();
        let step = |token: usize, i: usize| steps(token, i).abs();
        let factor = |token: usize, i: usize| factors(token, i).abs();
        for by_channel in [false, true] {
            let mut state = vec![0f64; KEYS * width];
            let mut expected = Vec::new();
            for token in 0..TOKENS {
                for i in 0..width {
                    let head = i / values;
                    let (group, mut sum) = (head / (HEADS / GROUPS), 0.0);
                    let dt = f64::from(step(token, if by_channel { i } else { head }));
                    for key in 0..KEYS {
                        let decay = if by_channel { (dt * f64::from(a[key * width + i])).exp() } else { f64::from(factor(token, head)) };
                        let s = &mut state[key * width + i];
                        *s = *s * decay + f64::from(b(token, group * KEYS + key)) * dt * f64::from(x(token, i));
                        sum += *s * f64::from(c(token, group * KEYS + key));
                    }
                    expected.push(sum);
                }
            }
            for kernels in available() {
                let got = |cut: usize| {
                    walk(values, cut, |tokens, heads, out| {
                        let [x, b, c] = [
                            rows(tokens.clone(), width, &x),
                            rows(tokens.clone(), GROUPS * KEYS, &b),
                            rows(tokens.clone(), GROUPS * KEYS, &c),
                        ];
                        let steps = rows(tokens.clone(), if by_channel { width } else { HEADS }, step);
                        let factors = rows(tokens, HEADS, factor);
                        let decay = if by_channel {
                            Decay::PerChannel { steps: View::of(&steps, 0, values), a: &a }
                        } else {
                            Decay::PerHead { factors: View::of(&factors, 0, 1), steps: Some(View::of(&steps, 0, 1)) }
                        };
                        let [b, c] = [View::of(&b, 0, KEYS), View::of(&c, 0, KEYS)];
                        let scan = Scan { x: View::of(&x, 0, values), b, c, group: HEADS / GROUPS, decay };
                        kernels.scan(&mut ThreadPool::new(2).unwrap(), heads, &scan, out);
                    })
                };
                check(values, kernels, got, &expected);
            }
        }
    }
}

#[test]
fn the_delta_rule_is_exact_enough_and_does_not_depend_on_how_rows_are_cut() {
    for values in VALUES {
        let width = HEADS * values;
        let [q, k, v, betas, decays] = [1, 2, 3, 4, 5].map(input);
        let beta = |token: usize, i: usize| betas(token, i).abs();
        let decay = |token: usize, i: usize| decays(token, i).abs();
        for (key_heads, by_key) in [(KeyHeads::Repeated, false), (KeyHeads::Tiled, false), (KeyHeads::Repeated, true)] {
            let mut state = vec![0f64; KEYS * width];
            let mut expected = Vec::new();
            for token in 0..TOKENS {
                for i in 0..width {
                    let head = i / values;
                    let key_head = if key_heads == KeyHeads::Tiled { head % GROUPS } else { head / (HEADS / GROUPS) };
                    let key_at = |f: &dyn Fn(usize, usize) -> f32, key: usize| f64::from(f(token, key_head * KEYS + key));
                    for key in 0..KEYS {
                        state[key * width + i] *= f64::from(decay(token, if by_key { head * KEYS + key } else { head }));
                    }
                    let known: f64 = (0..KEYS).map(|key| state[key * width + i] * key_at(&k, key)).sum();
                    let new = (f64::from(v(token, i)) - known) * f64::from(beta(token, head));
                    (0..KEYS).for_each(|key| state[key * width + i] += key_at(&k, key) * new);
                    expected.push((0..KEYS).map(|key| state[key * width + i] * key_at(&q, key)).sum());
                }
            }
            for kernels in available() {
                let got = |cut: usize| {
                    walk(values, cut, |tokens, heads, out| {
                        let [q, k] = [rows(tokens.clone(), GROUPS * KEYS, &q), rows(tokens.clone(), GROUPS * KEYS, &k)];
                        let (v, beta) = (rows(tokens.clone(), width, &v), rows(tokens.clone(), HEADS, beta));
                        let decay = rows(tokens, HEADS * KEYS, decay);
                        let delta = Delta {
                            q: View::of(&q, 0, KEYS),
                            k: View::of(&k, 0, KEYS),
                            v: View::of(&v, 0, values),
                            num_key_heads: GROUPS,
                            key_heads,
                            decay: View::of(&decay, 0, if by_key { KEYS } else { 1 }),
                            by_key,
                            beta: View::of(&beta, 0, 1),
                        };
                        kernels.delta(&mut ThreadPool::new(2).unwrap(), heads, &delta, out);
                    })
                };
                check(values, kernels, got, &expected);
            }
        }
    }
}

#[test]
fn softplus_gates_and_exponentials_have_their_known_values() {
    let inputs: Vec<f32> = (-60..=60).map(|i| i as f32 / 2.0).collect();
    for kernels in available() {
        let close = |got: f32, expected: f64| (f64::from(got) - expected).abs() <= 2e-6 * expected.abs() + 1e-30;
        let (mut softplus, mut silu, mut sigmoid, mut exp) =
            (inputs.clone(), vec![2f32; inputs.len()], vec![2f32; inputs.len()], inputs.clone());
        kernels.softplus(&mut softplus, &vec![0.5; inputs.len()]);
        kernels.gate(&mut silu, &inputs, Gate::Silu);
        kernels.gate(&mut sigmoid, &inputs, Gate::Sigmoid);
        kernels.exp(&mut exp, -0.5);
        for (i, &x) in inputs.iter().map(|x| f64::from(*x)).collect::<Vec<_>>().iter().enumerate() {
            let of_sigmoid = 1.0 / (1.0 + (-x).exp());
            assert!(close(softplus[i], (x + 0.5).exp().ln_1p()), "{}: softplus({x} + 0.5) is {}", kernels.name, softplus[i]);
            assert!(close(silu[i], 2.0 * x * of_sigmoid), "{}: 2 silu({x}) is {}", kernels.name, silu[i]);
            assert!(close(sigmoid[i], 2.0 * of_sigmoid), "{}: 2 sigmoid({x}) is {}", kernels.name, sigmoid[i]);
            assert!(close(exp[i], (-0.5 * x).exp()), "{}: exp(−{x} / 2) is {}", kernels.name, exp[i]);
        }
        let mut bad = [f32::NAN; 3];
        kernels.softplus(&mut bad, &[0.0; 3]);
        assert!(bad.iter().all(|x| x.is_nan()), "{}: a NaN stays visible", kernels.name);
    }
}

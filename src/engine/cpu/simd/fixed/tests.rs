//! Tests inputs that do not suit fixed point: values that are not finite stay so, and no magnitude overflows or vanishes.

use std::cell::RefCell;

use super::super::dispatch::available;
use super::super::tests::{Case, is_fixed};
use model::{QUANTS, Quant};

const COLS: usize = 512;
const ROWS: usize = 5;

/// Multiplies one row of random inputs, scaled by `scale` and edited by `change`, for every type that is multiplied as integers. `check`
/// gets the type, the inputs and the products.
fn each(scale: f32, change: impl Fn(&mut [f32]), check: impl Fn(&Quant, &[f32], &[f32])) {
    for kernels in available() {
        for quant in QUANTS.iter().filter(|quant| is_fixed(kernels, quant)) {
            let mut case = Case::new(quant, ROWS, COLS, 1, 3);
            let plain = case.run(kernels, quant, 0, 1);
            case.input(0).iter_mut().for_each(|x| *x *= scale);
            change(case.input(0));
            check(quant, &plain, &case.run(kernels, quant, 0, 1));
        }
    }
}

#[test]
fn an_input_that_is_not_finite_makes_no_finite_product() {
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 77, 255, 256, COLS - 1] {
            each(1.0, |x| x[at] = bad, |quant, _, got| assert!(got.iter().all(|y| !y.is_finite()), "{}: {got:?}", quant.name));
        }
    }
}

#[test]
fn an_outlier_hides_no_bits_of_its_neighbours() {
    for outlier in [100.0, 1e3, 1e4] {
        let products = RefCell::new(Vec::new());
        // the outlier alone, then with its neighbours, then the neighbours alone
        for (x, others) in [(outlier, 0.0), (outlier, 1.0), (0.0, 1.0)] {
            let change = |inputs: &mut [f32]| {
                inputs.iter_mut().enumerate().for_each(|(i, x)| *x = others * (i as f32).sin());
                inputs[200] = x;
            };
            each(1.0, change, |quant, _, got| products.borrow_mut().push((quant.name, got.to_vec())));
        }
        let products = products.into_inner();
        let types = products.len() / 3;
        for i in 0..types {
            let [alone, both, others] = [0, 1, 2].map(|n| &products[n * types + i].1);
            let size = |all: &[f32]| all.iter().fold(0f32, |most, y| most.max(y.abs()));
            // 2^-23 of each in float32; without fractions, the outlier's neighbours would be off by 2^-16 of the outlier
            let bound = 2e-6 * size(alone) + 2e-5 * size(others);
            for r in 0..ROWS {
                let off = (both[r] - alone[r] - others[r]).abs();
                assert!(off <= bound, "{} beside {outlier}: {off} is above {bound}", products[i].0);
            }
        }
    }
}

#[test]
fn products_with_zeros_are_zero() {
    each(0.0, |_| {}, |quant, _, got| assert!(got.iter().all(|y| *y == 0.0), "{}: {got:?}", quant.name));
}

#[test]
fn a_power_of_two_only_moves_the_exponent() {
    for power in [-90, -30, 30, 60] {
        let scale = 2f32.powi(power);
        each(
            scale,
            |_| {},
            |quant, plain, got| {
                let same = plain.iter().zip(got).all(|(a, b)| (a * scale).to_bits() == b.to_bits());
                assert!(same, "{} · 2^{power}: {plain:?} {got:?}", quant.name);
            },
        );
    }
}

#[test]
fn tiny_inputs_give_tiny_products() {
    for power in [-110, -126, -140] {
        let scale = 2f32.powi(power);
        each(
            scale,
            |_| {},
            |quant, plain, got| {
                let largest = plain.iter().fold(0f32, |largest, y| largest.max(y.abs()));
                let close = plain.iter().zip(got).all(|(a, b)| (a * scale - b).abs() <= largest * 2f32.powi(-114));
                assert!(close, "{} · 2^{power}: {plain:?} {got:?}", quant.name);
            },
        );
    }
}

#[test]
fn the_largest_floats_stay_finite_where_their_products_do() {
    let huge = |x: &mut [f32]| {
        x.fill(0.0);
        x[300] = f32::MAX;
    };
    each(1.0, huge, |quant, _, got| {
        // a weight above 1 takes the product out of range
        assert!(got.iter().all(|y| !y.is_nan()), "{}: {got:?}", quant.name);
    });
}

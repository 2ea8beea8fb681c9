//! [`Step`]: the value of a `multipleOf`.

use serde_json::Number;

use super::decimal::{Bound, Decimal, cmp_digits, predecessor, successor};

/// `coefficient` · 10^-`places`, in its shortest form.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    pub coefficient: u32,
    pub places: u32,
}

impl Step {
    /// The step of whole numbers.
    pub const ONE: Self = Self { coefficient: 1, places: 0 };

    /// `None` if the number is 0 or has too many digits.
    pub fn of(number: &Number) -> Option<Self> {
        let Decimal { negative, whole, fraction } = Decimal::of(number);
        let coefficient = format!("{whole}{fraction}").parse().ok().filter(|_| !negative)?;
        Self::new(coefficient, fraction.len() as u32)
    }

    /// `None` if the step is too long for llguidance's remainder of 32 bits. To advance by a digit, the remainder must hold ten times the
    /// coefficient and a digit before the point.
    fn new(coefficient: u64, places: u32) -> Option<Self> {
        let (mut coefficient, mut places) = (coefficient, places);
        while places > 0 && coefficient.is_multiple_of(10) {
            (coefficient, places) = (coefficient / 10, places - 1);
        }
        let digit = 10u64.checked_pow(places)?.checked_mul(9)?;
        let most = coefficient.checked_mul(10)?.checked_add(digit)?;
        (coefficient > 0 && most <= u64::from(u32::MAX)).then_some(Self { coefficient: coefficient as u32, places })
    }

    /// The least common multiple of two steps. `None` if it has too many digits.
    pub fn common(self, other: Self) -> Option<Self> {
        let places = self.places.max(other.places);
        // Both fit: a coefficient has 32 bits, and there are at most 9 places.
        let of = |step: Self| u64::from(step.coefficient) * 10u64.pow(places - step.places);
        let (a, b) = (of(self), of(other));
        let (mut divisor, mut rest) = (a, b);
        while rest > 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        Self::new((a / divisor).checked_mul(b)?, places)
    }

    pub fn divides(self, number: &Decimal) -> bool {
        number.fraction.len() <= self.places as usize && self.rest(&scaled(number, self.places).0) == 0
    }

    /// Whether a range that is not empty holds a multiple of the step.
    pub fn is_within(self, least: &Option<Bound>, most: &Option<Bound>) -> bool {
        let zero = Decimal::zero();
        let is_above = |bound: &Bound| bound.at > zero || bound.at == zero && bound.open;
        let (low, high) = match (least, most) {
            (Some(least), most) if is_above(least) => (least.clone(), most.clone()),
            (least, Some(most)) if is_above(&most.negated()) => (most.negated(), least.as_ref().map(Bound::negated)),
            // 0 is a multiple of everything.
            _ => return true,
        };
        let Some(high) = high else { return true };
        let (digits, exact) = scaled(&low.at, self.places);
        let from = if low.open || !exact { successor(&digits) } else { digits };
        let (digits, exact) = scaled(&high.at, self.places);
        let Some(to) = (if high.open && exact { predecessor(&digits) } else { Some(digits) }) else { return false };
        let missing = match self.rest(&from) {
            0 => 0,
            rest => u64::from(self.coefficient) - rest,
        };
        cmp_digits(&sum(&from, missing), &to).is_le()
    }

    /// The remainder of a whole number, given by its digits.
    fn rest(self, digits: &str) -> u64 {
        digits.bytes().fold(0, |rest, digit| (rest * 10 + u64::from(digit - b'0')) % u64::from(self.coefficient))
    }
}

/// The absolute value of a number times 10^`places` without its fraction, and whether that fraction is zero.
fn scaled(number: &Decimal, places: u32) -> (String, bool) {
    let places = places as usize;
    let fraction: String = number.fraction.chars().chain(std::iter::repeat_n('0', places)).take(places).collect();
    (Decimal::new(false, &format!("{}{fraction}", number.whole), "").whole, number.fraction.len() <= places)
}

/// The sum of two whole numbers, one of which is given by its digits. The digits have no leading zeros.
fn sum(digits: &str, number: u64) -> String {
    let (mut sum, mut carry) = (Vec::new(), number);
    for digit in digits.bytes().rev() {
        carry += u64::from(digit - b'0');
        sum.push(b'0' + (carry % 10) as u8);
        carry /= 10;
    }
    let digits: String = sum.into_iter().rev().map(char::from).collect();
    if carry > 0 { format!("{carry}{digits}") } else { digits }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bound(number: i64, open: bool) -> Bound {
        Bound { at: Decimal::of(&(number as f64 / 100.0).to_string().parse().unwrap()), open }
    }

    proptest! {
        #[test]
        fn a_range_has_a_multiple_of_a_step_exactly_if_one_is_found(
            bounds in [-400..400i64, -400..400i64],
            open in any::<[bool; 2]>(),
            step in 1..300u64,
            places in 0..3u32,
        ) {
            let (low, high) = (bounds[0].min(bounds[1]), bounds[0].max(bounds[1]));
            let (least, most) = (Some(bound(low, open[0])), Some(bound(high, open[1])));
            prop_assume!(low < high || open == [false, false]);
            // In hundredths.
            let size = (step * 10u64.pow(2 - places)).cast_signed();
            let due = (low..=high).any(|at| at % size == 0 && !(at == low && open[0]) && !(at == high && open[1]));
            prop_assert_eq!(Step::new(step, places).unwrap().is_within(&least, &most), due);
        }

        #[test]
        fn sums_and_common_multiples_are_exact(a in any::<u64>(), b in any::<u64>(), steps in [1..20_000u64, 1..20_000u64]) {
            prop_assert_eq!(sum(&a.to_string(), b >> 1), (u128::from(a) + u128::from(b >> 1)).to_string());
            let due = (1..=steps[1]).map(|by| by * steps[0]).find(|multiple| multiple.is_multiple_of(steps[1])).unwrap();
            let [one, other] = steps.map(|step| Step::new(step, 0).unwrap());
            prop_assert_eq!(one.common(other).map(|step| u64::from(step.coefficient)), (due <= 429_496_728).then_some(due));
        }
    }

    #[test]
    fn steps_that_a_remainder_of_32_bits_cannot_follow_are_none() {
        let of = |text: &str| Step::of(&serde_json::from_str(text).unwrap());
        assert_eq!(of("429496728"), Some(Step { coefficient: 429_496_728, places: 0 }));
        assert_eq!(of("0.25").unwrap().common(of("1.5").unwrap()), of("1.5"));
        assert_eq!(of("0.5").unwrap().common(Step::ONE), Some(Step::ONE));
        for text in ["429496729", "4294967295", "0", "-1", "1e-9", "1e30"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}

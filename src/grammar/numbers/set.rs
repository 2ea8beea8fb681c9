//! [`Numbers`]: a set of numbers that a schema permits, as a union of values and ranges.

use serde_json::Number;

use super::decimal::{Bound, Decimal, cmp_digits};
use super::step::Step;

/// The most values and ranges of a set.
const MAX_PIECES: usize = 100_000;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Numbers(pub Vec<Piece>);

#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    Value(Decimal),
    Range(Range),
}

/// The numbers between two bounds that are multiples of all steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Range {
    /// Whether the range holds only whole numbers.
    pub whole: bool,
    pub least: Option<Bound>,
    pub most: Option<Bound>,
    pub steps: Vec<Step>,
}

/// The tighter of two bounds. `order` is how the tighter bound compares to the other one.
fn tighter(a: Option<Bound>, b: Option<&Bound>, order: std::cmp::Ordering) -> Option<Bound> {
    match (a, b) {
        (Some(a), Some(b)) => {
            let compared = b.at.cmp(&a.at);
            Some(if compared == order || compared.is_eq() && b.open { b.clone() } else { a })
        }
        (a, b) => a.or_else(|| b.cloned()),
    }
}

impl Range {
    fn contains(&self, number: &Decimal) -> bool {
        let above = self.least.as_ref().is_none_or(|least| if least.open { *number > least.at } else { *number >= least.at });
        let below = self.most.as_ref().is_none_or(|most| if most.open { *number < most.at } else { *number <= most.at });
        above && below && (!self.whole || number.is_whole()) && self.steps.iter().all(|step| step.divides(number))
    }

    pub fn intersect(&self, other: &Self) -> Self {
        let mut steps = self.steps.clone();
        steps.extend(other.steps.iter().filter(|step| !self.steps.contains(step)));
        Self {
            whole: self.whole || other.whole,
            least: tighter(self.least.clone(), other.least.as_ref(), std::cmp::Ordering::Greater),
            most: tighter(self.most.clone(), other.most.as_ref(), std::cmp::Ordering::Less),
            steps,
        }
    }

    /// Whether the bounds leave no number. The steps may exclude every number that the bounds leave.
    pub fn is_empty(&self) -> bool {
        let (Some(least), Some(most)) = (&self.least, &self.most) else { return false };
        match least.at.cmp(&most.at) {
            std::cmp::Ordering::Greater => true,
            std::cmp::Ordering::Equal => least.open || most.open || self.whole && !least.at.is_whole(),
            std::cmp::Ordering::Less if self.whole && least.at.negative == most.at.negative => {
                let (low, high) = if least.at.negative { (most.negated(), least.negated()) } else { (least.clone(), most.clone()) };
                high.whole_below().is_none_or(|high| cmp_digits(&low.whole_above(), &high).is_gt())
            }
            // 0 is between the bounds, unless the upper bound is 0 itself.
            std::cmp::Ordering::Less if self.whole && most.at.is_zero() && most.open => {
                least.negated().whole_below().is_none_or(|digits| digits == "0")
            }
            std::cmp::Ordering::Less => false,
        }
    }
}

impl Numbers {
    pub fn of_range(range: Range) -> Self {
        Self(vec![Piece::Range(range)])
    }

    pub fn of_values<'a>(numbers: impl Iterator<Item = &'a Number>) -> Self {
        Self(numbers.map(|number| Piece::Value(Decimal::of(number))).collect())
    }

    /// # Errors
    /// The set has too many pieces.
    pub fn union(mut self, other: Self) -> Result<Self, String> {
        self.0.extend(other.0);
        self.checked()
    }

    /// # Errors
    /// The set has too many pieces.
    pub fn intersect(self, other: &Self) -> Result<Self, String> {
        if self.0.len().saturating_mul(other.0.len()) > 10 * MAX_PIECES {
            return Err(too_many());
        }
        let both = |a: &Piece, b: &Piece| match (a, b) {
            (Piece::Value(a), Piece::Value(b)) => (a == b).then(|| Piece::Value(a.clone())),
            (Piece::Value(value), Piece::Range(range)) | (Piece::Range(range), Piece::Value(value)) => {
                range.contains(value).then(|| Piece::Value(value.clone()))
            }
            (Piece::Range(a), Piece::Range(b)) => Some(a.intersect(b)).filter(|range| !range.is_empty()).map(Piece::Range),
        };
        Self(self.0.iter().flat_map(|a| other.0.iter().filter_map(move |b| both(a, b))).collect()).checked()
    }

    fn checked(self) -> Result<Self, String> {
        if self.0.len() > MAX_PIECES { Err(too_many()) } else { Ok(self) }
    }
}

fn too_many() -> String {
    format!("the numbers that it permits are more than {MAX_PIECES} values and ranges")
}

//! Converts a set of numbers to a regular expression over their texts, exact for numbers of any size.
//!
//! A text has no exponent, no leading zeros and no `-0`. Numbers are compared digit by digit: a number with as many digits as the bound
//! exceeds the bound if its digit is larger at the first place where they differ.

use llguidance::derivre::RegexAst;

use super::decimal::{Bound, Decimal, cmp_digits};
use super::set::{Numbers, Piece, Range};
use super::step::Step;

/// The largest steps that can be followed within a range, for whole numbers and for others. Each state of a bound is multiplied by the
/// remainders of the step: beyond 9,000 and 2,500, answers ended in errors when a mask was computed.
const MAX_WHOLE_STEP: u32 = 4096;
const MAX_STEP: u32 = 1000;
/// Any number, with an exponent or without.
const ANY: &str = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?";
const FRACTION: &str = r"(\.[0-9]+)?";

/// The texts of a set. `None` if the set is empty.
///
/// # Errors
/// The steps of a range have no common multiple that an expression can follow, or one that is too large beside its bounds.
pub fn texts(numbers: &Numbers) -> Result<Option<RegexAst>, String> {
    let mut all = Vec::new();
    for piece in &numbers.0 {
        match piece {
            Piece::Value(value) => all.push(literal(&value.to_string())),
            Piece::Range(range) => all.extend(in_range(range)?),
        }
    }
    Ok(match all.len() {
        0 => None,
        1 => all.pop(),
        _ => Some(RegexAst::Or(all)),
    })
}

fn in_range(range: &Range) -> Result<Option<RegexAst>, String> {
    if range.is_empty() {
        return Ok(None);
    }
    let signed = match (&range.least, &range.most) {
        (None, None) if !range.whole => regex(ANY),
        _ => {
            let negative = negative(range).map(|texts| RegexAst::Concat(vec![literal("-"), texts]));
            let parts: Vec<RegexAst> = positive(range).into_iter().chain(negative).collect();
            RegexAst::Or(parts)
        }
    };
    if range.steps.is_empty() {
        return Ok(Some(signed));
    }
    let first = if range.whole { Step::ONE } else { range.steps[0] };
    let step = range.steps.iter().try_fold(first, |all, step| all.common(*step));
    let step = step.ok_or("the least common multiple of its \"multipleOf\" has more than 8 digits")?;
    let is_bounded = range.least.is_some() || range.most.is_some();
    let most = if range.whole { MAX_WHOLE_STEP } else { MAX_STEP };
    if is_bounded && step.coefficient > most {
        return Err(format!("its \"multipleOf\" has the digits {}, and in a range they may be at most {most}", step.coefficient));
    }
    let multiple = RegexAst::Concat(vec![regex("-?"), RegexAst::MultipleOf(step.coefficient, step.places)]);
    Ok(step.is_within(&range.least, &range.most).then(|| RegexAst::And(vec![signed, multiple])))
}

/// The texts of a range's numbers of 0 or more.
fn positive(range: &Range) -> Option<RegexAst> {
    let most = range.most.as_ref();
    if most.is_some_and(|most| most.at.negative || most.at.is_zero() && most.open) {
        return None;
    }
    let least = range.least.as_ref().filter(|least| !least.at.negative && (least.open || !least.at.is_zero()));
    magnitudes(range.whole, least, most)
}

/// The texts of a range's negative numbers, without their sign.
fn negative(range: &Range) -> Option<RegexAst> {
    let most = range.least.as_ref().map(Bound::negated);
    if most.as_ref().is_some_and(|most| most.at.negative || most.at.is_zero()) {
        return None;
    }
    let zero = Bound { at: Decimal::zero(), open: true };
    let least = range.most.as_ref().filter(|bound| bound.at.negative).map_or(zero, Bound::negated);
    magnitudes(range.whole, Some(&least), most.as_ref())
}

/// The texts of the numbers between two bounds of 0 or more.
fn magnitudes(whole: bool, least: Option<&Bound>, most: Option<&Bound>) -> Option<RegexAst> {
    let both = match whole {
        true => {
            let (least, most) = (least.map(Bound::whole_above), most.map(Bound::whole_below));
            if let (Some(least), Some(most)) = (&least, &most)
                && most.as_ref().is_none_or(|most| cmp_digits(least, most).is_gt())
            {
                return None;
            }
            let (least, most) = (least.map(|least| above(&least, true)), most.flatten().map(|most| below(&most, true)));
            [least, most]
        }
        false => [least.map(decimals_above), most.map(decimals_below)],
    };
    let mut bounds: Vec<RegexAst> = both.into_iter().flatten().map(RegexAst::Or).collect();
    Some(match bounds.len() {
        0 => RegexAst::Concat(vec![regex("(0|[1-9][0-9]*)"), regex(if whole { "" } else { FRACTION })]),
        1 => bounds.remove(0),
        _ => RegexAst::And(bounds),
    })
}

/// Whole numbers above `digits`, or not below it if `inclusive`.
fn above(digits: &str, inclusive: bool) -> Vec<RegexAst> {
    let mut all = vec![regex(&format!("[1-9][0-9]{{{},}}", digits.len()))];
    for (at, digit) in digits.bytes().enumerate().filter(|(_, digit)| *digit < b'9') {
        all.push(differing(&digits[..at], (digit + 1, b'9'), &times(digits.len() - at - 1)));
    }
    all.extend(inclusive.then(|| literal(digits)));
    all
}

/// Whole numbers below `digits`, or not above it if `inclusive`.
fn below(digits: &str, inclusive: bool) -> Vec<RegexAst> {
    let mut all: Vec<RegexAst> = match digits.len() {
        1 => Vec::new(),
        length => vec![regex(&format!("0|[1-9][0-9]{{0,{}}}", length - 2))],
    };
    for (at, digit) in digits.bytes().enumerate() {
        let smallest = if at == 0 && digits.len() > 1 { b'1' } else { b'0' };
        if digit > smallest {
            all.push(differing(&digits[..at], (smallest, digit - 1), &times(digits.len() - at - 1)));
        }
    }
    all.extend(inclusive.then(|| literal(digits)));
    all
}

fn decimals_above(bound: &Bound) -> Vec<RegexAst> {
    let Decimal { whole, fraction, .. } = &bound.at;
    let larger = RegexAst::Concat(vec![RegexAst::Or(above(whole, false)), regex(FRACTION)]);
    let start = format!("{whole}.");
    let mut all = vec![larger];
    for (at, digit) in fraction.bytes().enumerate().filter(|(_, digit)| *digit < b'9') {
        all.push(differing(&format!("{start}{}", &fraction[..at]), (digit + 1, b'9'), "[0-9]*"));
    }
    let rest = if bound.open { "[0-9]*[1-9][0-9]*" } else { "[0-9]*" };
    match fraction.is_empty() && !bound.open {
        true => all.push(RegexAst::Concat(vec![literal(whole), regex(FRACTION)])),
        false => all.push(RegexAst::Concat(vec![literal(&format!("{start}{fraction}")), regex(rest)])),
    }
    all
}

fn decimals_below(bound: &Bound) -> Vec<RegexAst> {
    let Decimal { whole, fraction, .. } = &bound.at;
    let mut all = Vec::new();
    let smaller = below(whole, false);
    if !smaller.is_empty() {
        all.push(RegexAst::Concat(vec![RegexAst::Or(smaller), regex(FRACTION)]));
    }
    let start = format!("{whole}.");
    // The beginnings of the bound's fraction, and fractions with a smaller digit.
    all.extend((!fraction.is_empty()).then(|| literal(whole)));
    for (at, digit) in fraction.bytes().enumerate() {
        let same = format!("{start}{}", &fraction[..at]);
        all.extend((at > 0).then(|| literal(&same)));
        if digit > b'0' {
            all.push(differing(&same, (b'0', digit - 1), "[0-9]*"));
        }
    }
    match (bound.open, fraction.is_empty()) {
        (true, _) => {}
        (false, true) => all.push(RegexAst::Concat(vec![literal(whole), regex(r"(\.0+)?")])),
        (false, false) => all.push(RegexAst::Concat(vec![literal(&format!("{start}{fraction}")), regex("0*")])),
    }
    all
}

/// The texts that begin with `same`, continue with a digit of a range, and end with `rest`.
fn differing(same: &str, (from, to): (u8, u8), rest: &str) -> RegexAst {
    RegexAst::Concat(vec![literal(same), regex(&format!("[{}-{}]{rest}", char::from(from), char::from(to)))])
}

fn times(count: usize) -> String {
    format!("[0-9]{{{count}}}")
}

fn literal(text: &str) -> RegexAst {
    RegexAst::Literal(text.to_owned())
}

fn regex(pattern: &str) -> RegexAst {
    RegexAst::Regex(pattern.to_owned())
}

//! Converts a set of numbers to a regular expression over their texts, exact for numbers of any size.
//!
//! A text has no exponent, no leading zeros and no `-0`. Numbers are compared digit by digit: a number with as many digits as the bound
//! exceeds the bound if its digit is larger at the first place where they differ.

use std::cmp::Ordering;

use llguidance::derivre::RegexAst;

use super::decimal::{Bound, Decimal, cmp_digits};
use super::set::{Numbers, Piece, Range};
use super::step::Step;

/// The largest steps that can be followed within a range, for whole numbers and for others. The lexer has a state for each remainder and
/// number of digits left, and a mask that needs too many of them would end the answer with an error.
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
    let mut all = if whole {
        let most = match most {
            Some(most) => Some(most.whole_below()?),
            None => None,
        };
        wholes(least.map(Bound::whole_above).as_deref(), most.as_deref(), true)
    } else {
        decimals(least, most)
    };
    match all.len() {
        0 | 1 => all.pop(),
        _ => Some(RegexAst::Or(all)),
    }
}

/// The texts of the decimals between two bounds of 0 or more.
fn decimals(least: Option<&Bound>, most: Option<&Bound>) -> Vec<RegexAst> {
    let digits = |bound: Option<&Bound>| bound.map(|bound| bound.at.whole.clone());
    let (low, high) = (digits(least), digits(most));
    if let (Some(least), Some(most)) = (least, most)
        && low == high
    {
        return vec![RegexAst::And([fractions_above(least), fractions_below(most)].map(RegexAst::Or).into())];
    }
    let between = wholes(low.as_deref(), high.as_deref(), false);
    let between = (!between.is_empty()).then(|| RegexAst::Concat(vec![RegexAst::Or(between), regex(FRACTION)]));
    let ends = [least.map(fractions_above), most.map(fractions_below)];
    between.into_iter().chain(ends.into_iter().flatten().flatten()).collect()
}

/// The texts of the whole numbers between two bounds, given by their digits, as alternatives that share no text: an intersection of what
/// is above one bound and below the other would have a state of the lexer for each pair of their states.
fn wholes(least: Option<&str>, most: Option<&str>, inclusive: bool) -> Vec<RegexAst> {
    let (least, most) = match (least, most) {
        (None, None) => return vec![regex("0|[1-9][0-9]*")],
        (Some(least), None) => {
            let longer = regex(&format!("[1-9][0-9]{{{},}}", least.len()));
            return above(least, 0).chain([longer]).chain(inclusive.then(|| literal(least))).collect();
        }
        (None, Some(most)) => {
            let shorter = (most.len() > 1).then(|| regex(&format!("0|[1-9][0-9]{{0,{}}}", most.len() - 2)));
            return below(most, 0).chain(shorter).chain(inclusive.then(|| literal(most))).collect();
        }
        (Some(least), Some(most)) => (least, most),
    };
    let ends = || [least, most].into_iter().filter(|_| inclusive).map(literal);
    match cmp_digits(least, most) {
        Ordering::Greater => Vec::new(),
        Ordering::Equal => ends().take(1).collect(),
        Ordering::Less if least.len() < most.len() => {
            let lengths = least.len()..most.len() - 1;
            let between = (!lengths.is_empty()).then(|| regex(&format!("[1-9][0-9]{{{},{}}}", lengths.start, lengths.end - 1)));
            above(least, 0).chain(below(most, 0)).chain(between).chain(ends()).collect()
        }
        Ordering::Less => {
            let at = least.bytes().zip(most.bytes()).take_while(|(low, high)| low == high).count();
            let (from, to) = (least.as_bytes()[at] + 1, most.as_bytes()[at] - 1);
            let between = (from <= to).then(|| differing(&least[..at], (from, to), &times(least.len() - at - 1)));
            above(least, at + 1).chain(below(most, at + 1)).chain(between).chain(ends()).collect()
        }
    }
}

/// The whole numbers above `digits` that have as many digits and the same first `same` ones.
fn above(digits: &str, same: usize) -> impl Iterator<Item = RegexAst> {
    let smaller = digits.bytes().enumerate().skip(same).filter(|(_, digit)| *digit < b'9');
    smaller.map(|(at, digit)| differing(&digits[..at], (digit + 1, b'9'), &times(digits.len() - at - 1)))
}

/// The whole numbers below `digits` that have as many digits and the same first `same` ones.
fn below(digits: &str, same: usize) -> impl Iterator<Item = RegexAst> {
    digits.bytes().enumerate().skip(same).filter_map(|(at, digit)| {
        let smallest = if at == 0 && digits.len() > 1 { b'1' } else { b'0' };
        (digit > smallest).then(|| differing(&digits[..at], (smallest, digit - 1), &times(digits.len() - at - 1)))
    })
}

/// The decimals above a bound that have its digits before the point.
fn fractions_above(bound: &Bound) -> Vec<RegexAst> {
    let Decimal { whole, fraction, .. } = &bound.at;
    let start = format!("{whole}.");
    let mut all = Vec::new();
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

/// The decimals below a bound that have its digits before the point.
fn fractions_below(bound: &Bound) -> Vec<RegexAst> {
    let Decimal { whole, fraction, .. } = &bound.at;
    let start = format!("{whole}.");
    // The beginnings of the bound's fraction, and fractions with a smaller digit.
    let mut all: Vec<RegexAst> = (!fraction.is_empty()).then(|| literal(whole)).into_iter().collect();
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

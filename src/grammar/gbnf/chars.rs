//! [`Chars`]: a set of characters.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// The last code point.
const LAST: u32 = 0x10_FFFF;
/// The code points that UTF-8 cannot write.
const SURROGATES: (u32, u32) = (0xD800, 0xDFFF);

/// A set of characters: ranges of code points with both ends, in ascending order, neither overlapping nor adjacent.
/// A copy shares them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chars {
    ranges: Arc<[(u32, u32)]>,
    /// Of the ranges: a grammar may name a class of 10,000 ranges at 10,000 places, each of which is looked up.
    hash: u64,
}

impl Hash for Chars {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Chars {
    pub fn one(c: char) -> Self {
        Self::new([(c.into(), c.into())].into())
    }

    fn new(ranges: Arc<[(u32, u32)]>) -> Self {
        let mut hasher = DefaultHasher::new();
        ranges.hash(&mut hasher);
        Self { ranges, hash: hasher.finish() }
    }

    pub fn all() -> Self {
        writable(vec![(0, LAST)])
    }

    /// The characters of `ranges`, which may overlap.
    pub fn of(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::new();
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(end) if first <= end.1 + 1 => end.1 = end.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        writable(merged)
    }

    pub fn complement(&self) -> Self {
        let mut ranges = Vec::new();
        let mut next = 0;
        for &(first, last) in self.ranges() {
            if next < first {
                ranges.push((next, first - 1));
            }
            next = last + 1;
        }
        if next <= LAST {
            ranges.push((next, LAST));
        }
        writable(ranges)
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub fn ranges(&self) -> &[(u32, u32)] {
        &self.ranges
    }

    /// Whether a character is in both sets. Takes time in proportion to [`Chars::cost`].
    pub fn meets(&self, other: &Self) -> bool {
        let (few, many) =
            if self.ranges.len() <= other.ranges.len() { (&self.ranges, &other.ranges) } else { (&other.ranges, &self.ranges) };
        if Arc::ptr_eq(few, many) {
            return !few.is_empty();
        }
        few.iter().any(|(first, last)| many.get(many.partition_point(|(_, end)| end < first)).is_some_and(|(start, _)| start <= last))
    }

    /// The steps that [`Chars::meets`] takes.
    pub fn cost(&self, other: &Self) -> usize {
        let (few, many) = (self.ranges.len().min(other.ranges.len()), self.ranges.len().max(other.ranges.len()));
        if Arc::ptr_eq(&self.ranges, &other.ranges) { 1 } else { few * (1 + many.max(1).ilog2() as usize) }
    }

    #[cfg(test)]
    pub fn holds(&self, c: char) -> bool {
        self.meets(&Self::one(c))
    }
}

fn writable(all: Vec<(u32, u32)>) -> Chars {
    let (low, high) = SURROGATES;
    let mut ranges = Vec::with_capacity(all.len() + 1);
    for (first, last) in all {
        if first < low {
            ranges.push((first, last.min(low - 1)));
        }
        if last > high {
            ranges.push((first.max(high + 1), last));
        }
    }
    Chars::new(ranges.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_meet_where_a_character_is_in_both() {
        let set = |ranges: &[(u32, u32)]| Chars::of(ranges.to_vec());
        let many = set(&(0..1000).map(|i| (10 * i, 10 * i + 3)).collect::<Vec<_>>());
        for (ranges, due) in
            [(&[(4, 9)][..], false), (&[(4, 9), (24, 30)], true), (&[(9993, 9993)], true), (&[(9994, 20_000)], false), (&[], false)]
        {
            assert_eq!((set(ranges).meets(&many), many.meets(&set(ranges))), (due, due), "{ranges:?}");
            assert!(set(ranges).cost(&many) <= 11 * ranges.len(), "{ranges:?}");
        }
        assert!(many.meets(&many.clone()) && !set(&[]).meets(&set(&[])));
    }
}

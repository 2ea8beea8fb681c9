//! [`Chars`]: a set of characters.

/// The last code point.
const LAST: u32 = 0x10_FFFF;
/// The code points that UTF-8 cannot write.
const SURROGATES: (u32, u32) = (0xD800, 0xDFFF);

/// A set of characters: ranges of code points with both ends, in ascending order, neither overlapping nor adjacent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chars(Vec<(u32, u32)>);

impl Chars {
    pub fn one(c: char) -> Self {
        Self(vec![(c.into(), c.into())])
    }

    pub fn all() -> Self {
        Self(vec![(0, LAST)]).writable()
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
        Self(merged).writable()
    }

    pub fn complement(&self) -> Self {
        let mut ranges = Vec::new();
        let mut next = 0;
        for &(first, last) in &self.0 {
            if next < first {
                ranges.push((next, first - 1));
            }
            next = last + 1;
        }
        if next <= LAST {
            ranges.push((next, LAST));
        }
        Self(ranges).writable()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn ranges(&self) -> &[(u32, u32)] {
        &self.0
    }

    pub fn meets(&self, other: &Self) -> bool {
        let (mut a, mut b) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
            if x.1 < y.0 {
                a.next();
            } else if y.1 < x.0 {
                b.next();
            } else {
                return true;
            }
        }
        false
    }

    #[cfg(test)]
    pub fn holds(&self, c: char) -> bool {
        self.meets(&Self::one(c))
    }

    fn writable(self) -> Self {
        let mut ranges = Vec::with_capacity(self.0.len() + 1);
        for (first, last) in self.0 {
            let (low, high) = SURROGATES;
            if first < low {
                ranges.push((first, last.min(low - 1)));
            }
            if last > high {
                ranges.push((first.max(high + 1), last));
            }
        }
        Self(ranges)
    }
}

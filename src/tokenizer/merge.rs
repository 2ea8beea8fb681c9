//! Runs the merge loop of BPE and SentencePiece: the best adjacent pair merges first. Among equals, the leftmost pair merges first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A range of bytes of the word that is currently one symbol.
#[derive(Clone, Copy)]
pub(super) struct Symbol {
    /// The token. `UNKNOWN` if there is none, or if it has not been looked up yet.
    pub(super) id: u32,
    pub(super) start: u32,
    pub(super) end: u32,
}

pub(super) const UNKNOWN: u32 = u32::MAX;

/// The merge's key and the token that two neighbours may merge into. The smallest key merges first.
pub(super) type Candidate = Option<(u32, u32)>;

/// The longest word, in symbols, for which searching all pairs is faster than a heap.
const SMALL: usize = 32;
const END: u32 = u32::MAX;

/// Merges symbols until no pair can be merged.
pub(super) fn merge(symbols: &mut Vec<Symbol>, pair: impl Fn(&Symbol, &Symbol) -> Candidate) {
    if symbols.len() <= SMALL { merge_small(symbols, pair) } else { merge_large(symbols, pair) }
}

fn merge_small(symbols: &mut Vec<Symbol>, pair: impl Fn(&Symbol, &Symbol) -> Candidate) {
    let mut candidates = [None; SMALL];
    for (i, two) in symbols.windows(2).enumerate() {
        candidates[i] = pair(&two[0], &two[1]);
    }
    loop {
        let pairs = symbols.len().saturating_sub(1);
        let best = candidates[..pairs].iter().enumerate().filter_map(|(i, c)| c.map(|(key, id)| (key, i, id))).min();
        let Some((_, i, id)) = best else { return };
        symbols[i] = Symbol { id, start: symbols[i].start, end: symbols[i + 1].end };
        symbols.remove(i + 1);
        candidates.copy_within(i + 1..pairs, i);
        if i > 0 {
            candidates[i - 1] = pair(&symbols[i - 1], &symbols[i]);
        }
        if i + 1 < symbols.len() {
            candidates[i] = pair(&symbols[i], &symbols[i + 1]);
        }
    }
}

/// A candidate in the heap: key, index of the left symbol, token, start and end of the right symbol.
type Waiting = (u32, u32, u32, u32, u32);

/// Merges in O(n log n), with a heap of candidates over a linked list of symbols. A candidate whose symbols have changed is discarded when
/// it is popped.
fn merge_large(symbols: &mut Vec<Symbol>, pair: impl Fn(&Symbol, &Symbol) -> Candidate) {
    let count = symbols.len() as u32;
    let mut next: Vec<u32> = (1..count).chain([END]).collect();
    let mut previous: Vec<u32> = [END].into_iter().chain(0..count - 1).collect();
    let candidate = |symbols: &[Symbol], left: u32, right: u32| {
        let (a, b) = (&symbols[left as usize], &symbols[right as usize]);
        pair(a, b).map(|(key, id)| Reverse((key, left, id, b.start, b.end)))
    };
    // The initial candidates are sorted once, which is faster than a heap of all of them. Only candidates that merges create go into the
    // heap.
    let mut first: Vec<_> = (1..count).filter_map(|right| candidate(symbols, right - 1, right)).collect();
    first.sort_unstable();
    let mut heap: BinaryHeap<Reverse<Waiting>> = BinaryHeap::new();
    loop {
        let from_first = match (first.last(), heap.peek()) {
            (None, None) => break,
            (Some(a), Some(b)) => a > b,
            (a, _) => a.is_some(),
        };
        let best = if from_first { first.pop() } else { heap.pop() };
        let Some(Reverse((_, left, id, middle, end))) = best else { break };
        let (l, right) = (left as usize, next[left as usize]);
        // A symbol that was merged into its left neighbour has length 0.
        let stale = right == END || symbols[l].start == symbols[l].end || symbols[l].end != middle || symbols[right as usize].end != end;
        if stale {
            continue;
        }
        let r = right as usize;
        symbols[l] = Symbol { id, start: symbols[l].start, end };
        symbols[r].end = symbols[r].start;
        next[l] = next[r];
        if next[l] != END {
            previous[next[l] as usize] = left;
            heap.extend(candidate(symbols, left, next[l]));
        }
        if previous[l] != END {
            heap.extend(candidate(symbols, previous[l], left));
        }
    }
    symbols.retain(|s| s.start != s.end);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has few keys and allows most pairs, which gives many ties and many stale candidates.
    fn pair(a: &Symbol, b: &Symbol) -> Candidate {
        let (x, y) = (a.id % 7, b.id % 7);
        ((x + y) % 3 != 0).then_some(((x * y) % 4, a.id.wrapping_mul(31).wrapping_add(b.id) % 1000))
    }

    proptest::proptest! {
        #[test]
        fn the_heap_and_the_search_merge_alike(ids in proptest::collection::vec(0u32..50, 1..SMALL + 1)) {
            let symbols: Vec<Symbol> = ids.iter().zip(0..).map(|(&id, i)| Symbol { id, start: i, end: i + 1 }).collect();
            let (mut small, mut large) = (symbols.clone(), symbols);
            merge_small(&mut small, pair);
            merge_large(&mut large, pair);
            let ends = |s: &[Symbol]| s.iter().map(|s| (s.id, s.start, s.end)).collect::<Vec<_>>();
            proptest::prop_assert_eq!(ends(&small), ends(&large));
        }
    }
}

//! Chooses the engine of a model that a sequence goes to.
//!
//! **The rule.** A sequence costs an engine the rows that the engine still has to run, and the rows of the sequence itself: those of its
//! prompt that the engine has not cached. It goes where this sum is least. So an engine that has a prefix cached gets the sequence unless
//! it is busier than the least busy one by as many rows as the prefix saves, and a prefix that everyone uses spreads instead of starving
//! the engine that had it first. Among equal sums, the less busy engine wins, then the one with the lower number.
//!
//! **What is cached.** The router remembers the blocks of the prompts that it has sent to each engine, and of their answers, by hashes. It
//! keeps as many per engine as the engine's cache has blocks, and forgets those that were not seen for longest. This follows the cache
//! closely enough, and no engine thread has to be asked. A wrong guess costs time and never changes an answer.

use std::collections::HashSet;
use std::hash::RandomState;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::block_key::{BlockItems, BlockKey, BlockScopes, CacheScope};
use crate::new_sequence::NewSequence;
use crate::tokens::Tokens;

/// The most tokens of an answer that count in advance, because most answers end long before `max_tokens`.
const MAX_ANSWER: u64 = 256;

/// What is known of an engine when a sequence is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Rows that the engine still has to run.
    pub num_rows: u64,
    /// Rows of the sequence's prompt that are cached.
    pub num_cached: u64,
}

/// The index of the engine that a sequence goes to. `None` stands for an engine that takes none. None if no engine takes any.
pub fn choose(candidates: &[Option<Candidate>]) -> Option<usize> {
    let cost = |one: &Candidate| (i128::from(one.num_rows) - i128::from(one.num_cached), one.num_rows);
    let takers = candidates.iter().enumerate().filter_map(|(index, one)| Some((index, cost(one.as_ref()?))));
    takers.min_by_key(|(index, cost)| (*cost, *index)).map(|(index, _)| index)
}

/// Rows that a sequence will run: those of its prompt, of which `num_cached` are cached, and those of its answer.
pub fn rows_of(sequence: &NewSequence, num_cached: u64) -> [u64; 2] {
    [(sequence.prompt.len() as u64).saturating_sub(num_cached), u64::from(sequence.max_tokens).min(MAX_ANSWER)]
}

/// The blocks that the engines of a model have probably cached.
#[derive(Debug)]
pub struct Router {
    /// None if the engines cache no prefixes.
    block_size: Option<usize>,
    hasher: RandomState,
    known: Mutex<Vec<KnownBlocks>>,
}

impl Router {
    /// `block_size`: tokens per KV block, or None if the engines cache no prefixes. `num_blocks`: the most KV blocks of each engine.
    pub fn new(block_size: Option<usize>, num_blocks: impl Iterator<Item = usize>) -> Self {
        let known = num_blocks.map(|most| KnownBlocks { most, ..KnownBlocks::default() }).collect();
        Self { block_size, hasher: RandomState::new(), known: Mutex::new(known) }
    }

    /// Locks what is known. Choices are made one after another, so that each sees the rows of those before it.
    pub fn lock(&self) -> MutexGuard<'_, Vec<KnownBlocks>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keys of the full blocks of a sequence, each of which stands for the whole prefix up to its block. None of a sequence whose
    /// prompt is computed as a whole.
    pub fn keys(&self, sequence: &NewSequence, generated: &[u32]) -> Vec<u64> {
        let is_whole = sequence.score_prompt.is_some() || sequence.pool.is_some();
        let Some(block_size) = self.block_size.filter(|_| !is_whole) else { return Vec::new() };
        let tokens = Tokens { prompt: &sequence.prompt, generated };
        let of_all = CacheScope { salt: sequence.cache_salt, ..CacheScope::default() };
        let scopes = BlockScopes { of_all, adapters: &sequence.adapters };
        let (mut parent, mut items) = (0, BlockItems::default());
        let key = |index| {
            tokens.copy_block(index, block_size, &mut items);
            parent = BlockKey { scope: scopes.of_block(index, block_size), parent, items: &items }.hash(&self.hasher);
            parent
        };
        (0..tokens.len() / block_size).map(key).collect()
    }

    /// Rows of a prompt with these keys and this length that an engine with these blocks need not run. At least one is left to run.
    pub fn num_cached(&self, known: &KnownBlocks, keys: &[u64], len: usize) -> u64 {
        let Some(block_size) = self.block_size else { return 0 };
        let found = keys.iter().take(len.saturating_sub(1) / block_size).take_while(|key| known.has(**key)).count();
        (found * block_size) as u64
    }
}

/// A bounded set of keys, which forgets those that were not seen for longest: two halves, of which the older one goes when the younger is
/// full.
#[derive(Debug, Default)]
pub struct KnownBlocks {
    most: usize,
    young: HashSet<u64>,
    old: HashSet<u64>,
}

impl KnownBlocks {
    fn has(&self, key: u64) -> bool {
        self.young.contains(&key) || self.old.contains(&key)
    }

    pub fn add(&mut self, keys: &[u64]) {
        for &key in keys {
            if self.young.insert(key) && self.young.len() >= (self.most / 2).max(1) {
                self.old = std::mem::take(&mut self.young);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use logits::SamplingParams;
    use proptest::prelude::*;

    use super::*;

    fn of(all: &[(u64, u64)]) -> Option<usize> {
        let candidates: Vec<_> = all.iter().map(|&(num_rows, num_cached)| Some(Candidate { num_rows, num_cached })).collect();
        choose(&candidates)
    }

    #[test]
    fn a_cached_prefix_counts_as_much_as_the_rows_that_it_saves() {
        assert_eq!(of(&[(0, 0), (0, 0)]), Some(0), "equal: the lower number");
        assert_eq!(of(&[(5, 0), (4, 0)]), Some(1), "the less busy one");
        assert_eq!(of(&[(0, 0), (0, 64)]), Some(1), "the one with the prefix");
        assert_eq!(of(&[(0, 0), (63, 64)]), Some(1), "busier by less than the prefix saves");
        assert_eq!(of(&[(64, 64), (0, 0)]), Some(1), "busier by as much");
        assert_eq!(of(&[(0, 32), (40, 64), (0, 0)]), Some(0), "the longer prefix is not worth the wait");
        assert_eq!(choose(&[None, Some(Candidate { num_rows: u64::MAX, num_cached: 0 })]), Some(1));
        assert_eq!((choose(&[None, None]), choose(&[])), (None, None));
    }

    proptest! {
        #[test]
        fn the_choice_takes_sequences_and_no_other_gets_the_sequence_done_with_fewer_rows(
            all in prop::collection::vec(prop::option::of((0u64..500, 0u64..500)), 1..6)
        ) {
            let candidates: Vec<_> =
                all.iter().map(|one| one.map(|(num_rows, num_cached)| Candidate { num_rows, num_cached })).collect();
            prop_assert_eq!(choose(&candidates).is_none(), all.iter().all(Option::is_none));
            let Some(index) = choose(&candidates) else { return Ok(()) };
            let chosen = candidates[index].unwrap();
            let least = candidates.iter().flatten().map(|one| one.num_rows).min().unwrap();
            prop_assert!(chosen.num_rows == least || chosen.num_rows - least < chosen.num_cached, "a hot prefix starves no engine");
            for (other, one) in candidates.iter().enumerate() {
                let Some(one) = one else { continue };
                let (of_chosen, of_other) = (chosen.num_rows + one.num_cached, one.num_rows + chosen.num_cached);
                prop_assert!(of_chosen <= of_other);
                let is_better = (of_chosen, chosen.num_rows, index) <= (of_other, one.num_rows, other);
                prop_assert!(is_better, "ties go to the less busy engine, then to the lower number");
            }
        }

        #[test]
        fn what_is_remembered_is_bounded_and_holds_the_latest_half(keys in prop::collection::vec(0u64..64, 0..300), most in 0usize..40) {
            let mut known = KnownBlocks { most, ..KnownBlocks::default() };
            for (index, key) in keys.iter().enumerate() {
                known.add(&[*key]);
                prop_assert!(known.young.len() + known.old.len() <= most.max(2));
                let latest = keys[..=index].iter().rev().take((most / 2).max(1));
                prop_assert!(latest.into_iter().all(|key| known.has(*key)));
            }
        }
    }

    #[test]
    fn a_key_stands_for_the_whole_prefix_and_its_scope() {
        let router = Router::new(Some(4), [8].into_iter());
        let sequence = |ids: &[u32]| NewSequence::new(ids.to_vec(), SamplingParams::greedy(), 4);
        let keys = |sequence: &NewSequence| router.keys(sequence, &[]);
        let first = sequence(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        router.lock()[0].add(&keys(&first));
        let cached = |sequence: &NewSequence| router.num_cached(&router.lock()[0], &keys(sequence), sequence.prompt.len());
        assert_eq!(cached(&first), 8);
        assert_eq!(cached(&sequence(&[1, 2, 3, 4, 5, 6, 7, 8])), 4, "a row is left to run");
        assert_eq!(cached(&sequence(&[1, 2, 3, 4, 0, 6, 7, 8, 9])), 4);
        assert_eq!(cached(&sequence(&[0, 2, 3, 4, 5, 6, 7, 8, 9])), 0, "the second block follows another one");
        assert_eq!(cached(&NewSequence { cache_salt: 1, ..first.clone() }), 0);
        assert_eq!(cached(&NewSequence { score_prompt: Some(0), ..first.clone() }), 0);
        router.lock()[0].add(&router.keys(&first, &[10, 11, 12]));
        assert_eq!(cached(&sequence(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13])), 12, "the answer of the turn before");
    }
}

//! Block manager: allocation, eviction and checkpoints.

use super::*;
use crate::items::{Layout, RowRun};
use crate::testing::run;

fn manager(num_blocks: usize) -> BlockManager {
    BlockManager::new(KvCapacity::blocks(num_blocks, 2), usize::MAX, true)
}

fn recurrent(num_state_slots: usize) -> BlockManager {
    BlockManager::new(KvCapacity { num_state_slots, ..KvCapacity::blocks(4, 2) }, usize::MAX, true)
}

fn under(salt: u64) -> CacheScope {
    CacheScope { salt, ..CacheScope::default() }
}

impl BlockManager {
    /// Registers a block of the only group.
    fn add(&mut self, block: u32, salt: u64, parent: ContentId, tokens: &[u32]) -> ContentId {
        self.register((under(salt), None), parent, &BlockItems::tokens(tokens), std::iter::once(Some(block)))
    }

    fn known(&self, salt: u64, parent: ContentId, tokens: &[u32]) -> Option<ContentId> {
        self.find(under(salt), parent, &BlockItems::tokens(tokens))
    }

    /// Finds and acquires a block of the only group.
    fn acquire(&mut self, salt: u64, parent: ContentId, tokens: &[u32]) -> Option<(u32, ContentId)> {
        let content = self.known(salt, parent, tokens)?;
        let block = self.cached_block(content, 0)?;
        self.acquire_cached(block);
        Some((block, content))
    }
}

#[test]
fn a_prefix_is_found_only_if_salt_and_every_token_match() {
    let mut blocks = manager(4);
    let (a, b) = (blocks.allocate().unwrap(), blocks.allocate().unwrap());
    let first = blocks.add(a, 7, ROOT, &[1, 2]);
    let second = blocks.add(b, 7, first, &[3, 4]);
    assert_ne!(first, second);
    assert_eq!(blocks.acquire(7, ROOT, &[1, 2]), Some((a, first)));
    assert_eq!(blocks.acquire(7, first, &[3, 4]), Some((b, second)));
    assert_eq!(blocks.acquire(8, ROOT, &[1, 2]), None, "another salt");
    assert_eq!(blocks.acquire(7, ROOT, &[3, 4]), None, "another prefix");
    assert_eq!(blocks.acquire(7, first, &[3, 5]), None);
    blocks.check_blocks([&[a, b][..], &[a, b]].into_iter());
}

#[test]
fn a_block_with_rows_is_found_only_by_its_whole_key() {
    let mut blocks = manager(4);
    let block = blocks.allocate().unwrap();
    let of = |run: RowRun, rows: std::ops::Range<usize>| {
        let mut items = BlockItems::default();
        items.push_rows(run.content(), rows);
        items
    };
    let line = || run(1, 6, Layout::Line, false);
    let content = blocks.register((under(7), None), ROOT, &of(line(), 2..4), std::iter::once(Some(block)));
    assert_eq!(blocks.find(under(7), ROOT, &of(line(), 2..4)), Some(content));
    let others = [
        ("another row", under(7), of(line(), 1..3)),
        ("another source", under(7), of(run(2, 6, Layout::Line, false), 2..4)),
        ("other rows beside it", under(7), of(run(1, 7, Layout::Line, false), 2..4)),
        ("other positions", under(7), of(run(1, 6, Layout::Grid { height: 2, width: 3 }, false), 2..4)),
        ("rows that see each other", under(7), of(RowRun { is_whole: true, ..line() }, 2..4)),
        ("tokens", under(7), BlockItems::tokens(&[2, 3])),
        ("another salt", under(8), of(line(), 2..4)),
        ("another format", CacheScope { format: 1, ..under(7) }, of(line(), 2..4)),
        ("another adapter", CacheScope { adapter: 1, ..under(7) }, of(line(), 2..4)),
    ];
    for (what, scope, items) in others {
        assert_eq!(blocks.find(scope, ROOT, &items), None, "{what}");
    }
}

#[test]
fn eviction_takes_the_least_recently_used_block_and_never_a_held_one() {
    let mut blocks = manager(3);
    let held: Vec<u32> = (0..3).map(|_| blocks.allocate().unwrap()).collect();
    assert_eq!(blocks.allocate(), None);
    for (i, &block) in held.iter().enumerate() {
        blocks.add(block, 0, ROOT, &[i as u32, 0]);
    }
    held.iter().for_each(|&block| blocks.release(block));
    assert_eq!((blocks.num_available(), blocks.usage()), (3, 0.0));
    let (again, _) = blocks.acquire(0, ROOT, &[0, 0]).unwrap();
    assert_eq!(again, held[0]);
    assert_eq!(blocks.allocate(), Some(held[1]));
    assert_eq!(blocks.acquire(0, ROOT, &[1, 0]), None, "evicted");
    assert_eq!(blocks.allocate(), Some(held[2]));
    assert_eq!(blocks.allocate(), None);
    blocks.check_blocks([&held[..]].into_iter());
}

#[test]
fn equal_content_is_cached_once() {
    let mut blocks = manager(2);
    let (a, b) = (blocks.allocate().unwrap(), blocks.allocate().unwrap());
    assert_eq!(blocks.add(a, 0, ROOT, &[1, 2]), blocks.add(b, 0, ROOT, &[1, 2]));
    blocks.release(b);
    blocks.release(a);
    blocks.check_blocks(std::iter::empty());
    assert_eq!(blocks.acquire(0, ROOT, &[1, 2]).map(|(block, _)| block), Some(a));
}

#[test]
fn a_content_has_a_block_per_group_until_each_is_evicted() {
    let capacity = KvCapacity { groups: vec![CacheGroup::default(); 2], ..KvCapacity::blocks(3, 2) };
    let mut blocks = BlockManager::new(capacity, usize::MAX, true);
    let [a, b, c] = [0; 3].map(|_| blocks.allocate().unwrap());
    let content = blocks.register((under(0), None), ROOT, &BlockItems::tokens(&[1, 2]), [None, Some(b)].into_iter());
    assert_eq!(blocks.known(0, ROOT, &[1, 2]), Some(content));
    assert_eq!((blocks.cached_block(content, 0), blocks.cached_block(content, 1)), (None, Some(b)));
    assert_eq!(
        blocks.register((under(0), None), ROOT, &BlockItems::tokens(&[1, 2]), [Some(a), Some(c)].into_iter()),
        content,
        "what is missing is added"
    );
    assert_eq!((blocks.cached_block(content, 0), blocks.cached_block(content, 1)), (Some(a), Some(b)));
    [c, b, a].into_iter().for_each(|block| blocks.release(block));
    assert_eq!([blocks.allocate(), blocks.allocate()], [Some(c), Some(b)]);
    assert_eq!((blocks.cached_block(content, 0), blocks.cached_block(content, 1)), (Some(a), None));
    assert_eq!(blocks.allocate(), Some(a));
    assert_eq!((blocks.known(0, ROOT, &[1, 2]), blocks.cached_block(content, 0)), (None, None));
    let none = blocks.register((under(0), None), ROOT, &BlockItems::tokens(&[3, 4]), [None, None].into_iter());
    assert_eq!(blocks.known(0, ROOT, &[3, 4]), None, "a content without blocks is not known: {none:?}");
}

#[test]
fn a_state_slot_has_one_holder_and_is_reused_after_its_release() {
    let mut blocks = recurrent(2);
    let (a, b) = (blocks.allocate_state_slot().unwrap(), blocks.allocate_state_slot().unwrap());
    assert_ne!(a, b);
    assert_eq!(blocks.allocate_state_slot(), None);
    blocks.check_state_slots([a, b].into_iter());
    let before = blocks.num_releases();
    blocks.release_state_slot(a);
    assert!(blocks.num_releases() > before, "a waiting sequence tries again");
    blocks.check_state_slots([b].into_iter());
    assert_eq!(blocks.allocate_state_slot(), Some(a));
}

#[test]
fn a_checkpoint_is_found_until_its_slot_or_its_block_is_needed() {
    let mut blocks = recurrent(3);
    let [a, b, c] = [0; 3].map(|_| blocks.allocate_state_slot().unwrap());
    let held = [0; 3].map(|_| blocks.allocate().unwrap());
    let contents = [0, 1, 2].map(|i| blocks.add(held[i], 0, ROOT, &[i as u32, 9]));
    [a, b, c].into_iter().zip(contents).for_each(|(slot, content)| blocks.keep_state(slot, content));
    blocks.check_state_slots(std::iter::empty());
    assert_eq!((blocks.num_checkpoints(), blocks.checkpoint(contents[0])), (3, Some(a)));
    assert_eq!(blocks.allocate_state_slot(), Some(a), "the least recently used");
    assert_eq!(blocks.checkpoint(contents[0]), None);
    blocks.release(held[1]);
    let other = blocks.allocate().unwrap();
    assert_eq!((blocks.allocate(), other), (Some(held[1]), 3));
    assert_eq!(blocks.checkpoint(contents[1]), None, "evicted with its block");
    blocks.check_state_slots([a].into_iter());
    blocks.keep_state(a, contents[2]);
    assert_eq!((blocks.num_checkpoints(), blocks.checkpoint(contents[2])), (1, Some(c)), "the first stays");
}

#[test]
fn what_a_step_reads_is_not_overwritten_in_it() {
    let mut blocks = recurrent(2);
    let [block, other] = [0; 2].map(|_| blocks.allocate().unwrap());
    let [first, second] = [(block, 1), (other, 2)].map(|(block, token)| blocks.add(block, 0, ROOT, &[token, token]));
    let [a, b] = [0; 2].map(|_| blocks.allocate_state_slot().unwrap());
    blocks.keep_state(a, first);
    blocks.keep_state(b, second);
    assert_eq!(blocks.acquire_checkpoint(first), Some((b, Some((a, b)))), "the other one makes room");
    assert_eq!(blocks.allocate_state_slot(), None, "the step reads it");
    blocks.begin_step();
    assert_eq!(blocks.acquire_checkpoint(first), Some((a, None)), "it is the last slot");
    assert_eq!(blocks.checkpoint(first), None);
    blocks.check_state_slots([a, b].into_iter());
}

#[test]
fn only_a_checkpoint_that_nobody_used_is_dropped() {
    let mut blocks = recurrent(3);
    let held = [0; 2].map(|_| blocks.allocate().unwrap());
    let [first, second] = [0, 1].map(|i| blocks.add(held[i], 0, ROOT, &[i as u32, 9]));
    let [a, b] = [0; 2].map(|_| blocks.allocate_state_slot().unwrap());
    blocks.keep_state(a, first);
    blocks.keep_state(b, second);
    let (own, _) = blocks.acquire_checkpoint(first).unwrap();
    [first, second].into_iter().for_each(|content| blocks.drop_unused_checkpoint(content));
    assert_eq!((blocks.checkpoint(first), blocks.checkpoint(second)), (Some(a), None));
    blocks.check_state_slots([own].into_iter());
}

#[test]
fn a_tenant_that_floods_the_cache_evicts_its_own_contents() {
    let mut blocks = manager(8);
    let add = |blocks: &mut BlockManager, tenant: u64, token: u32| {
        let block = blocks.allocate().unwrap();
        blocks.register((under(tenant), Some(tenant)), ROOT, &BlockItems::tokens(&[token; 2]), std::iter::once(Some(block)));
        blocks.release(block);
    };
    (0..3).for_each(|token| add(&mut blocks, 1, token));
    (0..100).for_each(|token| add(&mut blocks, 2, token));
    let known = |blocks: &BlockManager, tenant, token| blocks.known(tenant, ROOT, &[token, token]).is_some();
    assert!((0..3).all(|token| known(&blocks, 1, token)), "older than all of the other's");
    assert!((95..100).all(|token| known(&blocks, 2, token)) && !known(&blocks, 2, 94));
    (3..50).for_each(|token| add(&mut blocks, 1, token));
    assert!((97..100).all(|token| known(&blocks, 2, token)), "each keeps half, but for one block");
}

#[test]
fn blocks_without_memory_are_not_there() {
    let mut blocks = BlockManager::new(KvCapacity::blocks(8, 2), 2, true);
    let held = [0; 2].map(|_| blocks.allocate().unwrap());
    assert_eq!((held, blocks.allocate(), blocks.num_reachable()), ([0, 1], None, 2));
    blocks.set_can_grow(true);
    assert!(!blocks.claim(3) && blocks.num_reachable() == 8);
    assert_eq!((blocks.take_wanted(), blocks.take_wanted()), (3, 0));
    let releases = blocks.num_releases();
    blocks.add_backed(6);
    assert!(blocks.num_releases() > releases && blocks.claim(4), "a waiting sequence tries again");
    let more = [0; 4].map(|_| blocks.allocate().unwrap());
    blocks.add(5, 0, ROOT, &[1, 2]);
    [5, 3, 4, 2].into_iter().for_each(|block| blocks.release(block));
    assert_eq!((more, blocks.num_pinned(false), blocks.num_pinned(true)), ([2, 3, 4, 5], 6, 2));
    blocks.remove_backed(3);
    assert_eq!((blocks.num_backed(), blocks.num_free(), blocks.known(0, ROOT, &[1, 2])), (3, 1, None));
    blocks.check_blocks([&held[..]].into_iter());
    assert_eq!((blocks.allocate(), blocks.allocate()), (Some(2), None), "low ones first");
}

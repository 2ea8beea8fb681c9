//! A step sends what the device does not know, and nothing else.

use super::*;
use crate::CacheWindow;
use crate::check::Limits;

const SIZE: usize = 32;

fn limits(groups: usize) -> Limits {
    let mut kv = KvCapacity { num_state_slots: 4, ..KvCapacity::blocks(64, SIZE) };
    kv.groups = [CacheGroup::default(), CacheGroup { window: Some(CacheWindow::Sliding(40)) }][..groups].to_vec();
    Limits {
        kv,
        num_backed: 64,
        vocab_size: 10,
        embedding_width: 2,
        num_token_types: 0,
        max_slots: 4,
        max_batch_tokens: 64,
        max_context: 512,
        bidirectional: false,
        loops: None,
        refuses_grids: None,
        refuses_rows: None,
        max_adapters: 0,
    }
}

/// The blocks of a slot in a group.
fn table(group: u32, slot: u32) -> Vec<u32> {
    (0..8).map(|at| group * 32 + slot * 8 + at).collect()
}

/// A decode step: each of the slots continues at a position.
fn decode(groups: u32, rows: &[(u32, u32)]) -> Batch {
    let place = |group, slot, at: u32| table(group, slot)[at as usize / SIZE] * SIZE as u32 + at % SIZE as u32;
    let n = rows.len() as u32;
    Batch {
        inputs: rows.iter().map(|&(slot, _)| Input::Sampled(slot)).collect(),
        positions: rows.iter().map(|row| row.1).collect(),
        cu_seqlens_q: (0..=n).collect(),
        context_lens: rows.iter().map(|row| row.1 + 1).collect(),
        slot_mapping: (0..groups).flat_map(|group| rows.iter().map(move |&(slot, at)| place(group, slot, at))).collect(),
        block_tables: (0..groups).flat_map(|group| rows.iter().flat_map(move |&(slot, _)| table(group, slot))).collect(),
        max_blocks: 8,
        sequence_slots: rows.iter().map(|row| row.0).collect(),
        state_slots: rows.iter().map(|row| row.0).collect(),
        sampled_rows: (0..n).collect(),
        ..Batch::default()
    }
}

struct Rig(Limits, DeviceSlots);

impl Rig {
    fn new(groups: usize) -> Self {
        let limits = limits(groups);
        let slots = DeviceSlots::new(&limits.kv, limits.max_slots, true, true);
        Self(limits, slots)
    }

    fn follow(&mut self, batch: &Batch) -> &Changes {
        self.1.follow(self.0.check(batch).unwrap())
    }

    /// The tables that a step sends: (row's slot, group, first entry, blocks).
    fn sent(&mut self, batch: &Batch) -> Vec<(u32, u32, u32, Vec<u32>)> {
        let changes = self.follow(batch);
        assert_eq!(changes.source, sys::PEN_FROM_CHANGES);
        let of = |row: &sys::pen_row| {
            let (slot, tables) = (row.slot, &changes.tables[row.first_table as usize..][..row.num_tables as usize]);
            tables.iter().map(move |t| (slot, t.group, t.first, changes.blocks[t.at as usize..][..t.count as usize].to_vec()))
        };
        changes.rows.iter().flat_map(of).collect()
    }
}

#[test]
fn a_step_of_the_same_sequences_sends_nothing() {
    let mut rig = Rig::new(1);
    assert_eq!(rig.sent(&decode(1, &[(2, 40), (0, 3)])), [(2, 0, 0, vec![16, 17]), (0, 0, 0, vec![0])]);
    for at in 1..24 {
        assert_eq!(rig.follow(&decode(1, &[(2, 40 + at), (0, 3 + at)])).source, sys::PEN_FROM_SLOTS, "{at}");
    }
    assert_eq!(rig.sent(&decode(1, &[(2, 64), (0, 27)])), [(2, 0, 2, vec![18])], "only the new block");
    assert_eq!(rig.follow(&decode(1, &[(2, 65), (0, 28)])).source, sys::PEN_FROM_SLOTS);
}

#[test]
fn a_loop_sends_the_blocks_of_all_its_steps_at_once() {
    let mut rig = Rig::new(1);
    rig.0.loops = Some(crate::LoopLimits { most_steps: 64, turn: 2, most_seqs: 4 });
    let looped = |rows: &[(u32, u32)], steps: u32, rooms: &[u32]| Batch { loop_steps: steps, rooms: rooms.to_vec(), ..decode(1, rows) };
    rig.follow(&decode(1, &[(2, 40), (0, 3)]));
    assert_eq!(rig.sent(&looped(&[(2, 41), (0, 4)], 64, &[105, 68])), [(2, 0, 2, vec![18, 19]), (0, 0, 1, vec![1, 2])]);
    assert_eq!(rig.1.changes.rows.iter().map(|row| (row.length, row.room)).collect::<Vec<_>>(), [(41, 105), (4, 68)]);
    assert_eq!(rig.follow(&looped(&[(2, 105), (0, 68)], 20, &[125, 88])).source, sys::PEN_FROM_SLOTS);
    assert_eq!(rig.follow(&decode(1, &[(2, 125), (0, 88)])).source, sys::PEN_FROM_SLOTS, "a step behind loops");
    rig.follow(&looped(&[(2, 126), (0, 89)], 8, &[134, 92]));
    let is_new = |changes: &Changes| changes.rows.iter().map(|row| row.is_new).collect::<Vec<_>>();
    rig.follow(&decode(1, &[(2, 134), (0, 97)]));
    assert_eq!(is_new(&rig.1.changes), [0, 1], "a row without room has not moved on");
}

#[test]
fn a_sequence_that_moves_to_another_row_sends_no_table() {
    let mut rig = Rig::new(1);
    rig.follow(&decode(1, &[(2, 40), (0, 3), (1, 7)]));
    assert_eq!(rig.sent(&decode(1, &[(0, 4), (1, 8)])), []);
    let is_new = |changes: &Changes| changes.rows.iter().map(|row| row.is_new).collect::<Vec<_>>();
    assert_eq!(is_new(&rig.1.changes), [1, 1]);
    assert_eq!(rig.sent(&decode(1, &[(0, 5), (1, 9), (2, 41)])), []);
    assert_eq!(is_new(&rig.1.changes), [0, 0, 1]);
}

#[test]
fn whatever_else_a_row_asks_is_sent() {
    type Change = fn(&mut Batch);
    let changes: [Change; 5] = [
        |batch| batch.inputs[0] = Input::Token(3),
        |batch| batch.inputs[1] = Input::Sampled(2),
        |batch| batch.sampled_rows = vec![1],
        |batch| batch.num_logprobs = vec![None, Some(0)],
        |batch| batch.state_slots = vec![1, 3],
    ];
    for change in changes {
        let mut rig = Rig::new(1);
        rig.follow(&decode(1, &[(2, 40), (0, 3)]));
        let mut next = decode(1, &[(2, 41), (0, 4)]);
        change(&mut next);
        assert_eq!(rig.sent(&next), []);
    }
    let mut rig = Rig::new(1);
    rig.follow(&Batch { sample_later: true, ..decode(1, &[(2, 40)]) });
    assert_eq!(rig.sent(&decode(1, &[(2, 41)])), [], "the masks of a step do not stay");
    assert_eq!(rig.sent(&decode(1, &[(2, 50)])), [], "a jump");
    assert_eq!((rig.1.changes.rows[0].length, rig.1.changes.rows[0].is_new), (50, 1));
}

/// Behind a picture, a position is smaller than the number of tokens.
#[test]
fn a_slot_keeps_how_far_positions_lie_behind() {
    let at = |position: u32, length: u32| Batch { positions: vec![position], ..decode(1, &[(2, length)]) };
    let mut rig = Rig::new(1);
    rig.follow(&at(22, 40));
    assert_eq!((rig.1.changes.rows[0].length, rig.1.changes.rows[0].position), (40, 22));
    assert_eq!(rig.follow(&at(23, 41)).source, sys::PEN_FROM_SLOTS);
    assert_eq!(rig.sent(&at(20, 42)), [], "another distance");
    assert_eq!(rig.1.changes.rows[0].position, 20);
    let grid = Batch { grid_positions: vec![[5, 7]], ..at(21, 43) };
    assert_eq!(rig.follow(&grid).source, sys::PEN_FROM_ARRAYS);
    let limits = limits(1);
    let mut others = DeviceSlots::new(&limits.kv, limits.max_slots, true, false);
    assert_eq!(others.follow(limits.check(&at(22, 40)).unwrap()).source, sys::PEN_FROM_ARRAYS, "rows of the model share no positions");
    let mut first = DeviceSlots::new(&limits.kv, limits.max_slots, false, true);
    assert_eq!(first.follow(limits.check(&at(40, 40)).unwrap()).source, sys::PEN_FROM_ARRAYS, "nothing is sampled");
}

#[test]
fn another_kind_of_step_comes_from_arrays_and_leaves_the_slots_as_they_are() {
    let mut rig = Rig::new(1);
    rig.follow(&decode(1, &[(2, 40)]));
    let prompt = Batch {
        inputs: vec![Input::Token(1); 2],
        positions: vec![41, 42],
        cu_seqlens_q: vec![0, 2],
        context_lens: vec![43],
        slot_mapping: vec![17 * 32 + 9, 17 * 32 + 10],
        sampled_rows: Vec::new(),
        ..decode(1, &[(2, 42)])
    };
    assert_eq!(rig.follow(&prompt).source, sys::PEN_FROM_ARRAYS);
    assert_eq!(rig.sent(&decode(1, &[(2, 43)])), []);
    assert_eq!(rig.1.changes.rows[0].length, 43);
    let typed = Batch { token_types: vec![0], ..decode(1, &[(2, 44)]) };
    assert_eq!(rig.follow(&typed).source, sys::PEN_FROM_ARRAYS);
    let elsewhere = Batch { slot_mapping: vec![5], ..decode(1, &[(2, 44)]) };
    assert_eq!(rig.follow(&elsewhere).source, sys::PEN_FROM_ARRAYS);
}

#[test]
fn blocks_that_a_window_has_left_are_not_sent() {
    let mut rig = Rig::new(2);
    let mut batch = decode(2, &[(1, 130)]);
    // Row 130 sees from position 91 on, and entries before that position's block are 0.
    batch.block_tables[8..10].fill(0);
    assert_eq!(rig.sent(&batch), [(1, 0, 0, vec![8, 9, 10, 11, 12]), (1, 1, 2, vec![42, 43, 44])]);
    let mut next = decode(2, &[(1, 131)]);
    next.block_tables[8..10].fill(0);
    assert_eq!(rig.follow(&next).source, sys::PEN_FROM_SLOTS);
}

#[test]
fn after_a_failure_everything_is_sent_again() {
    let mut rig = Rig::new(1);
    rig.follow(&decode(1, &[(2, 40)]));
    rig.1.forget();
    assert_eq!(rig.sent(&decode(1, &[(2, 41)])), [(2, 0, 0, vec![16, 17])]);
    let other = Batch { block_tables: (24..32).collect(), slot_mapping: vec![25 * 32 + 10], ..decode(1, &[(2, 42)]) };
    assert_eq!(rig.sent(&other), [(2, 0, 0, vec![24, 25])], "a slot with other blocks");
}

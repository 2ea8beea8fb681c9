//! Each fault of a batch is found and named.

use super::*;
use crate::{Pooling, Scored, VectorRequest};

fn limits() -> Limits {
    Limits {
        kv: KvCapacity { num_state_slots: 4, ..KvCapacity::blocks(4, 4) },
        num_backed: 3,
        vocab_size: 10,
        embedding_width: 2,
        num_token_types: 2,
        max_slots: 2,
        max_batch_tokens: 4,
        max_context: 6,
        bidirectional: false,
        refuses_rows: None,
        max_adapters: 0,
        loops: None,
        refuses_grids: None,
    }
}

/// Two sequences: three rows of a prompt, and one that continues sequence slot 1 at position 4.
fn batch() -> Batch {
    Batch {
        inputs: vec![Input::Token(0), Input::Embedding(1), Input::Token(3), Input::Sampled(1)],
        positions: vec![0, 1, 2, 4],
        cu_seqlens_q: vec![0, 3, 4],
        context_lens: vec![3, 5],
        slot_mapping: vec![8, 9, 10, 4],
        block_tables: vec![2, 0, 0, 1],
        max_blocks: 2,
        sequence_slots: vec![0, 1],
        state_slots: vec![3, 0],
        sampled_rows: vec![0, 2, 3],
        num_logprobs: vec![None, Some(20), None],
        copies: vec![(1, 2)],
        state_copies: vec![(1, 3)],
        embeddings: vec![0.5; 4],
        scored: vec![Scored { row: 0, id: 9, num_logprobs: 0 }, Scored { row: 2, id: 0, num_logprobs: 20 }],
        vectors: vec![None, Some(VectorRequest { pooling: Pooling::Mean, complete: true })],
        ..Batch::default()
    }
}

#[test]
fn a_fault_is_named() {
    limits().check(&batch()).unwrap();
    type Spoil = fn(&mut Batch);
    let cases: [(&str, Spoil); 37] = [
        ("length", |b| b.sequence_slots.truncate(1)),
        ("length", |b| b.positions.truncate(1)),
        ("length", |b| b.cu_seqlens_q.clear()),
        ("do not fit", |b| b.max_blocks = 1),
        ("a sequence slot twice, or one that does not exist", |b| b.sequence_slots[0] = 2),
        ("a sequence slot twice", |b| b.sequence_slots[0] = 1),
        ("vocabulary", |b| b.inputs[0] = Input::Token(10)),
        ("does not exist", |b| b.inputs[1] = Input::Sampled(2)),
        ("does not exist", |b| b.inputs[1] = Input::Embedding(2)),
        ("5 floats are not whole embeddings of 2 floats", |b| b.embeddings.push(0.0)),
        ("token types are not one per row", |b| b.token_types = vec![1]),
        ("token type 2, but the model has 2 types", |b| b.token_types = vec![0, 1, 2, 0]),
        ("twice or outside", |b| b.slot_mapping[0] = 9),
        ("twice or outside", |b| b.slot_mapping[0] = 12),
        ("names a block", |b| b.block_tables[3] = 3),
        ("rows 0..2", |b| (b.cu_seqlens_q[1], b.context_lens[0]) = (2, 1)),
        ("expected at most 6", |b| b.context_lens[1] = 7),
        ("a position", |b| b.positions[3] = 5),
        ("copies a block", |b| b.copies = vec![(0, 3)]),
        ("copies a block", |b| b.copies = vec![(2, 1), (1, 0)]),
        ("copies a block", |b| b.copies = vec![(2, 1), (0, 1)]),
        ("copies a block", |b| b.copies = vec![(1, 1)]),
        ("1 state slots, expected 2", |b| b.state_slots.truncate(1)),
        ("a state slot twice", |b| b.state_slots[0] = 0),
        ("a state slot twice, or one that does not exist", |b| b.state_slots[0] = 4),
        ("copies a state slot", |b| b.state_copies[0].1 = 4),
        ("copies a state slot", |b| b.state_copies.push((2, 3))),
        ("sampled rows", |b| b.sampled_rows[2] = 4),
        ("sampled rows", |b| b.sampled_rows[1] = 0),
        ("one per sampled row", |b| b.num_logprobs.truncate(2)),
        ("21 log-probabilities", |b| b.num_logprobs[1] = Some(21)),
        ("row 4 with token 0", |b| b.scored[1].row = 4),
        ("row 0 with token 10", |b| b.scored[0].id = 10),
        ("not in order", |b| b.scored[1].row = 0),
        ("more than 20 log", |b| b.scored[1].num_logprobs = 21),
        ("one per sequence", |b| b.vectors.truncate(1)),
        ("5 rows", |b| {
            b.inputs.push(Input::Token(1));
            b.positions.push(5);
            b.slot_mapping.push(5);
        }),
    ];
    for (what, spoil) in cases {
        let mut spoilt = batch();
        spoil(&mut spoilt);
        let error = limits().check(&spoilt).expect_err(what).to_string();
        assert!(error.starts_with("invalid batch: ") && error.contains(what), "{what}: {error}");
        limits().check(&batch()).expect("a refused batch leaves nothing behind");
    }
}

#[test]
fn a_model_without_recurrent_state_has_no_state_slots() {
    let limits = Limits { kv: KvCapacity::blocks(3, 4), ..limits() };
    let error = limits.check(&batch()).unwrap_err().to_string();
    assert!(error.contains("2 state slots, expected 0"), "{error}");
    let mut plain = Batch { state_slots: Vec::new(), ..batch() };
    assert!(limits.check(&plain).unwrap_err().to_string().contains("copies a state slot"));
    plain.state_copies.clear();
    limits.check(&plain).unwrap();
}

#[test]
fn rows_with_three_positions_are_refused_where_a_model_rotates_by_one() {
    let grid = |rows| Batch { grid_positions: vec![[9; 2]; rows], ..batch() };
    limits().check(&grid(4)).unwrap();
    assert!(limits().check(&grid(3)).unwrap_err().to_string().contains("third positions are not one per row"));
    let limits = Limits { loops: None, refuses_grids: Some("so it is"), ..limits() };
    assert!(matches!(limits.check(&grid(4)), Err(EngineError::Unsupported(what)) if what == "rows with three positions: so it is"));
    limits.check(&batch()).unwrap();
}

#[test]
fn a_fault_of_masks_is_named() {
    let masks = || Masks { words: vec![1, 2], of: vec![None, Some(1)] };
    limits().check_masks(&masks(), 2).unwrap();
    for (what, spoilt) in [
        ("masks for 3 rows, expected 2", Masks { of: vec![None; 3], ..masks() }),
        ("3 words are not masks", Masks { words: vec![1; 3], ..masks() }),
        ("names a mask", Masks { of: vec![Some(2), None], ..masks() }),
    ] {
        let error = limits().check_masks(&spoilt, 2).unwrap_err().to_string();
        assert!(error.contains(what), "{what}: {error}");
    }
    let wide = Limits { vocab_size: 40, ..limits() };
    let error = wide.check_masks(&Masks { words: vec![1; 3], ..masks() }, 2).unwrap_err().to_string();
    assert!(error.contains("3 words are not masks of 40 ids"), "a mask and a half: {error}");
}

/// The batch's plain arrays, each with the lowest value that no element may have.
#[allow(clippy::type_complexity, reason = "a table used once")]
const ARRAYS: [(&str, fn(&mut Batch) -> &mut Vec<u32>, u32); 8] = [
    ("positions", |b| &mut b.positions, 6),
    ("cu_seqlens_q", |b| &mut b.cu_seqlens_q, 5),
    ("context_lens", |b| &mut b.context_lens, 7),
    ("slot_mapping", |b| &mut b.slot_mapping, 12),
    ("block_tables", |b| &mut b.block_tables, 3),
    ("engine_slots", |b| &mut b.sequence_slots, 2),
    ("state_slots", |b| &mut b.state_slots, 4),
    ("sampled_rows", |b| &mut b.sampled_rows, 4),
];

#[test]
fn an_index_out_of_range_is_refused_wherever_it_stands() {
    for (name, array, limit) in ARRAYS {
        for at in 0..array(&mut batch()).len() {
            for value in [limit, limit + 1, i32::MAX as u32, u32::MAX] {
                let mut spoilt = batch();
                array(&mut spoilt)[at] = value;
                assert!(limits().check(&spoilt).is_err(), "{name}[{at}] = {value}");
            }
        }
    }
    for row in 0..4 {
        for input in [Input::Token(10), Input::Token(u32::MAX), Input::Sampled(2), Input::Embedding(2), Input::Embedding(u32::MAX)] {
            let mut spoilt = batch();
            spoilt.inputs[row] = input;
            assert!(limits().check(&spoilt).is_err(), "row {row}: {input:?}");
        }
    }
}

#[test]
fn an_array_of_another_length_is_refused() {
    for (name, array, _) in ARRAYS.into_iter().filter(|(name, ..)| *name != "sampled_rows") {
        for change in [|list: &mut Vec<u32>| list.truncate(list.len() - 1), |list: &mut Vec<u32>| list.push(list[0])] {
            let mut spoilt = batch();
            change(array(&mut spoilt));
            assert!(limits().check(&spoilt).is_err(), "{name} has {} entries", array(&mut spoilt).len());
        }
    }
}

/// A loop of four steps: sequence slot 1 has room for all of them, and sequence slot 0 for the first one.
fn looped() -> Batch {
    Batch {
        inputs: vec![Input::Token(1), Input::Sampled(1)],
        positions: vec![3, 2],
        cu_seqlens_q: vec![0, 1, 2],
        context_lens: vec![4, 3],
        slot_mapping: vec![11, 2],
        block_tables: vec![2, 0, 0, 1],
        max_blocks: 2,
        sequence_slots: vec![0, 1],
        state_slots: vec![3, 0],
        sampled_rows: vec![0, 1],
        loop_steps: 4,
        rooms: vec![4, 6],
        ..Batch::default()
    }
}

#[test]
fn a_loop_is_checked_beyond_its_first_step() {
    let limits = Limits { loops: Some(LoopLimits { most_steps: 8, turn: 2, most_seqs: 2 }), ..limits() };
    limits.check(&looped()).unwrap();
    type Spoil = fn(&mut Batch);
    let cases: [(&str, Spoil); 11] = [
        ("a loop of 3 steps of 2 sequences", |b| b.loop_steps = 3),
        ("a loop of 10 steps", |b| b.loop_steps = 10),
        ("rooms for one step", |b| b.loop_steps = 0),
        ("nothing else", |b| b.rooms.truncate(1)),
        ("nothing else", |b| b.sampled_rows.truncate(1)),
        ("nothing else", |b| b.num_logprobs = vec![None, Some(0)]),
        ("nothing else", |b| b.sample_later = true),
        ("nothing else", |b| b.copies = vec![(1, 2)]),
        ("sequence 0 has room for 3 tokens", |b| b.rooms[0] = 3),
        ("sequence 1 has room for 7 tokens", |b| b.rooms[1] = 7),
        ("write to one block", |b| b.block_tables[3] = 2),
    ];
    for (text, spoil) in cases {
        let mut batch = looped();
        spoil(&mut batch);
        let error = limits.check(&batch).unwrap_err().to_string();
        assert!(error.contains(text), "{error}, expected {text}");
    }
    assert!(Limits { loops: None, ..limits }.check(&looped()).unwrap_err().to_string().contains("no loops"));
}

//! Items against a list of them, one by one.

use super::*;
use crate::testing::run;
use proptest::prelude::*;

/// An item written out: a token's id, or the source and the index of a row; and its positions.
type Plain = (Result<u32, (u8, usize)>, [u32; 3]);

#[derive(Clone, Debug)]
struct Part {
    num_tokens: usize,
    /// The rows, as a grid of this size or in a line.
    run: Option<([u32; 2], bool, bool)>,
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let run = (1..5u32, 1..5u32, any::<bool>(), any::<bool>());
    let run = run.prop_map(|(height, width, is_grid, is_whole)| ([height, width], is_grid, is_whole));
    let part = (0..4usize, proptest::option::of(run)).prop_map(|(num_tokens, run)| Part { num_tokens, run });
    proptest::collection::vec(part, 0..7)
}

/// The items of the parts, the same items one by one, and the ranges that must not be cut.
fn built(parts: &[Part]) -> (Items, Vec<Plain>, Vec<Range<usize>>) {
    let (mut first, mut runs, mut plain, mut uncut) = (Vec::new(), Vec::<(RowRun, Vec<u32>)>::new(), Vec::new(), Vec::new());
    let (mut next_id, mut position) = (0, 0);
    for (source, part) in parts.iter().enumerate() {
        for _ in 0..part.num_tokens {
            runs.last_mut().map_or(&mut first, |(_, ids)| ids).push(next_id);
            plain.push((Ok(next_id), [position; 3]));
            (next_id, position) = (next_id + 1, position + 1);
        }
        let Some(([height, width], is_grid, is_whole)) = part.run else { continue };
        let (start, num_rows) = (plain.len(), (height * width) as usize);
        let layout = if is_grid { Layout::Grid { height, width } } else { Layout::Line };
        runs.push((run(source as u8, num_rows, layout, is_whole), Vec::new()));
        for row in 0..height * width {
            let at = if is_grid { [position, position + row / width, position + row % width] } else { [position + row; 3] };
            plain.push((Err((source as u8, row as usize)), at));
        }
        position += if is_grid { height.max(width) } else { height * width };
        uncut.extend(is_whole.then_some(start..plain.len()));
    }
    let items = Items::with_runs(first, runs);
    assert_eq!((items.len(), items.next_position()), (plain.len(), position));
    (items, plain, uncut)
}

/// The items of segments, one by one.
fn written_out<'a>(segments: impl Iterator<Item = Segment<'a>>) -> Vec<Plain> {
    let mut plain = Vec::new();
    for segment in segments {
        match segment {
            Segment::Tokens { ids, position } => plain.extend(ids.iter().zip(position..).map(|(&id, at)| (Ok(id), [at; 3]))),
            Segment::Rows { run, rows } => plain.extend(rows.map(|row| {
                let at = match run.run.layout {
                    Layout::Line => [run.position + row as u32; 3],
                    Layout::Grid { width, .. } => [0, row as u32 / width, row as u32 % width].map(|offset| run.position + offset),
                };
                (Err((run.run.source[0], row)), at)
            })),
            Segment::Pending { .. } => panic!("a prompt is known"),
        }
    }
    plain
}

proptest! {
    #[test]
    fn segments_of_any_range_are_its_items(parts in parts(), a in 0..60usize, b in 0..60usize) {
        let (items, plain, _) = built(&parts);
        let range = a.min(b).min(plain.len())..a.max(b).min(plain.len());
        prop_assert_eq!(written_out(items.segments(range.clone())), &plain[range]);
    }

    #[test]
    fn boundaries_never_cut_a_whole_run_and_chunks_of_any_size_cover_a_prompt(parts in parts(), wanted in 1..20usize) {
        let (items, plain, uncut) = built(&parts);
        let is_boundary = |index: usize| !uncut.iter().any(|run| run.start < index && index < run.end);
        for index in 0..plain.len() + 3 {
            let expected = (0..=index).rev().find(|&index| is_boundary(index)).unwrap();
            prop_assert_eq!(items.boundary_before(index), expected);
        }
        let mut start = 0;
        while start < plain.len() {
            let together = items.num_together(start);
            prop_assert!(together <= items.most_together() && (1..together).all(|rows| !is_boundary(start + rows)));
            let end = items.boundary_before((start + wanted.max(together)).min(plain.len()));
            prop_assert!(end > start && is_boundary(end));
            start = end;
        }
    }
}

#[test]
fn items_that_all_see_each_other_have_no_boundary_between_them() {
    let items = Items::text(vec![1, 2, 3, 4]).whole();
    assert_eq!([0, 1, 3, 4, 5].map(|index| items.boundary_before(index)), [0, 0, 0, 4, 5]);
    assert_eq!((items.num_together(0), items.most_together()), (4, 4));
}

#[test]
fn a_run_that_is_not_what_it_claims_is_named() {
    let line = run(1, 6, Layout::Line, false);
    let error = |run: RowRun| Items::with_runs(vec![1], [(run, vec![2])]).check().unwrap_err();
    Items::with_runs(vec![], [(line.clone(), vec![])]).check().unwrap();
    assert_eq!(error(RowRun { num_rows: 5, ..line.clone() }), "12 floats are not 5 rows of embeddings");
    assert_eq!(error(RowRun { num_rows: 0, ..line.clone() }), "12 floats are not 0 rows of embeddings");
    let layout = Layout::Grid { height: 2, width: 4 };
    assert_eq!(error(RowRun { layout, ..line }), "a grid of 2 × 4 has 6 rows of embeddings");
}

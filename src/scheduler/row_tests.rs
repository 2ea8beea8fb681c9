//! Prompts with rows of embeddings, step by step against the test engine.

use crate::items::{Items, Layout, RowRun};
use crate::testing::{Rig, options, params, run, sequence};
use crate::{Event, NewSequence, SchedulerOptions, SequenceGroup};
use engine::EngineError;

const GRID: Layout = Layout::Grid { height: 2, width: 5 };

fn of(items: Items, max_tokens: u32) -> NewSequence {
    NewSequence::new(items, params(1), max_tokens)
}

/// Five tokens, a run, and six tokens that begin with `then`.
fn around(run: RowRun, then: u32) -> Items {
    Items::with_runs(vec![1, 2, 3, 4, 5], [(run, (then..then + 6).collect())])
}

#[test]
fn a_prefix_is_reused_if_the_runs_are_the_same() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::new(64, max_in_flight, options(32, 4));
        let mut cached = |items: Items| {
            let client = rig.run(of(items, 3));
            rig.clients[client].seen.cached()
        };
        let line = run(7, 10, Layout::Line, false);
        assert_eq!(cached(around(line.clone(), 20)), 0);
        assert_eq!(cached(around(line.clone(), 20)), 20);
        assert_eq!(cached(around(line.clone(), 30)), 12, "the fourth block holds the token after the run");
        assert_eq!(cached(around(run(8, 10, Layout::Line, false), 20)), 4, "another source");
        assert_eq!(cached(around(run(7, 10, GRID, false), 20)), 4, "other positions");
        assert_eq!(cached(Items::text((1..22).collect())), 4);
    }
}

#[test]
fn a_cached_prefix_does_not_end_between_rows_that_see_each_other() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::new(64, max_in_flight, options(32, 4));
        let mut cached = |items: Items| {
            let client = rig.run(of(items, 3));
            rig.clients[client].seen.cached()
        };
        // The run is at 5..15, so the borders at 8 and at 12 would cut it.
        let whole = run(7, 10, GRID, true);
        assert_eq!(cached(around(whole.clone(), 20)), 0);
        assert_eq!(cached(around(whole.clone(), 20)), 20);
        assert_eq!(cached(around(whole, 30)), 4);
    }
}

#[test]
fn chunks_of_any_size_give_the_same_text() {
    for (layout, is_whole) in [(Layout::Line, false), (Layout::Line, true), (GRID, false), (GRID, true)] {
        for max_rows in (10..24).step_by(if cfg!(miri) { 6 } else { 1 }) {
            let mut rig = Rig::new(64, 2, options(max_rows, 4));
            let runs = [3, 4, 3].map(|source| (run(source, 10, layout, is_whole), vec![u32::from(source); 3]));
            rig.run(of(Items::with_runs(vec![9; 7], runs), 12));
        }
    }
}

#[test]
fn a_whole_run_longer_than_a_step_is_refused_by_name() {
    let mut rig = Rig::new(64, 1, options(9, 4));
    let client = rig.enqueue(of(around(run(1, 10, GRID, true), 20), 3));
    rig.step().unwrap();
    let Some(Event::Failed(why)) = &rig.clients[client].seen.last else { panic!("it ran") };
    assert_eq!(why, "10 rows of the prompt must run in one step, and a step has at most 9 rows: raise max_batch_tokens");
    rig.run(of(around(run(1, 10, GRID, false), 20), 3));
}

#[test]
fn what_cannot_be_computed_is_refused_by_name() {
    let mut rig = Rig::new(64, 1, options(16, 4));
    let scored = NewSequence { score_prompt: Some(0), ..of(around(run(1, 10, GRID, false), 20), 3) };
    let wrong = of(around(RowRun { num_rows: 9, ..run(1, 10, GRID, false) }, 20), 3);
    for (new, expected) in [(scored, "only if all of it is text"), (wrong, "20 floats are not 9 rows")] {
        let client = rig.enqueue(new);
        rig.step().unwrap();
        assert!(matches!(&rig.clients[client].seen.last, Some(Event::Failed(why)) if why.contains(expected)), "{expected}");
    }
}

#[test]
fn a_whole_run_gets_its_step_however_many_sequences_decode() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::new(256, max_in_flight, options(16, 12));
        let decoding: Vec<usize> = (0..10).map(|i| rig.enqueue(sequence(vec![i; 3], 60))).collect();
        (0..12).for_each(|_| rig.step().unwrap());
        let length = |rig: &Rig| rig.clients[decoding[0]].seen.tokens.len();
        let before = length(&rig);
        let runs = [1, 2, 3].map(|source| (run(source, 15, Layout::Line, true), vec![4; 5]));
        let client = rig.enqueue(of(Items::with_runs(vec![], runs), 1));
        let mut steps = 0;
        while rig.clients[client].seen.last.is_none() {
            rig.step().unwrap();
            steps += 1;
        }
        assert!(steps < 20, "{steps} steps for three runs");
        assert!(length(&rig) - before + 2 >= steps / 2, "the others decode at least in every second step");
        rig.finish();
        decoding.into_iter().chain([client]).for_each(|client| rig.assert_solo(client));
    }
}

#[test]
fn a_preempted_prompt_with_runs_is_computed_again() {
    for max_in_flight in [1, 2] {
        for prefix_cache in [true, false] {
            let mut rig = Rig::new(16, max_in_flight, SchedulerOptions { prefix_cache, ..options(32, 4) });
            let clients = [1, 2, 3].map(|source| rig.enqueue(of(around(run(source, 10, GRID, true), 20), 16)));
            rig.finish();
            assert!(rig.metrics().num_preemptions_total.get() > 0);
            clients.into_iter().for_each(|client| rig.assert_solo(client));
        }
    }
}

#[test]
fn members_of_a_group_share_what_comes_before_a_whole_run_at_the_end() {
    for max_in_flight in [1, 2] {
        // At step 2, the blocks to copy are those of the forks.
        for fault in [None, Some(1), Some(2), Some(3)] {
            for tail in [vec![], vec![8]] {
                let mut rig = Rig::new(64, max_in_flight, options(32, 8));
                let items = Items::with_runs(vec![1, 2, 3, 4, 5], [(run(1, 9, Layout::Line, true), tail)]);
                let sequence_group = Some(SequenceGroup::unique());
                let member = |seed| NewSequence { sequence_group, params: params(seed), ..of(items.clone(), 6) };
                let clients = [0, 1, 2].map(|seed| rig.enqueue(member(seed)));
                rig.control.lock().unwrap().fault = fault.map(|at| (at, Some(EngineError::OutOfMemory("no room".into()))));
                while rig.scheduler.has_work() {
                    let _ = rig.step();
                }
                rig.check_baseline();
                let failed = |client: &usize| matches!(rig.clients[*client].seen.last, Some(Event::Failed(_)));
                assert!(clients.iter().filter(|client| failed(client)).count() <= 1);
                clients.iter().filter(|client| !failed(client)).for_each(|&client| rig.assert_solo(client));
            }
        }
    }
}

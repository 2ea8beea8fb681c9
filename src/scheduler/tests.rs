//! The scheduler without its thread, step by step against the test engine.

use std::sync::Arc;

use crate::cache_size::Cost;
use crate::drafts::draft_model::DraftEngine;
use crate::fake::{BLOCK_BYTES, FakeEngine, NAN_SEED, VOCAB, fake_adapter, solo_run};
use crate::guesser::Engines;
use crate::random::{Pools, Random, random_adapters, random_groups, with_runs};
use crate::testing::{Rig, drafted, options, params, sequence};
use crate::{DraftOptions, Event, FinishReason, NewSequence, Pooling, SchedulerOptions, SequenceGroup};
use engine::{Engine, EngineError, KvCapacity};

/// Enqueues a random sequence, in some cases with further members of its sequence group. Returns the number of sequences.
fn enqueue_random(rig: &mut Rig, random: &mut Random, pools: &Pools, (kind, max_rows): (Kind, usize)) -> u32 {
    let mut prompt = pools.bases[random.below(3) as usize][..random.below(30) as usize].to_vec();
    prompt.extend((0..1 + random.below(12)).map(|_| random.below(VOCAB)));
    let mut new = sequence(prompt, 1 + random.below(40));
    // With few seeds, whole generations are shared too.
    new.params = params(u64::from(random.below(3)));
    new.stop_ids = (0..random.below(3)).collect();
    new.cache_salt = u64::from(random.below(5) / 4);
    new.num_logprobs = (random.below(4) == 0).then(|| random.below(21) as u8);
    match random.below(8) {
        0 => (new.max_tokens, new.pool) = (0, Some([Pooling::First, Pooling::Last, Pooling::Mean][random.below(3) as usize])),
        1 => (new.max_tokens, new.score_prompt) = (random.below(2) * new.max_tokens, Some(random.below(6) as u8)),
        _ => {}
    }
    if kind.rows && new.pool.is_none() && new.score_prompt.is_none() && random.below(3) > 0 {
        new.prompt = with_runs(new.prompt.tokens(), random, max_rows);
    }
    if kind.adapters && new.pool.is_none() && new.score_prompt.is_none() {
        new.adapters = random_adapters(random, pools, new.prompt.len());
    }
    // Some sequence groups ask for the scores of their prompt, and some are cancelled one by one.
    let num_relatives = if new.pool.is_none() && random.below(5) == 0 { random.below(6) } else { 0 };
    new.sequence_group = (num_relatives > 0).then(SequenceGroup::unique);
    let mut request = vec![new.clone()];
    for _ in 0..num_relatives {
        let relative = NewSequence { score_prompt: None, max_tokens: new.max_tokens.max(1), ..new.clone() };
        request.push(NewSequence { params: params(u64::from(random.below(3))), ..relative });
    }
    // Some requests have further prompts. Some sequences are requests of their own.
    if random.below(4) == 0 {
        let prompt: Vec<u32> = (0..1 + random.below(30)).map(|_| random.below(VOCAB)).collect();
        request.extend((0..random.below(8)).map(|i| sequence([prompt.clone(), vec![i]].concat(), 1 + i)));
    }
    let count = request.len() as u32;
    // Without a known answer, the draft head or the draft model guesses, and the context.
    let is_known = |i: usize| !(kind.head || kind.model) || i.is_multiple_of(3);
    let draft = |(i, new): (usize, NewSequence)| match is_known(i) {
        true => drafted(new, [0.0, 0.5, 0.95, 1.0][i % 4], &rig.capacity),
        false => new,
    };
    let request: Vec<NewSequence> = request.into_iter().enumerate().map(|(i, new)| draft((rig.clients.len() + i, new))).collect();
    if random.below(4) == 0 {
        request.into_iter().for_each(|new| _ = rig.enqueue(new));
    } else {
        rig.enqueue_request(request);
    }
    count
}

/// The kind of model that a trace runs.
#[derive(Clone, Copy, Debug, Default)]
struct Kind {
    recurrent: bool,
    /// Whether there are cache groups with windows.
    windows: bool,
    /// Whether the cache's memory grows and shrinks.
    grows: bool,
    /// Whether prompts have rows of embeddings.
    rows: bool,
    /// Whether there is a draft head.
    head: bool,
    /// Whether there is a draft model.
    model: bool,
    /// Whether sequences have adapters.
    adapters: bool,
}

/// Changes the available memory, or asks the cache to give some back.
fn change_memory(rig: &mut Rig, random: &mut Random, num_blocks: u32) {
    match random.below(3) {
        0 => {
            let cost = [Cost::Nothing, Cost::Contents, Cost::Sequences][random.below(3) as usize];
            rig.scheduler.give_back(u64::from(random.below(num_blocks)) * BLOCK_BYTES, cost).unwrap();
            rig.scheduler.check();
        }
        1 => rig.control.lock().unwrap().memory = Some(random.below(num_blocks) as usize),
        _ => rig.control.lock().unwrap().memory = None,
    }
}

/// Compares what each client saw with its solo run. Returns how many sequences a stop id ended.
fn check_clients(rig: &Rig, kind: Kind) -> u64 {
    let mut stops = 0;
    for (index, client) in rig.clients.iter().enumerate() {
        if matches!(&client.seen.last, Some(Event::Failed(why)) if kind.rows && why.contains("too few blocks")) {
            continue;
        }
        if matches!(&client.seen.last, Some(Event::Failed(why)) if why.contains("adapter 0 cannot be loaded")) {
            assert!(client.new.adapters.iter().any(|of| &*of.adapter.name == "adapter 0"));
            continue;
        }
        if client.events.is_some() {
            rig.assert_solo(index);
            stops += u64::from(matches!(client.seen.last, Some(Event::Finished { reason: FinishReason::Stop, .. })));
        } else {
            let (tokens, _) = solo_run(&client.new, &rig.capacity);
            assert!(tokens.starts_with(&client.seen.tokens), "a cancelled sequence's tokens begin its solo run");
        }
    }
    stops
}

/// A draft model for a model with this cache, whose own cache may be too small for some sequences, and which may fail in some step.
fn random_draft_model(random: &mut Random, target: KvCapacity, max_running: usize) -> DraftEngine {
    let capacity = KvCapacity { num_state_slots: 0, num_blocks: 4 + random.below(80) as usize, ..target };
    let (engine, control) = FakeEngine::new(capacity, 1 + random.below(max_running as u32) as usize, 1);
    if random.below(4) == 0 {
        let error = (random.below(2) == 0).then(|| EngineError::Device("lost".into()));
        control.lock().unwrap().fault = Some((u64::from(random.below(200)), error));
    }
    engine.backed(2).into_draft(0.05)
}

/// Runs one random trace. Returns the numbers of preemptions, prefix hits, cancels, stops, copied blocks and copied states, and the
/// number of right drafts.
fn random_trace(seed: u64, kind: Kind) -> ([u64; 6], u64) {
    let mut random = Random(seed, 0);
    let max_running = 1 + random.below(12) as usize;
    let options = SchedulerOptions {
        max_batch_tokens: max_running + random.below(24) as usize,
        max_running,
        max_waiting: 1000,
        max_waiting_tokens: 0,
        prefix_cache: random.below(4) > 0,
        drafts: true,
    };
    let max_batch_tokens = options.max_batch_tokens;
    let mut capacity = KvCapacity::blocks(16 + random.below(50) as usize, 4);
    let max_in_flight = if kind.head || kind.model { 1 } else { 1 + (seed % 2) as usize };
    if kind.recurrent {
        capacity.num_state_slots = 1 + random.below(24) as usize;
    }
    if kind.windows {
        capacity.groups = random_groups(&mut random);
        capacity.num_blocks += 12 * (capacity.groups.len() - 1);
    }
    let num_blocks = capacity.num_blocks;
    let (engine, control) = FakeEngine::new(capacity, max_running, max_in_flight);
    let engine = engine.backed(if kind.grows { 2 } else { num_blocks });
    let draft = kind.model.then(|| random_draft_model(&mut random, engine.kv_capacity(), max_running));
    let engine = if kind.head { engine.with_draft_head() } else { engine };
    let mut rig = Rig::of_both(Engines { engine: Box::new(engine), draft }, control, options);
    let bases = (0..3).map(|_| (0..30).map(|_| random.below(VOCAB)).collect()).collect();
    let pools = Pools { bases, adapters: (0..6).map(fake_adapter).map(Arc::new).collect() };
    let total = if cfg!(miri) { 12 } else { 64 + random.below(137) };
    let (mut queued, mut cancels) = (0, 0);
    while queued < total || rig.scheduler.has_work() {
        for _ in 0..random.below(4).min(total.saturating_sub(queued)) {
            queued += enqueue_random(&mut rig, &mut random, &pools, (kind, max_batch_tokens));
        }
        if kind.grows && random.below(6) == 0 {
            change_memory(&mut rig, &mut random, num_blocks as u32);
        }
        if random.below(6) == 0 {
            let victim = random.below(queued.max(1)) as usize;
            if let Some(client) = rig.clients.get_mut(victim)
                && client.seen.last.is_none()
                && client.events.take().is_some()
            {
                cancels += 1;
            }
        }
        rig.step().unwrap();
    }
    rig.check_baseline();
    let stops = check_clients(&rig, kind);
    let control = rig.control.lock().unwrap();
    assert!(control.max_rows <= max_batch_tokens, "the budget holds");
    let metrics = rig.metrics();
    let counters =
        [&metrics.spec_decode_num_draft_tokens_total, &metrics.spec_decode_num_accepted_tokens_total].map(|counter| counter.get());
    assert!(counters[0] >= counters[1] && (!kind.recurrent || max_in_flight == 1 || counters[0] == 0), "{counters:?}");
    let aborted = metrics.request_success_total.with_label_values(&["abort"]).get();
    // A cancel is too late if its sequence ended, unread, in the previous step.
    assert!(aborted <= cancels);
    let counts = [
        metrics.num_preemptions_total.get(),
        metrics.prefix_cache_hits_total.get(),
        aborted,
        stops,
        control.num_copies as u64,
        control.num_state_copies as u64,
    ];
    (counts, counters[1])
}

#[test]
fn every_sequence_of_a_random_trace_equals_its_solo_run() {
    let totals = sum_of_traces(0..120, Kind::default());
    assert_exercised(&totals, 5, 100);
}

#[test]
fn every_sequence_of_a_recurrent_model_equals_its_solo_run() {
    let totals = sum_of_traces(0..120, Kind { recurrent: true, ..Kind::default() });
    assert_exercised(&totals, 6, 30);
}

#[test]
fn every_sequence_of_a_model_with_windows_equals_its_solo_run() {
    for recurrent in [false, true] {
        let totals = sum_of_traces(0..160, Kind { recurrent, windows: true, ..Kind::default() });
        assert_exercised(&totals, if recurrent { 6 } else { 5 }, 30);
    }
}

/// Whole runs are never cut: the test engine fails if they are.
#[test]
fn every_sequence_of_prompts_with_rows_equals_its_solo_run() {
    for (recurrent, windows, grows) in [(false, false, false), (true, false, false), (false, true, false), (true, true, true)] {
        let totals = sum_of_traces(0..100, Kind { recurrent, windows, grows, rows: true, ..Kind::default() });
        assert_exercised(&totals, 5, 20);
    }
}

/// Sequences share blocks only if the same adapters have changed the same rows, and wait while all places of the engine are in use.
#[test]
fn every_sequence_with_adapters_equals_its_solo_run() {
    for (recurrent, windows, grows) in [(false, false, false), (true, false, false), (false, true, true)] {
        let totals = sum_of_traces(0..100, Kind { recurrent, windows, grows, adapters: true, ..Kind::default() });
        assert_exercised(&totals, 4, 20);
    }
}

/// A draft head is asked for the right places: the test engine fails otherwise.
#[test]
fn every_sequence_drafted_by_a_head_equals_its_solo_run() {
    for (windows, grows, rows) in [(false, false, false), (true, false, false), (false, true, true)] {
        let totals = sum_of_traces(0..80, Kind { windows, grows, rows, head: true, ..Kind::default() });
        assert_exercised(&totals, 5, 10);
    }
}

/// The draft model's cache is checked as that of any test engine: a wrong place or a block written too late fails there, and its guesses
/// would be wrong more often.
#[test]
fn every_sequence_drafted_by_a_model_equals_its_solo_run() {
    let kinds = [
        Kind::default(),
        Kind { windows: true, ..Kind::default() },
        Kind { windows: true, grows: true, rows: true, ..Kind::default() },
        Kind { adapters: true, grows: true, ..Kind::default() },
        Kind { recurrent: true, ..Kind::default() },
    ];
    for kind in kinds {
        let totals = sum_of_traces(0..80, Kind { model: true, ..kind });
        assert_exercised(&totals, 4, 10);
    }
}

#[test]
fn a_head_is_asked_while_it_is_right_and_lookups_are_not() {
    let (engine, control) = FakeEngine::new(KvCapacity::blocks(64, 4), 4, 1);
    let mut rig = Rig::of(engine.with_draft_head(), control, options(16, 4));
    rig.run(sequence((0..20).collect(), 100));
    let (num_asked, metrics) = (rig.control.lock().unwrap().num_asked, rig.metrics());
    let [drafted, right] = [&metrics.spec_decode_num_draft_tokens_total, &metrics.spec_decode_num_accepted_tokens_total];
    let (drafted, right) = (drafted.get(), right.get());
    assert!(num_asked > 20 && right > 30 && drafted > right, "asked {num_asked} times, {right} of {drafted} were right");
    // a request that wants none is not drafted
    let drafts = DraftOptions { most: Some(0), ..DraftOptions::default() };
    rig.run(NewSequence { drafts, ..sequence((0..21).collect(), 50) });
    assert_eq!(rig.control.lock().unwrap().num_asked, num_asked);
}

/// Growing the cache and giving memory back at any moment changes no result.
#[test]
fn every_sequence_equals_its_solo_run_while_the_cache_grows_and_shrinks() {
    for (recurrent, windows) in [(false, false), (true, false), (false, true)] {
        let totals = sum_of_traces(0..60, Kind { recurrent, windows, grows: true, ..Kind::default() });
        assert_exercised(&totals, 5, 20);
    }
}

#[test]
fn a_cache_grows_with_what_it_holds_and_gives_back_what_is_idle() {
    let mut rig = Rig::growing(KvCapacity::blocks(64, 4), 2, 2, options(16, 8));
    let blocks = |rig: &Rig| rig.scheduler.sequences().blocks.num_backed();
    assert_eq!((blocks(&rig), rig.scheduler.cache_bytes()), (2, [0, 200, 6400]));
    rig.run(sequence((0..40).collect(), 8));
    let grown = blocks(&rig);
    assert!((12..24).contains(&grown), "{grown} blocks for 48 tokens and the rows of a step");
    assert!(rig.metrics().cache_growths_total.get() > 0 && rig.metrics().num_preemptions_total.get() == 0);
    rig.scheduler.give_back(u64::MAX, Cost::Nothing).unwrap();
    assert_eq!(blocks(&rig), 12, "cached contents stay");
    let again = rig.run(sequence((0..40).collect(), 1));
    assert_eq!(rig.clients[again].seen.cached(), 36);
    rig.scheduler.give_back(u64::MAX, Cost::Contents).unwrap();
    assert_eq!((blocks(&rig), rig.metrics().cache_give_backs_total.get()), (2, 2));
    let last = rig.run(sequence((0..40).collect(), 1));
    assert_eq!(rig.clients[last].seen.cached(), 8, "the least cache keeps what it holds");
}

/// A sequence that finds no memory waits and continues once there is some. Nothing fails.
#[test]
fn a_cache_without_memory_is_a_full_one() {
    let mut rig = Rig::growing(KvCapacity::blocks(64, 4), 4, 1, options(16, 8));
    rig.control.lock().unwrap().memory = Some(4);
    let short = rig.enqueue(sequence((0..8).collect(), 6));
    let long = rig.enqueue(sequence((0..30).collect(), 6));
    for _ in 0..40 {
        rig.step().unwrap();
    }
    rig.assert_solo(short);
    assert!(rig.clients[long].seen.last.is_none() && rig.clients[long].seen.tokens.is_empty(), "it waits");
    rig.control.lock().unwrap().memory = None;
    rig.finish();
    rig.assert_solo(long);
}

#[test]
fn sequences_give_way_if_another_model_is_entitled_to_their_memory() {
    let mut rig = Rig::growing(KvCapacity::blocks(64, 4), 2, 2, options(32, 8));
    let clients: Vec<usize> = (0..4).map(|i| rig.enqueue(sequence(vec![i; 20], 30))).collect();
    (0..6).for_each(|_| rig.step().unwrap());
    rig.scheduler.give_back(u64::MAX, Cost::Contents).unwrap();
    let before = rig.scheduler.sequences().blocks.num_backed();
    assert!(before > 20, "{before} blocks in use");
    assert_eq!(rig.scheduler.give_back(u64::MAX, Cost::Contents).unwrap(), 0);
    rig.control.lock().unwrap().memory = Some(10);
    let given = rig.scheduler.give_back((before as u64 - 10) * BLOCK_BYTES, Cost::Sequences).unwrap();
    rig.scheduler.check();
    assert_eq!((given / BLOCK_BYTES, rig.scheduler.sequences().blocks.num_backed()), (before as u64 - 10, 10));
    rig.control.lock().unwrap().memory = None;
    rig.finish();
    clients.iter().for_each(|&client| rig.assert_solo(client));
    assert!(rig.metrics().num_preemptions_total.get() > 0);
}

/// Sums over traces with one and with two steps in flight. Miri runs one short trace of each.
fn sum_of_traces(seeds: std::ops::Range<u64>, kind: Kind) -> [[u64; 6]; 2] {
    let (mut totals, mut num_right_drafts) = ([[0; 6]; 2], [0; 2]);
    for seed in if cfg!(miri) { 0..2 } else { seeds } {
        let (counts, num_right) = random_trace(seed, kind);
        totals[(seed % 2) as usize].iter_mut().zip(counts).for_each(|(total, count)| *total += count);
        num_right_drafts[(seed % 2) as usize] += num_right;
    }
    assert!(
        cfg!(miri) || num_right_drafts[..if kind.recurrent { 1 } else { 2 }].iter().all(|&n| n > 100),
        "the traces accept drafts: {num_right_drafts:?}"
    );
    totals
}

/// Asserts that each of the first `counted` events happened more than `least` times.
fn assert_exercised(totals: &[[u64; 6]; 2], counted: usize, least: u64) {
    println!("preemptions, prefix hits, cancels, stops, copies, copied states: {totals:?} with one and two steps in flight");
    let is_exercised = totals.iter().all(|totals| totals[..counted].iter().all(|&n| n > least));
    assert!(cfg!(miri) || is_exercised, "the traces exercise everything: {totals:?}");
}

#[test]
fn a_prefix_is_reused_only_under_its_salt_and_is_reported() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::new(32, max_in_flight, options(16, 4));
        let prompt: Vec<u32> = (0..16).collect();
        let first = rig.run(sequence(prompt.clone(), 5));
        assert_eq!(rig.clients[first].seen.cached(), 0);
        let rows_before = rig.control.lock().unwrap().num_rows;
        // 16 tokens fill four blocks, but the last token's logits must be computed.
        let again = rig.run(sequence(prompt.clone(), 1));
        assert_eq!(rig.clients[again].seen.cached(), 12);
        assert_eq!(rig.control.lock().unwrap().num_rows - rows_before, 4);
        let other = rig.run(NewSequence { cache_salt: 9, ..sequence(prompt.clone(), 1) });
        assert_eq!(rig.clients[other].seen.cached(), 0, "another salt");
        // The next turn of a conversation also finds the generated tokens: 16 + 5 tokens, the last of which was never computed.
        let reply = rig.clients[first].seen.tokens.clone();
        let next = rig.run(sequence([prompt, reply, vec![1, 2, 3]].concat(), 1));
        assert_eq!(rig.clients[next].seen.cached(), 20);
        let metrics = rig.metrics();
        assert_eq!((metrics.prefix_cache_queries_total.get(), metrics.prefix_cache_hits_total.get()), (16 * 3 + 24, 32));
    }
}

#[test]
fn without_a_prefix_cache_nothing_is_reused() {
    let mut rig = Rig::new(32, 1, SchedulerOptions { prefix_cache: false, ..options(16, 4) });
    for _ in 0..2 {
        let client = rig.run(sequence((0..16).collect(), 3));
        assert_eq!(rig.clients[client].seen.cached(), 0);
    }
    assert_eq!(rig.metrics().prefix_cache_queries_total.get(), 0);
}

#[test]
fn a_cancelled_sequence_frees_its_blocks_within_a_step() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::new(64, max_in_flight, options(8, 2));
        // One sequence decodes, one is inside its prompt, one waits.
        let clients = [
            rig.enqueue(sequence(vec![1; 5], 50)),
            rig.enqueue(sequence((0..40).map(|i| i % VOCAB).collect(), 50)),
            rig.enqueue(sequence(vec![3; 9], 50)),
        ];
        (0..3).for_each(|_| rig.step().unwrap());
        assert!(rig.scheduler.sequences().blocks.usage() > 0.0);
        assert_eq!(rig.state.num_active(), 3);
        assert_eq!((rig.scheduler.sequences().running.len(), rig.scheduler.sequences().num_waiting()), (2, 1));
        for client in clients {
            rig.clients[client].events = None;
        }
        rig.step().unwrap();
        assert_eq!((rig.scheduler.sequences().blocks.usage(), rig.state.num_active()), (0.0, 0));
        assert_eq!(rig.metrics().request_success_total.with_label_values(&["abort"]).get(), 3);
        rig.finish();
    }
}

#[test]
fn a_long_prompt_does_not_delay_decoding() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::new(200, max_in_flight, options(10, 4));
        let short = rig.enqueue(sequence(vec![1, 2], 60));
        (0..4).for_each(|_| rig.step().unwrap());
        let long = rig.enqueue(sequence((0..400).map(|i| i % 7).collect(), 2));
        for _ in 0..40 {
            let before = rig.clients[short].seen.tokens.len();
            rig.step().unwrap();
            assert_eq!(rig.clients[short].seen.tokens.len(), before + 1, "one token per step");
            assert_eq!(rig.control.lock().unwrap().last_rows, [1, 4], "decode first, then the prompt, in half of ten rows");
        }
        rig.finish();
        rig.assert_solo(short);
        rig.assert_solo(long);
    }
}

#[test]
fn the_youngest_sequence_is_preempted_and_none_overtakes_it() {
    for max_in_flight in [1, 2] {
        // Eight blocks hold 32 tokens, and each sequence needs 26.
        let mut rig = Rig::new(8, max_in_flight, SchedulerOptions { prefix_cache: false, ..options(32, 4) });
        let old = rig.enqueue(sequence(vec![1; 6], 20));
        let young = rig.enqueue(sequence(vec![2; 6], 20));
        while rig.metrics().num_preemptions_total.get() == 0 {
            rig.step().unwrap();
        }
        let seen = rig.clients[young].seen.tokens.len();
        assert!(seen > 0 && rig.clients[young].seen.last.is_none());
        let late = rig.enqueue(sequence(vec![3; 6], 2));
        while rig.clients[old].seen.last.is_none() {
            assert_eq!(rig.clients[young].seen.tokens.len(), seen, "the young sequence waits");
            assert_eq!(rig.clients[late].seen.tokens.len(), 0, "no sequence overtakes it");
            rig.step().unwrap();
        }
        rig.finish();
        [old, young, late].into_iter().for_each(|client| rig.assert_solo(client));
        assert_eq!(rig.metrics().num_preemptions_total.get(), 1);
    }
}

#[test]
fn a_sequence_ends_when_the_kv_cache_is_full_and_one_that_cannot_start_fails() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::new(3, max_in_flight, options(8, 4));
        let long = rig.enqueue(sequence(vec![1; 7], 500));
        let other = rig.enqueue(sequence(vec![2; 7], 500));
        let huge = rig.enqueue(sequence(vec![3; 12], 1));
        let fits = rig.enqueue(sequence(vec![4; 11], 5));
        let empty = rig.enqueue(sequence(vec![], 5));
        let nothing = rig.enqueue(sequence(vec![1], 0));
        rig.finish();
        for client in [long, other, fits] {
            rig.assert_solo(client);
        }
        // The cache holds twelve tokens, and a sequence's last token need not be in it.
        assert_eq!((rig.clients[long].seen.tokens.len(), rig.clients[fits].seen.tokens.len()), (6, 2));
        for client in [huge, empty, nothing] {
            assert!(matches!(rig.clients[client].seen.last, Some(Event::Failed(_))), "{client}");
        }
    }
}

#[test]
fn logits_that_are_not_finite_fail_only_their_sequence() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::new(64, max_in_flight, options(16, 4));
        let good = rig.enqueue(sequence(vec![1; 6], 20));
        let bad = rig.enqueue(NewSequence { params: params(NAN_SEED), ..sequence(vec![2; 6], 20) });
        rig.finish();
        rig.assert_solo(good);
        assert_eq!(rig.clients[bad].seen.tokens.len(), 2);
        let Some(Event::Failed(message)) = &rig.clients[bad].seen.last else { panic!("{:?}", rig.clients[bad].seen) };
        assert!(message.contains("not finite"));
        assert_eq!(rig.metrics().request_success_total.with_label_values(&["error"]).get(), 1);
    }
}

#[test]
fn a_step_short_of_memory_fails_only_its_youngest_sequence() {
    for max_in_flight in [1, 2] {
        for prefix_cache in [true, false] {
            // Prompts that take one step and several, and a sequence that needs another block while it generates.
            let mut rig = Rig::new(64, max_in_flight, SchedulerOptions { prefix_cache, ..options(11, 6) });
            let old: Vec<_> = (0..3).map(|i| rig.enqueue(sequence(vec![i; 5 + i as usize], 20))).collect();
            (0..4).for_each(|_| rig.step().unwrap());
            rig.control.lock().unwrap().max_seqs = 3;
            let young: Vec<_> = (0..3).map(|i| rig.enqueue(sequence(vec![9 + i; 7], 20))).collect();
            let mut errors = 0;
            while rig.scheduler.has_work() {
                errors += usize::from(rig.step().is_err_and(|error| matches!(error, EngineError::OutOfMemory(_))));
            }
            rig.check_baseline();
            old.iter().for_each(|&client| rig.assert_solo(client));
            for client in young {
                let seen = &rig.clients[client].seen;
                assert!(matches!(&seen.last, Some(Event::Failed(message)) if message.contains("out of memory")), "{seen:?}");
            }
            assert_eq!(errors, 3, "one sequence per refusal");
        }
    }
}

#[test]
fn the_other_sequences_of_a_refused_step_lose_nothing() {
    for max_in_flight in [1, 2] {
        for at in (1..30).step_by(if cfg!(miri) { 9 } else { 1 }) {
            let mut rig = Rig::new(64, max_in_flight, options(11, 4));
            let clients: Vec<_> = (0..3).map(|i| rig.enqueue(sequence(vec![i; 4 + 5 * i as usize], 12))).collect();
            rig.control.lock().unwrap().fault = Some((at, Some(EngineError::OutOfMemory("no room".into()))));
            while rig.scheduler.has_work() {
                let _ = rig.step();
            }
            rig.check_baseline();
            let failed = clients.iter().filter(|&&client| matches!(rig.clients[client].seen.last, Some(Event::Failed(_))));
            let failed: Vec<_> = failed.copied().collect();
            assert!(failed.len() <= 1, "{failed:?} at step {at}");
            clients.into_iter().filter(|client| !failed.contains(client)).for_each(|client| rig.assert_solo(client));
        }
    }
}

#[test]
fn a_failed_step_fails_the_running_sequences_and_spares_the_waiting_ones() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::new(64, max_in_flight, options(16, 2));
        let ran = [rig.enqueue(sequence(vec![1; 6], 20)), rig.enqueue(sequence(vec![2; 6], 20))];
        let waited = rig.enqueue(sequence(vec![3; 6], 20));
        {
            let mut control = rig.control.lock().unwrap();
            control.fault = Some((5, Some(EngineError::OutOfMemory("no room".into()))));
            control.fault_in_collect = true;
        }
        let result = (0..10).find_map(|_| rig.step().err());
        assert!(matches!(result, Some(EngineError::OutOfMemory(_))));
        for client in ran {
            assert!(matches!(&rig.clients[client].seen.last, Some(Event::Failed(message)) if message.contains("no room")));
        }
        rig.finish();
        rig.assert_solo(waited);
    }
}

#[test]
fn metrics_count_tokens_requests_and_latencies() {
    let mut rig = Rig::new(64, 1, options(16, 4));
    rig.run(sequence(vec![1; 6], 20));
    rig.run(sequence(vec![2; 9], 1));
    let metrics = rig.metrics();
    assert_eq!((metrics.prompt_tokens_total.get(), metrics.generation_tokens_total.get()), (15, 21));
    assert_eq!(metrics.request_success_total.with_label_values(&["length"]).get(), 2);
    let once = [
        &metrics.time_to_first_token_seconds,
        &metrics.e2e_request_latency_seconds,
        &metrics.request_queue_time_seconds,
        &metrics.request_prefill_time_seconds,
        &metrics.request_decode_time_seconds,
    ];
    assert!(once.iter().all(|histogram| histogram.get_sample_count() == 2));
    assert_eq!(metrics.inter_token_latency_seconds.get_sample_count(), 19);
    assert_eq!((metrics.request_prompt_tokens.get_sample_sum(), metrics.request_generation_tokens.get_sample_sum()), (15.0, 21.0));
    let parts = metrics.request_queue_time_seconds.get_sample_sum()
        + metrics.request_prefill_time_seconds.get_sample_sum()
        + metrics.request_decode_time_seconds.get_sample_sum();
    assert!((parts - metrics.e2e_request_latency_seconds.get_sample_sum()).abs() < 1e-6, "the three phases add up to the whole");
}

//! The scheduler without its thread, step by step against the fake engine; the books are checked after every step.

use std::sync::{Arc, Mutex};

use tokio::sync::mpsc::{self, UnboundedReceiver};

use super::fake::{Control, FakeEngine, NAN_SEED, VOCAB, scores, solo_run, vector};
use super::scheduler::Scheduler;
use super::sequence::{Sequence, Shared, Ticket};
use super::*;
use crate::engine::{EngineError, KvCapacity};
use crate::logits::rng::philox4x32;

pub fn params(seed: u64) -> SamplingParams {
    SamplingParams {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        repetition_penalty: 1.0,
        logit_bias: vec![],
        seed,
        min_tokens: 0,
        suppressed: vec![],
    }
}

pub fn sequence(prompt: Vec<u32>, max_tokens: u32) -> NewSequence {
    NewSequence::new(prompt, params(1), max_tokens)
}

pub(super) fn options(max_batch_tokens: usize, max_running: usize) -> SchedulerOptions {
    SchedulerOptions { max_batch_tokens, max_running, max_waiting: 1000, prefix_cache: true }
}

#[derive(Default, Debug)]
pub(super) struct Seen {
    pub tokens: Vec<u32>,
    pub scores: Vec<Logprobs>,
    pub vector: Vec<f32>,
    pub last: Option<Event>,
}

impl Seen {
    fn cached(&self) -> u32 {
        let Some(Event::Finished { cached_tokens, .. }) = self.last else { panic!("{self:?}") };
        cached_tokens
    }
}

pub(super) struct Client {
    pub new: NewSequence,
    pub events: Option<UnboundedReceiver<Event>>,
    pub seen: Seen,
}

impl Client {
    fn read(&mut self) {
        while let Some(Ok(event)) = self.events.as_mut().map(UnboundedReceiver::try_recv) {
            assert!(self.seen.last.is_none(), "an event after the last");
            match event {
                Event::Token { id, logprobs } => {
                    let due = self.new.num_logprobs.map(|n| (-(id as f32), usize::from(n)));
                    assert_eq!(logprobs.map(|l| (l.chosen, l.top.len())), due, "of this token, and as many as asked");
                    self.seen.tokens.push(id);
                }
                Event::Scored(scores) => {
                    assert!(self.seen.tokens.is_empty(), "scores before tokens");
                    self.seen.scores.extend(scores);
                }
                Event::Pooled(vector) => self.seen.vector = vector,
                last => self.seen.last = Some(last),
            }
        }
    }
}

pub(super) struct Rig {
    pub scheduler: Scheduler,
    pub shared: Arc<Shared>,
    pub control: Arc<Mutex<Control>>,
    pub clients: Vec<Client>,
}

impl Rig {
    /// A pool of `num_blocks` blocks of 4 tokens.
    pub fn new(num_blocks: usize, max_in_flight: usize, options: SchedulerOptions) -> Self {
        let (engine, control) = FakeEngine::new(KvCapacity { num_blocks, block_size: 4 }, options.max_running, max_in_flight);
        let metrics = ModelMetrics::for_model(&format!("rig-{:?}-{}", std::thread::current().id(), RIGS.fetch_add(1, Ordering::Relaxed)));
        let shared = Arc::new(Shared::new(options.max_waiting));
        Self { scheduler: Scheduler::new(Box::new(engine), options, metrics), shared, control, clients: vec![] }
    }

    pub fn enqueue(&mut self, new: NewSequence) -> usize {
        let (sender, events) = mpsc::unbounded_channel();
        let ticket = Ticket::take(&self.shared).unwrap();
        self.scheduler.push(Sequence::new(new.clone(), sender, ticket));
        self.clients.push(Client { new, events: Some(events), seen: Seen::default() });
        self.clients.len() - 1
    }

    pub fn step(&mut self) -> Result<(), EngineError> {
        self.scheduler.reap_cancelled();
        let result = self.scheduler.step();
        self.scheduler.check();
        self.clients.iter_mut().for_each(Client::read);
        result
    }

    pub fn finish(&mut self) {
        let mut steps = 0;
        while self.scheduler.has_work() {
            self.step().unwrap();
            steps += 1;
            assert!(steps < 100_000, "no end");
        }
        self.check_baseline();
    }

    pub fn check_baseline(&self) {
        assert_eq!(self.scheduler.blocks.usage(), 0.0, "blocks leaked");
        assert_eq!(self.shared.num_active(), 0);
        let metrics = &self.scheduler.metrics;
        assert_eq!((metrics.num_requests_running.get(), metrics.num_requests_waiting.get()), (0, 0));
    }

    /// Runs one sequence to its end.
    fn run(&mut self, new: NewSequence) -> usize {
        let client = self.enqueue(new);
        self.finish();
        self.assert_solo(client);
        client
    }

    /// The client saw exactly what its sequence gives alone.
    pub fn assert_solo(&self, client: usize) {
        let Client { new, seen, .. } = &self.clients[client];
        let (tokens, stopped) = solo_run(new, self.scheduler.blocks.num_tokens());
        assert_eq!(seen.tokens, tokens, "client {client}");
        assert_eq!(seen.scores, new.score_prompt.map_or(Vec::new(), |n| scores(&new.prompt, n)), "client {client}");
        assert_eq!(seen.vector, new.pool.map_or(Vec::new(), |kind| vector(&new.prompt, kind)), "client {client}");
        let Some(Event::Finished { reason, prompt_tokens, generated_tokens, .. }) = &seen.last else { panic!("{seen:?}") };
        assert_eq!(*reason, if stopped { FinishReason::Stop } else { FinishReason::Length });
        assert_eq!((*prompt_tokens as usize, *generated_tokens as usize), (new.prompt.len(), tokens.len()));
    }
}

static RIGS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

struct Random(u64, u32);

impl Random {
    /// Uniform in 0..n.
    fn below(&mut self, n: u32) -> u32 {
        self.1 += 1;
        philox4x32([self.1, 0, 0, 0], [self.0 as u32, 77])[0] % n
    }
}

/// One random trace; (preemptions, prefix hits, cancels, stops, copied blocks).
fn random_trace(seed: u64) -> [u64; 5] {
    let mut random = Random(seed, 0);
    let max_running = 1 + random.below(12) as usize;
    let options = SchedulerOptions {
        max_batch_tokens: max_running + random.below(24) as usize,
        max_running,
        max_waiting: 1000,
        prefix_cache: random.below(4) > 0,
    };
    let num_blocks = 16 + random.below(50) as usize;
    let mut rig = Rig::new(num_blocks, 1 + (seed % 2) as usize, options);
    let bases: Vec<Vec<u32>> = (0..3).map(|_| (0..30).map(|_| random.below(VOCAB)).collect()).collect();
    let total = 64 + random.below(137);
    let (mut queued, mut cancels) = (0, 0);
    while queued < total || rig.scheduler.has_work() {
        for _ in 0..random.below(4).min(total.saturating_sub(queued)) {
            let mut prompt = bases[random.below(3) as usize][..random.below(30) as usize].to_vec();
            prompt.extend((0..1 + random.below(12)).map(|_| random.below(VOCAB)));
            let mut new = sequence(prompt, 1 + random.below(40));
            // Few seeds, so that whole generations are shared too.
            new.params = params(u64::from(random.below(3)));
            new.stop_ids = (0..random.below(3)).collect();
            new.cache_salt = u64::from(random.below(5) / 4);
            new.num_logprobs = (random.below(4) == 0).then(|| random.below(21) as u8);
            match random.below(8) {
                0 => (new.max_tokens, new.pool) = (0, Some([Pooling::First, Pooling::Last, Pooling::Mean][random.below(3) as usize])),
                1 => (new.max_tokens, new.score_prompt) = (random.below(2) * new.max_tokens, Some(random.below(6) as u8)),
                _ => {}
            }
            // Families, of which some ask for their prompt's scores, and some are cancelled one by one.
            let num_relatives = if new.pool.is_none() && random.below(5) == 0 { random.below(6) } else { 0 };
            new.family = (num_relatives > 0).then(Family::unique);
            rig.enqueue(new.clone());
            for _ in 0..num_relatives {
                let relative = NewSequence { score_prompt: None, max_tokens: new.max_tokens.max(1), ..new.clone() };
                rig.enqueue(NewSequence { params: params(u64::from(random.below(3))), ..relative });
            }
            queued += 1 + num_relatives;
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
    let mut stops = 0;
    for (index, client) in rig.clients.iter().enumerate() {
        if client.events.is_some() {
            rig.assert_solo(index);
            stops += u64::from(matches!(client.seen.last, Some(Event::Finished { reason: FinishReason::Stop, .. })));
        } else {
            let (tokens, _) = solo_run(&client.new, rig.scheduler.blocks.num_tokens());
            assert!(tokens.starts_with(&client.seen.tokens), "a cancelled sequence's tokens are those of its solo run");
        }
    }
    let control = rig.control.lock().unwrap();
    assert!(control.max_rows <= rig.scheduler.options.max_batch_tokens, "the budget holds");
    let metrics = &rig.scheduler.metrics;
    let aborted = metrics.request_success_total.with_label_values(&["abort"]).get();
    // A cancel may come too late: its sequence had ended in the step before, unread.
    assert!(aborted <= cancels);
    [metrics.num_preemptions_total.get(), metrics.prefix_cache_hits_total.get(), aborted, stops, control.num_copies as u64]
}

#[test]
fn every_sequence_of_a_random_trace_equals_its_solo_run() {
    let mut totals = [[0u64; 5]; 2];
    for seed in 0..120 {
        let counts = random_trace(seed);
        totals[(seed % 2) as usize].iter_mut().zip(counts).for_each(|(total, count)| *total += count);
    }
    println!("preemptions, prefix hits, cancels, stops, copies: {totals:?} with one and two steps in flight");
    assert!(totals.iter().flatten().all(|&n| n > 100), "the traces exercise everything: {totals:?}");
}

#[test]
fn a_prefix_is_reused_under_its_salt_only_and_reported() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::new(32, max_in_flight, options(16, 4));
        let prompt: Vec<u32> = (0..16).collect();
        let first = rig.run(sequence(prompt.clone(), 5));
        assert_eq!(rig.clients[first].seen.cached(), 0);
        let rows_before = rig.control.lock().unwrap().num_rows;
        // 16 tokens are four full blocks, but the last token's logits must be computed.
        let again = rig.run(sequence(prompt.clone(), 1));
        assert_eq!(rig.clients[again].seen.cached(), 12);
        assert_eq!(rig.control.lock().unwrap().num_rows - rows_before, 4);
        let other = rig.run(NewSequence { cache_salt: 9, ..sequence(prompt.clone(), 1) });
        assert_eq!(rig.clients[other].seen.cached(), 0, "another tenant");
        // A conversation's next turn finds the generated tokens, too: 16 + 5 tokens, of which the last was never computed.
        let reply = rig.clients[first].seen.tokens.clone();
        let next = rig.run(sequence([prompt, reply, vec![1, 2, 3]].concat(), 1));
        assert_eq!(rig.clients[next].seen.cached(), 20);
        let metrics = &rig.scheduler.metrics;
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
    assert_eq!(rig.scheduler.metrics.prefix_cache_queries_total.get(), 0);
}

#[test]
fn a_cancel_frees_its_blocks_within_a_step() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::new(64, max_in_flight, options(8, 2));
        // One decodes, one is inside its prompt, one waits.
        let clients = [
            rig.enqueue(sequence(vec![1; 5], 50)),
            rig.enqueue(sequence((0..40).map(|i| i % VOCAB).collect(), 50)),
            rig.enqueue(sequence(vec![3; 9], 50)),
        ];
        (0..3).for_each(|_| rig.step().unwrap());
        assert!(rig.scheduler.blocks.usage() > 0.0);
        assert_eq!(rig.shared.num_active(), 3);
        assert_eq!((rig.scheduler.running.len(), rig.scheduler.waiting.len()), (2, 1));
        for client in clients {
            rig.clients[client].events = None;
        }
        rig.step().unwrap();
        assert_eq!((rig.scheduler.blocks.usage(), rig.shared.num_active()), (0.0, 0));
        assert_eq!(rig.scheduler.metrics.request_success_total.with_label_values(&["abort"]).get(), 3);
        rig.finish();
    }
}

#[test]
fn a_long_prompt_does_not_hold_up_decodes() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::new(200, max_in_flight, options(10, 4));
        let short = rig.enqueue(sequence(vec![1, 2], 60));
        (0..4).for_each(|_| rig.step().unwrap());
        let long = rig.enqueue(sequence((0..400).map(|i| i % 7).collect(), 2));
        for _ in 0..40 {
            let before = rig.clients[short].seen.tokens.len();
            rig.step().unwrap();
            assert_eq!(rig.clients[short].seen.tokens.len(), before + 1, "a token every step");
            assert_eq!(rig.control.lock().unwrap().last_rows, [1, 9], "decode first, the rest for the prompt");
        }
        rig.finish();
        rig.assert_solo(short);
        rig.assert_solo(long);
    }
}

#[test]
fn the_youngest_is_preempted_and_the_order_of_arrival_kept() {
    for max_in_flight in [1, 2] {
        // Eight blocks hold 32 tokens; both want 26.
        let mut rig = Rig::new(8, max_in_flight, SchedulerOptions { prefix_cache: false, ..options(32, 4) });
        let old = rig.enqueue(sequence(vec![1; 6], 20));
        let young = rig.enqueue(sequence(vec![2; 6], 20));
        while rig.scheduler.metrics.num_preemptions_total.get() == 0 {
            rig.step().unwrap();
        }
        let seen = rig.clients[young].seen.tokens.len();
        assert!(seen > 0 && rig.clients[young].seen.last.is_none());
        let late = rig.enqueue(sequence(vec![3; 6], 2));
        while rig.clients[old].seen.last.is_none() {
            assert_eq!(rig.clients[young].seen.tokens.len(), seen, "the young one waits");
            assert_eq!(rig.clients[late].seen.tokens.len(), 0, "and nobody overtakes it");
            rig.step().unwrap();
        }
        rig.finish();
        [old, young, late].into_iter().for_each(|client| rig.assert_solo(client));
        assert_eq!(rig.scheduler.metrics.num_preemptions_total.get(), 1);
    }
}

#[test]
fn a_sequence_ends_where_the_pool_does_and_one_that_cannot_start_is_refused() {
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
        // Twelve places: the last token need not have one.
        assert_eq!((rig.clients[long].seen.tokens.len(), rig.clients[fits].seen.tokens.len()), (6, 2));
        for client in [huge, empty, nothing] {
            assert!(matches!(rig.clients[client].seen.last, Some(Event::Failed(_))), "{client}");
        }
    }
}

#[test]
fn logits_that_are_not_finite_fail_their_sequence_alone() {
    for max_in_flight in [1, 2] {
        let mut rig = Rig::new(64, max_in_flight, options(16, 4));
        let good = rig.enqueue(sequence(vec![1; 6], 20));
        let bad = rig.enqueue(NewSequence { params: params(NAN_SEED), ..sequence(vec![2; 6], 20) });
        rig.finish();
        rig.assert_solo(good);
        assert_eq!(rig.clients[bad].seen.tokens.len(), 2);
        let Some(Event::Failed(message)) = &rig.clients[bad].seen.last else { panic!("{:?}", rig.clients[bad].seen) };
        assert!(message.contains("not finite"));
        assert_eq!(rig.scheduler.metrics.request_success_total.with_label_values(&["error"]).get(), 1);
    }
}

#[test]
fn a_step_short_of_memory_fails_its_youngest_sequence_alone() {
    for max_in_flight in [1, 2] {
        for prefix_cache in [true, false] {
            // prompts of one step, of several, and of one that has a block more in the midst of its generation
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
            assert_eq!(errors, 3, "one sequence a refusal");
        }
    }
}

#[test]
fn those_who_share_a_refused_step_lose_nothing() {
    for max_in_flight in [1, 2] {
        for at in 1..30 {
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
fn a_failed_step_fails_those_who_ran_and_spares_those_who_waited() {
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
fn metrics_tell_what_happened() {
    let mut rig = Rig::new(64, 1, options(16, 4));
    rig.run(sequence(vec![1; 6], 20));
    rig.run(sequence(vec![2; 9], 1));
    let metrics = &rig.scheduler.metrics;
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
    assert!((parts - metrics.e2e_request_latency_seconds.get_sample_sum()).abs() < 1e-6, "the parts make up the whole");
}

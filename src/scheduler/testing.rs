//! Shared by this crate's tests: a scheduler over the test engine, stepped without its thread. Invariants are checked after every step.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::channel::{EventReceiver, channel};
use crate::drafts::{DraftOptions, KnownAnswer};
use crate::engine_state::EngineState;
use crate::event::{Event, FinishReason};
use crate::fake::{Control, FakeEngine, scores, solo_run, vector, whole_mark};
use crate::guesser::Engines;
use crate::items::{Layout, RowRun};
use crate::new_sequence::NewSequence;
use crate::options::SchedulerOptions;
use crate::queue_permits::{QueuePermit, QueuePermits};
use crate::sequence::Sequence;
use crate::shared::{QueueSize, Shared};
use crate::step::Scheduler;
use crate::survivors::Survivors;
use engine::{EngineError, KvCapacity, LoopLimits};
use logits::{Logprobs, SamplingParams};
use metrics::ModelMetrics;

pub fn params(seed: u64) -> Arc<SamplingParams> {
    Arc::new(SamplingParams { seed, ..SamplingParams::default() })
}

pub fn sequence(prompt: Vec<u32>, max_tokens: u32) -> NewSequence {
    NewSequence::new(prompt, params(1), max_tokens)
}

/// A sequence whose drafts are right with the probability `accept`.
pub fn drafted(new: NewSequence, accept: f64, capacity: &KvCapacity) -> NewSequence {
    // The stop id that ends a solo run is not among its tokens.
    let endless = NewSequence { stop_ids: Vec::new(), ..new.clone() };
    let known = Some(KnownAnswer { tokens: solo_run(&endless, capacity).0.into(), accept });
    NewSequence { drafts: DraftOptions { known, ..DraftOptions::default() }, ..new }
}

/// A run of rows of the test engine, which fails if a whole run is cut.
pub fn run(source: u8, num_rows: usize, layout: Layout, is_whole: bool) -> RowRun {
    let row = |row| [f32::from(source) + row as f32 / 1000.0, if is_whole { whole_mark(row, num_rows) } else { 0.0 }];
    RowRun { source: [source; 32], embeddings: (0..num_rows).flat_map(row).collect(), num_rows, layout, is_whole }
}

pub fn options(max_batch_tokens: usize, max_running: usize) -> SchedulerOptions {
    SchedulerOptions { max_batch_tokens, max_running, max_waiting: 1000, max_waiting_tokens: 0, prefix_cache: true, drafts: true }
}

/// A sequence that the queue has accepted, and whose client is gone.
pub fn accepted(new: NewSequence) -> Sequence {
    let mut permits = QueuePermits::take(&shared(1), crate::Client::default(), [new.prompt.len()]).unwrap();
    Sequence::new(new, Arc::new(channel().0), permits.next().unwrap())
}

/// A queue with `places` places and room for any number of tokens.
pub fn shared(places: usize) -> Arc<Shared> {
    Arc::new(Shared::new(QueueSize { places, tokens: usize::MAX }))
}

/// The state of a model's only engine.
pub fn state() -> Arc<EngineState> {
    Arc::new(EngineState::new(0, None, Arc::new(Survivors::new("test", 1)), None))
}

/// How long a test waits for what comes at once. Miri is hundreds of times slower.
pub fn patience(seconds: u64) -> Duration {
    Duration::from_secs(if cfg!(miri) { 200 * seconds } else { seconds })
}

pub fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < patience(5), "waited for: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[derive(Default, Debug)]
pub struct Seen {
    pub tokens: Vec<u32>,
    pub scores: Vec<Logprobs>,
    pub vector: Vec<f32>,
    pub last: Option<Event>,
}

impl Seen {
    pub fn cached(&self) -> u32 {
        let Some(Event::Finished { cached_tokens, .. }) = self.last else { panic!("{self:?}") };
        cached_tokens
    }
}

pub struct Client {
    pub new: NewSequence,
    pub events: Option<EventReceiver>,
    pub seen: Seen,
}

impl Client {
    fn read(&mut self) {
        while let Some(Poll::Ready(Some(event))) = self.events.as_mut().map(|events| events.poll(&mut Context::from_waker(Waker::noop()))) {
            assert!(self.seen.last.is_none(), "an event after the last");
            match event {
                Event::Token { id, logprobs } => {
                    let due = self.new.num_logprobs.map(|n| (-(id as f32), usize::from(n)));
                    assert_eq!(logprobs.map(|l| (l.chosen, l.top.len())), due, "the log-probabilities of this token, as many as requested");
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

pub struct Rig {
    pub scheduler: Scheduler,
    pub capacity: KvCapacity,
    pub shared: Arc<Shared>,
    pub state: Arc<EngineState>,
    pub control: Arc<Mutex<Control>>,
    pub clients: Vec<Client>,
}

impl Rig {
    /// A KV cache of `num_blocks` blocks of 4 tokens.
    pub fn new(num_blocks: usize, max_in_flight: usize, options: SchedulerOptions) -> Self {
        Self::with_capacity(KvCapacity::blocks(num_blocks, 4), max_in_flight, options)
    }

    /// Like [`Rig::new`], for a model with recurrent state.
    pub fn recurrent(num_blocks: usize, num_state_slots: usize, max_in_flight: usize, options: SchedulerOptions) -> Self {
        Self::with_capacity(KvCapacity { num_state_slots, ..KvCapacity::blocks(num_blocks, 4) }, max_in_flight, options)
    }

    pub fn with_capacity(capacity: KvCapacity, max_in_flight: usize, options: SchedulerOptions) -> Self {
        let num_blocks = capacity.num_blocks;
        Self::growing(capacity, num_blocks, max_in_flight, options)
    }

    /// Like [`Rig::with_capacity`], with memory for the first `num_backed` blocks only.
    pub fn growing(capacity: KvCapacity, num_backed: usize, max_in_flight: usize, options: SchedulerOptions) -> Self {
        let (engine, control) = FakeEngine::new(capacity, options.max_running, max_in_flight);
        Self::of(engine.backed(num_backed), control, options)
    }

    /// Like [`Rig::growing`], for an engine with loops, which run `num_late` further turns when they are asked to end.
    pub fn looping(capacity: KvCapacity, num_backed: usize, options: SchedulerOptions, limits: LoopLimits, num_late: u32) -> Self {
        let (engine, control) = FakeEngine::new(capacity, options.max_running, 2);
        Self::of(engine.backed(num_backed).looping(limits, num_late), control, options)
    }

    pub fn of(engine: FakeEngine, control: Arc<Mutex<Control>>, options: SchedulerOptions) -> Self {
        Self::of_both(Engines { engine: Box::new(engine), draft: None }, control, options)
    }

    /// Like [`Rig::of`], for an engine with a draft model.
    pub fn of_both(engines: Engines, control: Arc<Mutex<Control>>, options: SchedulerOptions) -> Self {
        let capacity = engines.engine.kv_capacity();
        let metrics = ModelMetrics::for_model(&format!("rig-{:?}-{}", thread::current().id(), RIGS.fetch_add(1, Ordering::Relaxed)));
        let shared = shared(options.max_waiting);
        Self { scheduler: Scheduler::new(engines, options, metrics), capacity, shared, state: state(), control, clients: vec![] }
    }

    pub fn enqueue(&mut self, new: NewSequence) -> usize {
        self.enqueue_request(vec![new])[0]
    }

    /// Enqueues the sequences of one request.
    pub fn enqueue_request(&mut self, new: Vec<NewSequence>) -> Vec<usize> {
        self.enqueue_of(crate::Client::default(), new)
    }

    /// Like [`Rig::enqueue_request`], for a given client.
    pub fn enqueue_of(&mut self, client: crate::Client, new: Vec<NewSequence>) -> Vec<usize> {
        let mut permits = QueuePermits::take(&self.shared, client, new.iter().map(|new| new.prompt.len())).unwrap();
        new.into_iter().map(|new| self.push(new, permits.next().unwrap())).collect()
    }

    fn push(&mut self, new: NewSequence, permit: QueuePermit) -> usize {
        let (sender, events) = channel();
        let mut sequence = Sequence::new(new.clone(), Arc::new(sender), permit);
        sequence.count_at(self.state.enter([new.prompt.len() as u64, 1]));
        self.scheduler.push(sequence);
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
            assert!(steps < 100_000, "the sequences never end");
        }
        self.check_baseline();
    }

    pub fn metrics(&self) -> &ModelMetrics {
        &self.scheduler.sequences().metrics
    }

    /// Asserts that nothing runs or waits, and that no memory is held.
    pub fn check_baseline(&self) {
        self.scheduler.check();
        assert_eq!(self.scheduler.sequences().blocks.usage(), 0.0, "blocks leaked");
        assert!(self.scheduler.sequences().running.is_empty());
        assert_eq!((self.state.num_active(), self.state.num_rows()), (0, 0));
        let metrics = self.metrics();
        assert_eq!((metrics.num_requests_running.get(), metrics.num_requests_waiting.get()), (0, 0));
    }

    /// Runs one sequence to its end.
    pub fn run(&mut self, new: NewSequence) -> usize {
        let client = self.enqueue(new);
        self.finish();
        self.assert_solo(client);
        client
    }

    /// Asserts that the client saw exactly the events of a solo run of its sequence.
    pub fn assert_solo(&self, client: usize) {
        let Client { new, seen, .. } = &self.clients[client];
        let (tokens, stopped) = solo_run(new, &self.capacity);
        assert_eq!(seen.tokens, tokens, "client {client}");
        assert_eq!(seen.scores, new.score_prompt.map_or(Vec::new(), |n| scores(new.prompt.tokens(), n, &self.capacity)), "client {client}");
        assert_eq!(seen.vector, new.pool.map_or(Vec::new(), |kind| vector(new.prompt.tokens(), kind)), "client {client}");
        let Some(Event::Finished { reason, prompt_tokens, generated_tokens, .. }) = &seen.last else { panic!("{seen:?}") };
        assert_eq!(*reason, if stopped { FinishReason::Stop } else { FinishReason::Length });
        assert_eq!((*prompt_tokens as usize, *generated_tokens as usize), (new.prompt.len(), tokens.len()));
    }
}

static RIGS: AtomicUsize = AtomicUsize::new(0);

//! One request as the scheduler sees it: token ids, blocks, progress.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::mpsc::{UnboundedSender, WeakUnboundedSender};

use super::masks::Masked;
use super::prefix::{ContentId, ROOT};
use super::{EnqueueError, Event, Family, NewSequence};
use crate::engine::{Input, Pooling, Scored, SlotInit};
use crate::logits::SamplingParams;

/// What the handles and the engine thread share beside the command channel.
#[derive(Debug)]
pub struct Shared {
    pub alive: AtomicBool,
    /// Nothing but a new process helps.
    lost: AtomicBool,
    /// Those to tell when the engine thread cannot; kept where a guard watches.
    clients: Mutex<Vec<WeakUnboundedSender<Event>>>,
    num_waiting: AtomicUsize,
    num_active: AtomicUsize,
    max_waiting: usize,
}

impl Shared {
    pub fn new(max_waiting: usize) -> Self {
        // Every sequence passes through the queue: a bound of 0 would refuse them all.
        let max_waiting = max_waiting.max(1);
        Self {
            alive: AtomicBool::new(true),
            lost: AtomicBool::new(false),
            clients: Mutex::default(),
            num_waiting: AtomicUsize::new(0),
            num_active: AtomicUsize::new(0),
            max_waiting,
        }
    }

    pub fn num_active(&self) -> usize {
        self.num_active.load(Ordering::Acquire)
    }

    pub fn lose(&self) {
        self.lost.store(true, Ordering::Release);
        self.alive.store(false, Ordering::Release);
    }

    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Notes whom to tell. The list holds the active ones and at most as many again that have ended.
    pub fn add_client(&self, events: &UnboundedSender<Event>) {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if clients.len() >= 2 * self.num_active() + 16 {
            clients.retain(|client| client.strong_count() > 0);
        }
        clients.push(events.downgrade());
    }

    #[cfg(test)]
    pub fn num_clients(&self) -> usize {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Sends everyone's last event from outside of the engine thread.
    pub fn tell_all(&self, last: &Event) {
        let clients = std::mem::take(&mut *self.clients.lock().unwrap_or_else(PoisonError::into_inner));
        // one that has gone needs not know
        clients.iter().filter_map(WeakUnboundedSender::upgrade).for_each(|client| drop(client.send(last.clone())));
    }
}

/// A sequence's place in the counts: in the queue until it is admitted, active until it is dropped, wherever that happens.
#[derive(Debug)]
pub struct Ticket {
    shared: Arc<Shared>,
    waiting: bool,
}

impl Ticket {
    pub fn take(shared: &Arc<Shared>) -> Result<Self, EnqueueError> {
        let below_bound = |n: usize| (n < shared.max_waiting).then_some(n + 1);
        let counter = &shared.num_waiting;
        counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, below_bound).map_err(|_| EnqueueError::QueueFull)?;
        shared.num_active.fetch_add(1, Ordering::AcqRel);
        Ok(Self { shared: shared.clone(), waiting: true })
    }

    fn leave_queue(&mut self) {
        if std::mem::take(&mut self.waiting) {
            self.shared.num_waiting.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.leave_queue();
        self.shared.num_active.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Debug)]
pub struct Sequence {
    /// The order of arrival; set by the engine thread.
    pub id: u64,
    pub prompt: Arc<[u32]>,
    pub params: Arc<SamplingParams>,
    pub max_tokens: usize,
    pub stop_ids: Vec<u32>,
    pub salt: u64,
    pub num_logprobs: Option<u8>,
    pub masked: Option<Masked>,
    pub score_prompt: Option<u8>,
    /// Tokens of the prompt whose scores the client has, the first counted in, which has none.
    pub num_scored: usize,
    pub pool: Option<Pooling>,
    pub family: Option<Family>,
    /// Its prompt was computed for another of its family.
    pub is_fork: bool,
    /// Sampled and collected, without the stop id.
    pub generated: Vec<u32>,
    pub events: UnboundedSender<Event>,
    ticket: Ticket,

    /// The engine slot, while it runs.
    pub slot: u32,
    /// The slot's state must travel with the next step.
    pub needs_init: bool,
    /// Blocks held, for positions 0, block_size, 2 * block_size ...
    pub block_table: Vec<u32>,
    /// Tokens whose K and V are in the cache once all submitted steps have run.
    pub num_computed: usize,
    /// Tokens sampled by steps that were not collected yet.
    pub num_pending: usize,
    /// Leading blocks known to the prefix cache, and the content of the last of them.
    pub num_registered: usize,
    pub last_content: ContentId,

    /// Prompt tokens found in the prefix cache at the first admission; the client reads it too.
    pub num_cached: Arc<AtomicU32>,
    pub arrived: Instant,
    pub admitted: Option<Instant>,
    pub first_token: Option<Instant>,
    pub last_token: Option<Instant>,
}

impl Sequence {
    pub fn new(new: NewSequence, events: UnboundedSender<Event>, ticket: Ticket) -> Self {
        Self {
            id: 0,
            prompt: new.prompt.into(),
            params: Arc::new(new.params),
            max_tokens: new.max_tokens as usize,
            stop_ids: new.stop_ids,
            salt: new.cache_salt,
            num_logprobs: new.num_logprobs,
            masked: new.grammar.map(Masked::new),
            score_prompt: new.score_prompt,
            num_scored: 1,
            pool: new.pool,
            family: new.family,
            is_fork: false,
            generated: Vec::new(),
            events,
            ticket,
            slot: 0,
            needs_init: false,
            block_table: Vec::new(),
            num_computed: 0,
            num_pending: 0,
            num_registered: 0,
            last_content: ROOT,
            num_cached: Arc::default(),
            arrived: Instant::now(),
            admitted: None,
            first_token: None,
            last_token: None,
        }
    }

    /// Tokens whose ids the host knows: prompt and generated.
    pub fn num_known(&self) -> usize {
        self.prompt.len() + self.generated.len()
    }

    /// Rows that the next step may carry: what is known or pending, and not computed. 0 where the tokens that are pending
    /// already exhaust `max_tokens` or a pool of `capacity` tokens. A sequence that generates nothing has its prompt's.
    pub fn num_remaining(&self, capacity: usize) -> usize {
        if self.max_tokens == 0 {
            return self.prompt.len() - self.num_computed;
        }
        let total = self.num_known() + self.num_pending;
        let exhausted = self.generated.len() + self.num_pending >= self.max_tokens || total > capacity;
        if exhausted { 0 } else { total - self.num_computed }
    }

    /// What its relatives share: all of the prompt but the last token, from whose logits each draws for itself.
    pub fn num_shared(&self) -> usize {
        self.prompt.len() - 1
    }

    /// Must every row of the prompt run, whatever a cache holds?
    pub fn needs_whole_prompt(&self) -> bool {
        self.pool.is_some() || self.score_prompt.is_some() && self.num_scored < self.prompt.len()
    }

    /// The rows from position `start` to `end` that the client has no scores of, where it asks; the batch's row `first` is at `start`.
    pub fn rows_to_score(&self, start: usize, end: usize, first: usize) -> impl Iterator<Item = Scored> {
        let due = start.max(self.num_scored - 1)..end.min(self.prompt.len() - 1);
        let due = if self.score_prompt.is_some() { due } else { 0..0 };
        let num_logprobs = self.score_prompt.unwrap_or(0);
        due.map(move |at| Scored { row: (first + at - start) as u32, id: self.prompt[at + 1], num_logprobs })
    }

    /// Must its next mask be there before it takes part in a step? Where masks take long, no step is to wait for them.
    pub fn awaits_mask(&mut self) -> bool {
        let pending = self.num_pending > 0;
        self.masked.as_mut().is_some_and(|masked| masked.is_slow && (pending || !masked.is_ready_by(Instant::now())))
    }

    /// Where the row at `position` gets its token from.
    pub fn input(&self, position: usize) -> Input {
        match position.checked_sub(self.prompt.len()) {
            None => Input::Token(self.prompt[position]),
            Some(index) => self.generated.get(index).map_or(Input::Sampled(self.slot), |&id| Input::Token(id)),
        }
    }

    /// Copies the known tokens of block `index`, which must be full.
    pub fn copy_block(&self, index: usize, block_size: usize, out: &mut Vec<u32>) {
        out.clear();
        let (start, end, prompt) = (index * block_size, (index + 1) * block_size, self.prompt.len());
        out.extend_from_slice(&self.prompt[start.min(prompt)..end.min(prompt)]);
        out.extend_from_slice(&self.generated[start.max(prompt) - prompt..end.max(prompt) - prompt]);
    }

    pub fn slot_init(&self) -> SlotInit {
        SlotInit { slot: self.slot, params: self.params.clone(), prompt: self.prompt.clone(), generated: self.generated.clone() }
    }

    /// Takes its place among the running; it no longer counts against the queue's bound, not even after a preemption.
    pub fn leave_queue(&mut self) {
        self.ticket.leave_queue();
    }

    /// Has the client gone?
    pub fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }

    /// Tells the client of the end. The sequence is out of the counts before the client can know.
    pub fn end(self, last: Event) {
        let Sequence { events, ticket, .. } = self;
        drop(ticket);
        // The client may have gone; then nobody needs to know.
        let _ = events.send(last);
    }
}

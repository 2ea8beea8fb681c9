//! [`EngineState`]: what an engine thread shares with the handles to it and with its watchdog, besides the command channel.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::channel::EventSender;
use crate::engine_fault::EngineFault;
use crate::event::Event;
use crate::new_sequence::NewSequence;
use crate::queue_permits::QueueTicket;
use crate::routing::Router;
use crate::shared_device::SharedDevice;
use crate::survivors::Survivors;

#[derive(Debug)]
pub struct EngineState {
    /// The engine's number among those of its model, starting at 0.
    number: usize,
    alive: AtomicBool,
    /// Whether the device is lost or stuck, so that only a new process helps.
    lost: AtomicBool,
    /// Clients that the watchdog tells if the engine thread cannot, and their places in the queue. Kept only if a watchdog runs.
    clients: Mutex<Vec<(Weak<EventSender>, Weak<QueueTicket>)>>,
    /// Sequences that the engine was given and that have not ended.
    num_active: AtomicUsize,
    /// Rows that these sequences will run, as far as that was known when they came.
    num_rows: AtomicU64,
    /// Sizes of the KV cache: in use, backed, and the most that can be backed [bytes].
    cache_bytes: [AtomicU64; 3],
    device: Option<Arc<SharedDevice>>,
    survivors: Arc<Survivors>,
    /// None if the model has no other engine.
    router: Option<Arc<Router>>,
}

impl EngineState {
    pub fn new(number: usize, device: Option<Arc<SharedDevice>>, survivors: Arc<Survivors>, router: Option<Arc<Router>>) -> Self {
        Self {
            number,
            alive: AtomicBool::new(true),
            lost: AtomicBool::new(false),
            clients: Mutex::default(),
            num_active: AtomicUsize::new(0),
            num_rows: AtomicU64::new(0),
            cache_bytes: Default::default(),
            device,
            survivors,
            router,
        }
    }

    /// Counts a sequence that will run about so many rows of its prompt and of its answer.
    pub fn enter(self: &Arc<Self>, [prompt, answer]: [u64; 2]) -> ActiveSequence {
        self.num_active.fetch_add(1, Ordering::AcqRel);
        self.num_rows.fetch_add(prompt + answer, Ordering::AcqRel);
        ActiveSequence { state: self.clone(), prompt, answer }
    }

    pub fn num_active(&self) -> usize {
        self.num_active.load(Ordering::Acquire)
    }

    pub fn num_rows(&self) -> u64 {
        self.num_rows.load(Ordering::Acquire)
    }

    pub fn set_cache_bytes(&self, bytes: [u64; 3]) {
        self.cache_bytes.iter().zip(bytes).for_each(|(shown, bytes)| shown.store(bytes, Ordering::Relaxed));
    }

    pub fn cache_bytes(&self) -> [u64; 3] {
        [0, 1, 2].map(|i| self.cache_bytes[i].load(Ordering::Relaxed))
    }

    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Refuses new sequences from now on.
    pub fn close(&self) {
        self.alive.store(false, Ordering::Release);
    }

    pub fn lose(&self) {
        self.lost.store(true, Ordering::Release);
        if let Some(device) = &self.device {
            device.lose();
        }
        self.close();
    }

    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Remembers that the engine has cached a sequence and its answer.
    pub fn remember(&self, sequence: &NewSequence, generated: &[u32]) {
        if let Some(router) = &self.router {
            let keys = router.keys(sequence, generated);
            router.lock()[self.number].add(&keys);
        }
    }

    /// Records that the engine has failed, by a fault that only a new process cures or by another. The engine must be closed. Returns the
    /// fault to report, if the model has no other engine left.
    pub fn fail(&self, fault: Option<EngineFault>) -> Option<EngineFault> {
        self.survivors.fail(self.number, fault)
    }

    /// Adds a client to the list for [`tell_all`](Self::tell_all). The list holds the active clients, and about as many again that have
    /// ended.
    pub fn add_client(&self, client: (Weak<EventSender>, Weak<QueueTicket>)) {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if clients.len() >= 2 * self.num_active() + 16 {
            clients.retain(|(client, _)| client.strong_count() > 0);
        }
        clients.push(client);
    }

    #[cfg(test)]
    pub fn num_clients(&self) -> usize {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Sends the last event to every client and gives back their room in the queue, from outside the engine thread.
    pub fn tell_all(&self, last: &Event) {
        let clients = std::mem::take(&mut *self.clients.lock().unwrap_or_else(PoisonError::into_inner));
        clients.iter().filter_map(|(_, ticket)| ticket.upgrade()).for_each(|ticket| ticket.leave_queue());
        clients.iter().filter_map(|(client, _)| client.upgrade()).for_each(|client| client.send(last.clone()));
    }
}

/// Counts a sequence that an engine was given, until dropped.
#[derive(Debug)]
pub struct ActiveSequence {
    state: Arc<EngineState>,
    /// Rows that are left to run, of the prompt and of the answer.
    prompt: u64,
    answer: u64,
}

impl ActiveSequence {
    pub fn state(&self) -> &Arc<EngineState> {
        &self.state
    }

    /// Counts the rows of the prompt as run.
    pub fn end_prefill(&mut self) {
        self.state.num_rows.fetch_sub(std::mem::take(&mut self.prompt), Ordering::AcqRel);
    }
}

impl Drop for ActiveSequence {
    fn drop(&mut self) {
        self.state.num_rows.fetch_sub(self.prompt + self.answer, Ordering::AcqRel);
        self.state.num_active.fetch_sub(1, Ordering::AcqRel);
    }
}

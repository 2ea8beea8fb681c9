//! The queue of sequences, and the order in which they are admitted.
//!
//! **Order.** Requests share the engine, not sequences: one request with a thousand prompts gets what one with a single prompt gets. A
//! request's *debt* is the number of rows that its sequences have run. The request with the least debt goes next. With equal debts, the
//! oldest request goes first. Within a request, sequences go in the order in which they were enqueued. The *clock* is the debt that a
//! request would have now if all had always had equal shares. A new request starts with the clock as its debt, so it neither claims past
//! time nor is served after requests that got more than their share. The debt of a waiting request does not grow while the clock does, so
//! no request starves.
//!
//! **Reserve.** An eighth of the running places and of the blocks is reserved for requests that run nothing, so that a request with many
//! sequences leaves room for later ones.
//!
//! A preempted sequence goes before all others, because its client has already seen a part of its answer. Preempted sequences were first
//! admitted after all that run, and return in the order of their first admission. So the sequence that was admitted first always makes
//! progress.
//!
//! **Tenants.** With tenants, sharing has two levels: first among the tenants (`tenant_accounts.rs`), then among the requests of each. The
//! reserve is then for tenants that run nothing. A row adds less debt to a request with a higher priority.

use std::collections::{BTreeMap, VecDeque};

use crate::client::Client;
use crate::queue_permits::RequestKey;
use crate::sequence::Sequence;
use crate::tenant_accounts::{ROW, TenantAccounts};

/// One request. Exists while any sequence of it waits, runs or is preempted.
#[derive(Debug)]
struct RequestQueue {
    client: Client,
    waiting: VecDeque<Sequence>,
    /// Number of sequences that run or were preempted.
    num_started: usize,
    debt: u64,
    /// The release count at which the request's first sequence last found too little memory.
    blocked_at: Option<u64>,
}

#[derive(Debug, Default)]
pub struct Waiting {
    shares: BTreeMap<RequestKey, RequestQueue>,
    preempted: VecDeque<Sequence>, // in order of first admission
    /// The release count at which the first preempted sequence last found too little memory.
    preempted_blocked_at: Option<u64>,
    accounts: TenantAccounts,
    /// Requests that are skipped until the next step.
    passed_over: Vec<RequestKey>,
}

/// The limits of the next admission.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionLimits {
    /// Whether there is a running place beyond those reserved for requests that run nothing.
    pub unreserved: bool,
    /// See [`num_releases`](crate::block_manager::BlockManager::num_releases).
    pub num_releases: u64,
    /// The most tokens that the sequence may have.
    pub max_tokens: usize,
}

impl Waiting {
    /// The number of waiting sequences, including preempted ones.
    pub fn len(&self) -> usize {
        self.preempted.len() + self.shares.values().map(|share| share.waiting.len()).sum::<usize>()
    }

    pub fn is_empty(&self) -> bool {
        self.preempted.is_empty() && self.shares.values().all(|share| share.waiting.is_empty())
    }

    /// The most rows that a waiting sequence must run in one step.
    pub fn most_together(&self) -> usize {
        let waiting = self.preempted.iter().chain(self.shares.values().flat_map(|share| &share.waiting));
        waiting.map(|sequence| sequence.prompt().most_together()).max().unwrap_or(1)
    }

    /// Adds a sequence at the end of its request's queue.
    pub fn push(&mut self, sequence: Sequence) {
        let (request, client) = (sequence.request(), sequence.client());
        if !self.shares.contains_key(&request) {
            let debt = self.accounts.get(client.tenant).clock;
            self.shares.insert(request, RequestQueue { client, waiting: VecDeque::new(), num_started: 0, debt, blocked_at: None });
            self.accounts.open(client);
        }
        self.accounts.add_waiting(client.tenant);
        self.shares.entry(request).and_modify(|share| share.waiting.push_back(sequence));
    }

    /// Adds a preempted sequence. All sequences already in the preempted list must have been admitted after it.
    pub fn push_preempted(&mut self, sequence: Sequence) {
        debug_assert!(self.preempted.front().is_none_or(|first| sequence.id < first.id), "the youngest is preempted first");
        self.preempted.push_front(sequence);
        self.preempted_blocked_at = None;
    }

    /// Takes the next sequence to start. None if there is no room, or if the next candidate lacked blocks and none have been released
    /// since. A request that already runs something is skipped while it lacks blocks. The same holds for a tenant.
    pub fn next(&mut self, room: AdmissionLimits) -> Option<Sequence> {
        if let Some(first) = self.preempted.front() {
            let may_start = self.preempted_blocked_at != Some(room.num_releases) && first.num_tokens() <= room.max_tokens;
            return if may_start { self.preempted.pop_front() } else { None };
        }
        let is_blocked = |share: &RequestQueue| share.blocked_at == Some(room.num_releases);
        // Requests and tenants that run something and lack memory.
        let (mut requests, mut tenants) = (Vec::<RequestKey>::new(), Vec::new());
        loop {
            let may_start = |(key, share): &(&RequestKey, &RequestQueue)| {
                let is_open = room.unreserved || !self.runs_something(share);
                let fits = share.waiting.front().is_some_and(|first| first.num_tokens() <= room.max_tokens);
                is_open && fits && !self.passed_over.contains(key) && !requests.contains(key) && !tenants.contains(&share.client.tenant)
            };
            let debt = |share: &RequestQueue| (self.accounts.get(share.client.tenant).debt, share.debt);
            let (&key, share) = self.shares.iter().filter(may_start).min_by_key(|(key, share)| (debt(share), **key))?;
            let tenant = share.client.tenant;
            if !is_blocked(share) {
                self.accounts.remove_waiting(tenant, 1);
                return self.shares.get_mut(&key)?.waiting.pop_front();
            }
            match tenant {
                _ if !self.runs_something(share) => return None,
                None => requests.push(key),
                // All requests of the tenant are skipped. Otherwise its other requests could run for ever while this one waits for memory.
                Some(_) => tenants.push(tenant),
            }
        }
    }

    /// Whether any sequence of the request's tenant runs or was preempted. For a request without a tenant, only its own sequences count.
    fn runs_something(&self, share: &RequestQueue) -> bool {
        share.num_started > 0 || share.client.tenant.is_some() && self.accounts.get(share.client.tenant).num_started > 0
    }

    /// Whether another sequence of the same tenant runs or was preempted. Without a tenant, only sequences of the same request count.
    pub fn has_started(&self, sequence: &Sequence) -> bool {
        self.shares.get(&sequence.request()).is_some_and(|share| self.runs_something(share))
    }

    /// Records that a sequence returned by [`next`](Self::next) was admitted.
    pub fn start(&mut self, sequence: &Sequence) {
        // A preempted sequence (id > 0) was counted at its first start.
        if let Some(share) = self.shares.get_mut(&sequence.request()).filter(|_| sequence.id == 0) {
            share.num_started += 1;
            share.blocked_at = None;
            self.accounts.start(share.client.tenant);
        }
    }

    /// Puts back a sequence returned by [`next`](Self::next). Its request is skipped until the next step.
    pub fn put_back(&mut self, sequence: Sequence) {
        self.passed_over.push(sequence.request());
        match self.shares.get_mut(&sequence.request()) {
            Some(share) if sequence.id == 0 => {
                self.accounts.put_back(share.client.tenant);
                share.waiting.push_front(sequence);
            }
            _ => self.preempted.push_front(sequence),
        }
    }

    /// Puts back a sequence that found too little memory after `num_releases` releases.
    pub fn put_back_until_release(&mut self, sequence: Sequence, num_releases: u64) {
        match self.shares.get_mut(&sequence.request()) {
            Some(share) if sequence.id == 0 => {
                share.blocked_at = Some(num_releases);
                self.accounts.put_back(share.client.tenant);
                share.waiting.push_front(sequence);
            }
            _ => {
                self.preempted_blocked_at = Some(num_releases);
                self.preempted.push_front(sequence);
            }
        }
    }

    /// Records that a started sequence has ended.
    pub fn leave(&mut self, request: RequestKey) {
        if let Some(share) = self.shares.get_mut(&request) {
            share.num_started -= 1;
            let (client, is_over) = (share.client, share.num_started == 0 && share.waiting.is_empty());
            self.accounts.leave(client.tenant);
            if is_over {
                self.shares.remove(&request);
                self.accounts.close(client);
            }
        }
    }

    /// Begins a step: no request is skipped any more.
    pub fn begin_step(&mut self) {
        self.passed_over.clear();
    }

    /// Adds rows that a request's sequence runs to the debts of the request and of its tenant.
    pub fn charge(&mut self, request: RequestKey, num_rows: usize) {
        if let Some(share) = self.shares.get_mut(&request) {
            share.debt += num_rows as u64 * ROW / share.client.weight();
            self.accounts.charge(share.client, num_rows);
        }
    }

    /// Drops the sequences whose clients are gone. Returns how many.
    pub fn reap_cancelled(&mut self) -> usize {
        let mut gone = Vec::new();
        // `is_cancelled` is read once per sequence, because a client may leave at any moment.
        self.preempted.retain(|sequence| {
            let is_gone = sequence.is_cancelled();
            gone.extend(is_gone.then(|| sequence.request()));
            !is_gone
        });
        let mut num_reaped = gone.len();
        gone.into_iter().for_each(|request| self.leave(request));
        for share in self.shares.values_mut() {
            let num_waiting = share.waiting.len();
            share.waiting.retain(|sequence| !sequence.is_cancelled());
            let num_gone = num_waiting - share.waiting.len();
            if num_gone > 0 {
                self.accounts.remove_waiting(share.client.tenant, num_gone);
                num_reaped += num_gone;
            }
        }
        self.shares.retain(|_, share| {
            let is_over = share.num_started == 0 && share.waiting.is_empty();
            if is_over {
                self.accounts.close(share.client);
            }
            !is_over
        });
        if num_reaped > 0 {
            // Another sequence, which needs less, may be first now.
            self.preempted_blocked_at = None;
            self.shares.values_mut().for_each(|share| share.blocked_at = None);
        }
        num_reaped
    }

    /// Removes and returns every waiting sequence, and forgets all requests.
    pub fn drain(&mut self) -> Vec<Sequence> {
        let shares = std::mem::take(&mut self.shares);
        self.accounts = TenantAccounts::default();
        self.preempted.drain(..).chain(shares.into_values().flat_map(|share| share.waiting)).collect()
    }

    /// Checks the invariants against the running sequences; panics if one is broken.
    #[cfg(test)]
    pub fn check<'a>(&'a self, running: impl Iterator<Item = &'a Sequence>) {
        let started: Vec<&Sequence> = running.chain(&self.preempted).collect();
        let ids: Vec<u64> = started.iter().map(|sequence| sequence.id).collect();
        assert!(ids.is_sorted() && !ids.contains(&0), "not in order of admission: {ids:?}");
        for (key, share) in &self.shares {
            assert_eq!(share.num_started, started.iter().filter(|sequence| sequence.request() == *key).count(), "request {key}");
            assert!(share.num_started > 0 || !share.waiting.is_empty(), "request {key} is over");
            assert!(share.waiting.iter().all(|sequence| sequence.id == 0 && sequence.request() == *key));
        }
        self.accounts.check(self.shares.values().map(|share| (share.client, share.num_started, share.waiting.len())));
        assert!(started.iter().all(|sequence| self.shares.contains_key(&sequence.request())));
        let mut waiting = self.preempted.iter().chain(self.shares.values().flat_map(|share| &share.waiting));
        assert!(waiting.all(|sequence| sequence.cache.is_empty() && sequence.num_pending() == 0));
    }
}

//! The sequences that wait, and which of them starts next.
//!
//! **Order.** Requests share the engine, not sequences: one request with a thousand prompts gets what one with a single prompt gets. A
//! request's *debt* is the number of rows that its sequences have run. The request with the least debt goes next; among equals, the one
//! that came first. Within a request, sequences go in the order in which they were handed in. The clock is what a request would owe now if
//! all had always had equal shares. A new request starts with the clock's time as its debt, so that it is neither owed the past nor behind
//! those that got more than their share. The debt of a waiting request stands still while the clock goes on, so each one's turn comes.
//!
//! **Reserve.** An eighth of the places to run and of the blocks is for requests that run nothing, so that a request with many sequences
//! leaves room for those to come.
//!
//! A preempted sequence goes before all of these, as its client has seen a part of its answer. Preempted sequences arrived at the engine
//! after all that run, and return in the order of their first admission. So the sequence admitted first always makes progress.
//!
//! **Tenants.** Requests of tenants share on two levels: first the tenants among each other (`tenant_accounts.rs`), then the requests of
//! each. Then the reserve is for tenants that run nothing. A row counts less for a request of a higher priority.

use std::collections::{BTreeMap, VecDeque};

use crate::client::Client;
use crate::queue_permits::RequestKey;
use crate::sequence::Sequence;
use crate::tenant_accounts::{ROW, TenantAccounts};

/// One request, as long as a sequence of it waits, runs or is preempted.
#[derive(Debug)]
struct RequestQueue {
    client: Client,
    waiting: VecDeque<Sequence>,
    /// Sequences that run or were preempted.
    num_started: usize,
    debt: u64,
    /// The count of releases at which its first sequence last found too little memory.
    blocked_at: Option<u64>,
}

#[derive(Debug, Default)]
pub struct Waiting {
    shares: BTreeMap<RequestKey, RequestQueue>,
    preempted: VecDeque<Sequence>, // in order of first admission
    /// The count of releases at which the first preempted sequence last found too little memory.
    preempted_blocked_at: Option<u64>,
    accounts: TenantAccounts,
    /// Requests that are left out until the next step.
    passed_over: Vec<RequestKey>,
}

/// What bounds the next admission.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionLimits {
    /// Whether there is more room to run than what is reserved for requests that run nothing.
    pub unreserved: bool,
    /// See [`num_releases`](crate::block_manager::BlockManager::num_releases).
    pub num_releases: u64,
    /// The most tokens that the sequence may have.
    pub max_tokens: usize,
}

impl Waiting {
    /// The number of sequences that wait, including preempted ones.
    pub fn len(&self) -> usize {
        self.preempted.len() + self.shares.values().map(|share| share.waiting.len()).sum::<usize>()
    }

    pub fn is_empty(&self) -> bool {
        self.preempted.is_empty() && self.shares.values().all(|share| share.waiting.is_empty())
    }

    /// Adds a sequence behind those of its request.
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

    /// Adds a sequence that was preempted. All preempted ones were admitted after it.
    pub fn push_preempted(&mut self, sequence: Sequence) {
        debug_assert!(self.preempted.front().is_none_or(|first| sequence.id < first.id), "the youngest is preempted first");
        self.preempted.push_front(sequence);
        self.preempted_blocked_at = None;
    }

    /// Takes the sequence to start next. None if there is no room for one, or if the one whose turn it is found too little memory and none
    /// was released since. A request that runs something lets others pass while it has too little memory. So does
    /// a tenant.
    pub fn next(&mut self, room: AdmissionLimits) -> Option<Sequence> {
        if let Some(first) = self.preempted.front() {
            let may_start = self.preempted_blocked_at != Some(room.num_releases) && first.tokens.len() <= room.max_tokens;
            return if may_start { self.preempted.pop_front() } else { None };
        }
        let is_blocked = |share: &RequestQueue| share.blocked_at == Some(room.num_releases);
        // Those that run something and have too little memory.
        let (mut requests, mut tenants) = (Vec::<RequestKey>::new(), Vec::new());
        loop {
            let may_start = |(key, share): &(&RequestKey, &RequestQueue)| {
                let is_open = room.unreserved || !self.runs_something(share);
                let fits = share.waiting.front().is_some_and(|first| first.tokens.len() <= room.max_tokens);
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
                // Its other requests do not pass: else they would run for ever while this one waits for memory.
                Some(_) => tenants.push(tenant),
            }
        }
    }

    /// Whether a sequence of the request's tenant runs or was preempted. For a request that is nobody's, a sequence of its own.
    fn runs_something(&self, share: &RequestQueue) -> bool {
        share.num_started > 0 || share.client.tenant.is_some() && self.accounts.get(share.client.tenant).num_started > 0
    }

    /// Whether another sequence of this one's tenant runs or was preempted, or one of its request if that is nobody's.
    pub fn has_started(&self, sequence: &Sequence) -> bool {
        self.shares.get(&sequence.request()).is_some_and(|share| self.runs_something(share))
    }

    /// A sequence that [`next`](Self::next) gave was admitted.
    pub fn start(&mut self, sequence: &Sequence) {
        // One that was preempted has started before.
        if let Some(share) = self.shares.get_mut(&sequence.request()).filter(|_| sequence.id == 0) {
            share.num_started += 1;
            share.blocked_at = None;
            self.accounts.start(share.client.tenant);
        }
    }

    /// Puts back a sequence that [`next`](Self::next) gave. Its request is passed over until the next step.
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

    /// A started sequence has ended.
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

    /// A step begins: nobody is passed over.
    pub fn begin_step(&mut self) {
        self.passed_over.clear();
    }

    /// Adds the rows that a sequence of a request runs to its debt and to its tenant's.
    pub fn charge(&mut self, request: RequestKey, num_rows: usize) {
        if let Some(share) = self.shares.get_mut(&request) {
            share.debt += num_rows as u64 * ROW / share.client.weight();
            self.accounts.charge(share.client, num_rows);
        }
    }

    /// Drops the sequences whose clients have gone. Returns how many.
    pub fn reap_cancelled(&mut self) -> usize {
        let before = self.len();
        let mut gone = Vec::new();
        // Asked once: a client may leave at any moment.
        self.preempted.retain(|sequence| {
            let is_gone = sequence.is_cancelled();
            gone.extend(is_gone.then(|| sequence.request()));
            !is_gone
        });
        gone.into_iter().for_each(|request| self.leave(request));
        for share in self.shares.values_mut() {
            let num_waiting = share.waiting.len();
            share.waiting.retain(|sequence| !sequence.is_cancelled());
            self.accounts.remove_waiting(share.client.tenant, num_waiting - share.waiting.len());
        }
        self.shares.retain(|_, share| {
            let is_over = share.num_started == 0 && share.waiting.is_empty();
            if is_over {
                self.accounts.close(share.client);
            }
            !is_over
        });
        let num_reaped = before - self.len();
        if num_reaped > 0 {
            // Another sequence may be first now, and need less.
            self.preempted_blocked_at = None;
            self.shares.values_mut().for_each(|share| share.blocked_at = None);
        }
        num_reaped
    }

    /// Takes every waiting sequence out and forgets all requests.
    pub fn drain(&mut self) -> Vec<Sequence> {
        let shares = std::mem::take(&mut self.shares);
        self.accounts = TenantAccounts::default();
        self.preempted.drain(..).chain(shares.into_values().flat_map(|share| share.waiting)).collect()
    }

    /// Panics unless the books balance with the sequences that run.
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

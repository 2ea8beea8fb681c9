//! What each tenant has run, and which one goes next.
//!
//! A tenant's *debt* is the number of rows that its requests have run, divided by their priorities. The tenant with the least debt goes
//! next. The virtual time is what a tenant that always waited would owe now, and whoever begins to wait owes at least that. So nobody
//! saves up a claim while it needs nothing. While nobody waits, nobody is denied anything: all debts are forgotten.

use std::collections::BTreeMap;

use crate::client::Client;

/// Debt per row of a client with priority 1. Dividing a row among clients leaves a remainder below this.
pub const ROW: u64 = 1 << 20;

/// A tenant with requests, or all requests that are nobody's together.
#[derive(Clone, Copy, Debug, Default)]
pub struct TenantAccount {
    pub num_requests: usize,
    /// Sequences that run or were preempted.
    pub num_started: usize,
    /// Sequences that were never admitted.
    pub num_waiting: usize,
    pub debt: u64,
    /// What a request of this account would owe now if all of them had always had equal shares.
    pub clock: u64,
    /// The sum over its requests.
    weights: u64,
    /// The priority of the newest request.
    weight: u64,
}

#[derive(Debug, Default)]
pub struct TenantAccounts {
    by_tenant: BTreeMap<Option<u64>, TenantAccount>,
    virtual_time: u64,
}

impl TenantAccounts {
    pub fn get(&self, tenant: Option<u64>) -> TenantAccount {
        self.by_tenant.get(&tenant).copied().unwrap_or_default()
    }

    /// A request has come.
    pub fn open(&mut self, client: Client) {
        let account = self.by_tenant.entry(client.tenant).or_default();
        account.num_requests += 1;
        account.weights += client.weight();
        account.weight = client.weight();
    }

    /// A request is over.
    pub fn close(&mut self, client: Client) {
        let Some(account) = self.by_tenant.get_mut(&client.tenant) else { return };
        account.num_requests -= 1;
        account.weights -= client.weight();
        if account.num_requests == 0 {
            // The debt of a tenant that comes back is at least what those owe that waited meanwhile.
            self.by_tenant.remove(&client.tenant);
        }
    }

    /// Sequences of a tenant begin to wait.
    pub fn add_waiting(&mut self, tenant: Option<u64>) {
        if self.get(tenant).num_waiting == 0 {
            self.update_virtual_time();
        }
        let virtual_time = self.virtual_time;
        let account = self.by_tenant.entry(tenant).or_default();
        if account.num_waiting == 0 {
            account.debt = account.debt.max(virtual_time);
        }
        account.num_waiting += 1;
    }

    /// A sequence that was taken out of the waiting ones is put back: it has never ceased to wait.
    pub fn put_back(&mut self, tenant: Option<u64>) {
        self.by_tenant.entry(tenant).or_default().num_waiting += 1;
    }

    pub fn remove_waiting(&mut self, tenant: Option<u64>, count: usize) {
        if let Some(account) = self.by_tenant.get_mut(&tenant) {
            account.num_waiting -= count;
        }
    }

    pub fn start(&mut self, tenant: Option<u64>) {
        self.by_tenant.entry(tenant).or_default().num_started += 1;
    }

    pub fn leave(&mut self, tenant: Option<u64>) {
        if let Some(account) = self.by_tenant.get_mut(&tenant) {
            account.num_started -= 1;
        }
    }

    /// Adds rows that a request of a client runs to what its tenant owes.
    pub fn charge(&mut self, client: Client, num_rows: usize) {
        let rows = num_rows as u64 * ROW;
        let waiting: u64 = self.by_tenant.values().filter(|account| account.num_waiting > 0).map(|account| account.weight).sum();
        self.virtual_time += rows / waiting.max(1);
        if let Some(account) = self.by_tenant.get_mut(&client.tenant) {
            account.debt += rows / client.weight();
            account.clock += rows / account.weights.max(1);
        }
    }

    /// The virtual time lies between the debts of those that wait: some have got their share and some have not. Without anybody who waits,
    /// all are even.
    fn update_virtual_time(&mut self) {
        let mut debts = self.by_tenant.values().filter(|account| account.num_waiting > 0).map(|account| account.debt);
        if let Some(first) = debts.next() {
            let (least, most) = debts.fold((first, first), |(least, most), debt| (least.min(debt), most.max(debt)));
            self.virtual_time = self.virtual_time.clamp(least, most);
            return;
        }
        let most = self.by_tenant.values().map(|account| account.debt).max().unwrap_or(0);
        self.virtual_time = self.virtual_time.max(most);
        self.by_tenant.values_mut().for_each(|account| account.debt = self.virtual_time);
    }

    /// Panics unless the books are those of `requests`: client, started and waiting sequences of each.
    #[cfg(test)]
    pub fn check(&self, requests: impl Iterator<Item = (Client, usize, usize)>) {
        let mut sums: BTreeMap<Option<u64>, (usize, usize, usize, u64)> = BTreeMap::new();
        for (client, num_started, num_waiting) in requests {
            let sum = sums.entry(client.tenant).or_default();
            *sum = (sum.0 + 1, sum.1 + num_started, sum.2 + num_waiting, sum.3 + client.weight());
        }
        let of = |account: &TenantAccount| (account.num_requests, account.num_started, account.num_waiting, account.weights);
        let books: BTreeMap<_, _> = self.by_tenant.iter().map(|(tenant, account)| (*tenant, of(account))).collect();
        assert_eq!(books, sums, "requests, started, waiting, weights per tenant");
    }
}

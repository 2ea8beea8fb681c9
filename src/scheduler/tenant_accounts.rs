//! Accounts of the rows that each tenant has run, which decide the tenant that goes next.
//!
//! A tenant's *debt* is the number of rows that its requests have run, divided by their priorities. The tenant with the least debt goes
//! next. The *virtual time* is the debt that a tenant would have now if it had always waited. When a tenant begins to wait, its debt is
//! raised to at least the virtual time, so that idle time earns no claim. While no tenant waits, none lacks anything, and all debts are
//! made equal.

use std::collections::BTreeMap;

use crate::client::Client;

/// Debt per row of a client with priority 1. Large, so that little is lost when a row is divided by weights.
pub const ROW: u64 = 1 << 20;

/// The account of a tenant with requests. Requests without a tenant share one account.
#[derive(Clone, Copy, Debug, Default)]
pub struct TenantAccount {
    pub num_requests: usize,
    /// Number of sequences that run or were preempted.
    pub num_started: usize,
    /// Number of sequences that were never admitted.
    pub num_waiting: usize,
    pub debt: u64,
    /// The debt that each request of this account would have now if all had always had equal shares.
    pub clock: u64,
    /// The sum of the requests' weights.
    weights: u64,
    /// The weight of the newest request.
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

    /// Counts a new request.
    pub fn open(&mut self, client: Client) {
        let account = self.by_tenant.entry(client.tenant).or_default();
        account.num_requests += 1;
        account.weights += client.weight();
        account.weight = client.weight();
    }

    /// Removes a request that has ended.
    pub fn close(&mut self, client: Client) {
        let Some(account) = self.by_tenant.get_mut(&client.tenant) else { return };
        account.num_requests -= 1;
        account.weights -= client.weight();
        if account.num_requests == 0 {
            // If the tenant comes back, its debt starts at the virtual time.
            self.by_tenant.remove(&client.tenant);
        }
    }

    /// Counts a sequence of a tenant that begins to wait.
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

    /// Counts a sequence that was taken out of the queue and is put back, as if it had never left.
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

    /// Adds the rows that a request runs to its tenant's debt.
    pub fn charge(&mut self, client: Client, num_rows: usize) {
        let rows = num_rows as u64 * ROW;
        let waiting: u64 = self.by_tenant.values().filter(|account| account.num_waiting > 0).map(|account| account.weight).sum();
        self.virtual_time += rows / waiting.max(1);
        if let Some(account) = self.by_tenant.get_mut(&client.tenant) {
            account.debt += rows / client.weight();
            account.clock += rows / account.weights.max(1);
        }
    }

    /// Keeps the virtual time between the least and the largest debt of the waiting tenants. If no tenant waits, makes all debts equal.
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

    /// Checks the accounts against `requests` (client, started sequences, waiting sequences); panics if they differ.
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

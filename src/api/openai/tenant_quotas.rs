//! Quotas of a bounded resource that tenants share and keep until they return it: files, batches, background responses. Unlike objects in
//! memory, these cannot be displaced, so no tenant may take all of the resource.

use std::collections::HashMap;

/// Why a request for more is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaError {
    /// Other tenants have taken the rest.
    Full,
    /// The tenant has taken its share.
    Share { own: u64, free: u64 },
}

/// The amount of a resource that each tenant has taken, in bytes or in number.
#[derive(Debug)]
pub struct TenantQuotas {
    max: u64,
    taken: u64,
    by_tenant: HashMap<String, u64>,
}

impl TenantQuotas {
    pub fn new(max: u64) -> Self {
        Self { max, taken: 0, by_tenant: HashMap::new() }
    }

    /// The total amount that is taken.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Takes `more` for a tenant. A tenant with a key may hold at most as much as it leaves free, so a tenant alone gets half. A tenant
    /// that holds nothing may always take one, if one is left. Without keys, only the total is bounded.
    pub fn take(&mut self, tenant: &str, more: u64) -> Result<(), QuotaError> {
        let free = self.max.saturating_sub(self.taken);
        let own = self.by_tenant.get(tenant).copied().unwrap_or(0);
        if more > free {
            return Err(QuotaError::Full);
        }
        let is_first = own == 0 && more == 1;
        if more > 0 && !tenant.is_empty() && !is_first && own + more > free - more {
            return Err(QuotaError::Share { own, free });
        }
        self.add(tenant, more);
        Ok(())
    }

    /// Takes `more` even beyond the bounds, for objects that already exist.
    pub fn add(&mut self, tenant: &str, more: u64) {
        if more > 0 {
            self.taken += more;
            *self.by_tenant.entry(tenant.to_owned()).or_default() += more;
        }
    }

    /// Gives back a part of what a tenant has taken.
    pub fn give(&mut self, tenant: &str, less: u64) {
        let Some(own) = self.by_tenant.get_mut(tenant) else { return };
        let less = less.min(*own);
        *own -= less;
        self.taken -= less;
        if *own == 0 {
            self.by_tenant.remove(tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_tenant_takes_at_most_as_much_as_it_leaves_free() {
        let mut shares = TenantQuotas::new(8);
        assert!((0..4).all(|_| shares.take("ann", 1).is_ok()));
        assert_eq!(shares.take("ann", 1), Err(QuotaError::Share { own: 4, free: 4 }));
        assert!(shares.take("bob", 3).is_err() && shares.take("bob", 2).is_ok());
        assert_eq!(shares.take("carl", 3), Err(QuotaError::Full));
        assert!(shares.take("carl", 1).is_ok() && shares.take("dora", 1).is_ok() && shares.take("ann", 0).is_ok());
        shares.give("ann", 4);
        assert!(shares.take("ann", 2).is_ok() && shares.taken() == 6);
        let mut alone = TenantQuotas::new(2);
        assert!(alone.take("", 2).is_ok() && alone.take("", 0).is_ok(), "without keys");
        assert_eq!(alone.take("", 1), Err(QuotaError::Full));
    }

    proptest! {
        #[test]
        fn whatever_a_tenant_asks_for_half_is_left_for_others(max in 2u64..9_000, pieces in prop::collection::vec(0u64..9_000, 1..200)) {
            let mut shares = TenantQuotas::new(max);
            let mut taken = 0;
            for piece in pieces {
                if shares.take("greedy", piece).is_ok() {
                    taken += piece;
                }
            }
            prop_assert_eq!(shares.taken(), taken);
            prop_assert!(taken <= max / 2);
            prop_assert!(shares.take("other", 1).is_ok());
            shares.give("greedy", u64::MAX);
            prop_assert!(shares.take("greedy", 1).is_ok());
        }
    }
}

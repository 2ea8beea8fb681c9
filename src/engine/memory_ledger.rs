//! Counts the memory that the KV caches of this process hold on each device. Caches shrink if another model needs their memory, so their
//! memory counts as free when a caller asks how much memory there is.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use super::BackendKind;

type CacheLedger = HashMap<(BackendKind, u32), u64>;

fn held() -> MutexGuard<'static, CacheLedger> {
    static HELD: LazyLock<Mutex<CacheLedger>> = LazyLock::new(Mutex::default);
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The bytes that the KV caches of this process hold on a device.
pub fn cache_bytes(kind: BackendKind, index: u32) -> u64 {
    held().get(&(kind, index)).copied().unwrap_or(0)
}

/// The entry of one cache in the ledger. Dropped with the cache.
#[derive(Debug)]
pub struct CacheEntry {
    device: (BackendKind, u32),
    bytes: u64,
}

impl CacheEntry {
    pub fn new(kind: BackendKind, index: u32, bytes: u64) -> Self {
        let mut entry = Self { device: (kind, index), bytes: 0 };
        entry.set(bytes);
        entry
    }

    pub fn set(&mut self, bytes: u64) {
        let mut held = held();
        let all = held.entry(self.device).or_default();
        *all = *all - self.bytes + bytes;
        self.bytes = bytes;
    }
}

impl Drop for CacheEntry {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caches_of_a_device_are_summed_until_they_are_dropped() {
        let of = |index| cache_bytes(BackendKind::Cuda, index);
        let (mut one, other) = (CacheEntry::new(BackendKind::Cuda, 1000, 5), CacheEntry::new(BackendKind::Cuda, 1000, 7));
        assert_eq!((of(1000), of(1001)), (12, 0));
        one.set(2);
        assert_eq!(of(1000), 9);
        drop(other);
        assert_eq!(of(1000), 2);
        drop(one);
        assert_eq!(of(1000), 0);
    }
}

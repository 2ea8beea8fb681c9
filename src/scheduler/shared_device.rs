//! Shares one device among models: time in slices (`time_slicing.rs`), and the memory that weights leave among the KV caches.
//!
//! Each model is entitled to a share of that memory, and may use more while no other model needs it. A cache that finds no free memory asks
//! the others. Models without work give all but their least cache. Busy models give the idle blocks that they hold beyond their share. If
//! the asking cache has less than its own share, they also preempt running sequences for it. The asking cache does not wait for answers:
//! the memory is there at a later step, or not.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use crate::time_slicing::{TimeSliceClient, TimeSlicer};
use engine::BackendKind;

/// The longest time that a load waits for the caches to give back memory: about as long as a step may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// A request of another model for memory that this cache may hold.
#[derive(Debug)]
pub struct MemoryRequest {
    pub bytes: u64,
    /// Whether running sequences may be preempted for it.
    pub preempts: bool,
    /// Receives the number of bytes given.
    pub reply: Option<Sender<u64>>,
}

/// A device that several models of this process may run on.
#[derive(Debug, Default)]
pub struct SharedDevice {
    slicer: Arc<TimeSlicer>,
    caches: Mutex<Caches>,
    /// Memory reserved for models that are being loaded [bytes].
    loading: AtomicU64,
    /// Whether an engine has lost the device or hangs on it, so that only a new process can use it.
    lost: AtomicBool,
}

#[derive(Debug, Default)]
struct Caches {
    by_id: BTreeMap<u64, Cache>,
    next_id: u64,
}

/// The KV cache of one model.
#[derive(Debug)]
struct Cache {
    requests: Sender<MemoryRequest>,
    share: f64,
    size: CacheState,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct CacheState {
    /// The part that the cache always keeps [bytes].
    pub least: u64,
    pub backed: u64,
    pub most: u64,
    /// Whether the model has work.
    pub is_busy: bool,
}

impl SharedDevice {
    /// Returns the backend's device with this index, the same instance for every caller in this process.
    pub fn of(kind: BackendKind, index: u32) -> Arc<Self> {
        type Devices = Mutex<HashMap<(BackendKind, u32), Arc<SharedDevice>>>;
        static DEVICES: LazyLock<Devices> = LazyLock::new(Devices::default);
        let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        devices.entry((kind, index)).or_default().clone()
    }

    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
        self.slicer.end();
    }

    /// Whether an engine has lost the device or hangs on it, so that only a new process can use it.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    fn caches(&self) -> MutexGuard<'_, Caches> {
        // Nothing panics under the lock.
        self.caches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves `bytes` bytes for a model that is being loaded, as far as other models' caches can give them. The caches give idle memory
    /// first, then what they hold beyond their future shares. `free` measures the device's free memory. Until the result is dropped, no
    /// cache grows into the reserved memory.
    pub fn reserve_memory(self: &Arc<Self>, bytes: u64, free: impl Fn() -> Option<u64>) -> MemoryReservation {
        self.loading.fetch_add(bytes, Ordering::AcqRel);
        let room = MemoryReservation { device: self.clone(), bytes };
        for preempts in [false, true] {
            let Some(short) = free().and_then(|free| bytes.checked_sub(free)).filter(|&short| short > 0) else { return room };
            let asked = self.caches().for_newcomer(short, preempts);
            let replies: Vec<_> = asked
                .into_iter()
                .map(|(requests, bytes)| {
                    let (reply, given) = crossbeam_channel::bounded(1);
                    // The send fails if the model has just stopped.
                    let _ = requests.send(MemoryRequest { bytes, preempts, reply: Some(reply) });
                    given
                })
                .collect();
            let deadline = Instant::now() + PATIENCE;
            // A model that does not answer gives nothing.
            replies.iter().for_each(|given| {
                let _ = given.recv_deadline(deadline);
            });
        }
        room
    }

    /// Adds a model to the device.
    pub(crate) fn join(self: &Arc<Self>, share: f64) -> (TimeSliceClient, CacheHandle) {
        let (sender, requests) = crossbeam_channel::unbounded();
        let mut caches = self.caches();
        let id = caches.next_id;
        caches.next_id += 1;
        caches.by_id.insert(
            id,
            Cache { requests: sender, share: if share.is_finite() { share.max(1e-3) } else { 1.0 }, size: CacheState::default() },
        );
        drop(caches);
        (TimeSliceClient::join(&self.slicer, share), CacheHandle { device: self.clone(), id, requests })
    }
}

/// Device memory reserved for a model that is being loaded. The reservation ends when dropped.
#[derive(Debug)]
pub struct MemoryReservation {
    device: Arc<SharedDevice>,
    bytes: u64,
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.device.loading.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// A model's connection to the other caches of its device.
#[derive(Debug)]
pub struct CacheHandle {
    device: Arc<SharedDevice>,
    id: u64,
    requests: Receiver<MemoryRequest>,
}

impl CacheHandle {
    /// Memory requests of other models to this cache.
    pub fn requests(&self) -> &Receiver<MemoryRequest> {
        &self.requests
    }

    /// Publishes the cache's size to the other caches.
    pub fn set(&self, size: CacheState) {
        if let Some(cache) = self.device.caches().by_id.get_mut(&self.id) {
            cache.size = size;
        }
    }

    /// Whether a cache may take `bytes` of the `free` bytes on the device.
    pub fn permits(&self, bytes: u64, free: u64) -> bool {
        bytes.saturating_add(self.device.loading.load(Ordering::Acquire)) <= free
    }

    /// Asks the other caches for memory. `free`: free memory of the device [bytes].
    pub fn ask(&self, bytes: u64, free: u64) {
        for (requests, bytes, preempts) in self.device.caches().to_ask(self.id, bytes, free) {
            // The send fails if the model has just stopped.
            let _ = requests.send(MemoryRequest { bytes, preempts, reply: None });
        }
    }
}

impl Drop for CacheHandle {
    fn drop(&mut self) {
        self.device.caches().by_id.remove(&self.id);
    }
}

impl Caches {
    /// The memory of all caches and the free memory [bytes].
    fn total(&self, free: u64) -> u64 {
        self.by_id.values().fold(free, |sum, cache| sum.saturating_add(cache.size.backed))
    }

    /// Chooses the caches to ask when the cache `id` needs memory: (channel, bytes, whether running sequences may be preempted).
    fn to_ask(&self, id: u64, bytes: u64, free: u64) -> Vec<(Sender<MemoryRequest>, u64, bool)> {
        let Some(own) = self.by_id.get(&id) else { return Vec::new() };
        let caches: Vec<(f64, u64)> = self.by_id.values().map(|cache| (cache.share, cache.size.most)).collect();
        let shares: BTreeMap<u64, u64> = self.by_id.keys().copied().zip(entitlements(self.total(free), &caches)).collect();
        let is_entitled = own.size.backed.saturating_add(bytes) <= shares[&id];
        let mut others: Vec<(&u64, &Cache)> = self.by_id.iter().filter(|(other, _)| **other != id).collect();
        others.sort_by_key(|(_, cache)| cache.size.is_busy);
        let mut left = bytes;
        let mut asked = Vec::new();
        for (other, cache) in others {
            let kept = if cache.size.is_busy { shares[other].max(cache.size.least) } else { cache.size.least };
            let given = cache.size.backed.saturating_sub(kept).min(left);
            if given > 0 {
                asked.push((cache.requests.clone(), given, is_entitled && cache.size.is_busy));
                left -= given;
            }
        }
        asked
    }

    /// Chooses the caches to ask when a model that is being loaded needs memory: (channel, bytes).
    fn for_newcomer(&self, bytes: u64, preempts: bool) -> Vec<(Sender<MemoryRequest>, u64)> {
        let mut caches: Vec<(f64, u64)> = self.by_id.values().map(|cache| (cache.share, cache.size.most)).collect();
        caches.push((1.0, u64::MAX));
        let shares = entitlements(self.total(0).saturating_sub(bytes), &caches);
        let mut order: Vec<(&Cache, u64)> = self.by_id.values().zip(shares).collect();
        order.sort_by_key(|(cache, _)| cache.size.is_busy);
        let mut left = bytes;
        let mut asked = Vec::new();
        for (cache, share) in order {
            let kept = if preempts { share.max(cache.size.least) } else { cache.size.least };
            let given = cache.size.backed.saturating_sub(kept).min(left);
            if given > 0 {
                asked.push((cache.requests.clone(), given));
                // The idle part of a cache is not known here, so each cache is asked for all of the missing bytes.
                left -= if preempts { given } else { 0 };
            }
        }
        asked
    }
}

/// Divides `total` bytes among caches of (share, largest size) in proportion to their shares. What one cache cannot use goes to the others.
fn entitlements(total: u64, caches: &[(f64, u64)]) -> Vec<u64> {
    let mut parts = vec![None; caches.len()];
    loop {
        let left = parts.iter().flatten().fold(total, |left: u64, part: &u64| left.saturating_sub(*part));
        let open: f64 = caches.iter().zip(&parts).filter(|(_, part)| part.is_none()).map(|((share, _), _)| share).sum();
        let part_of = |share: f64| (left as f64 * share / open) as u64;
        let full = caches.iter().zip(&parts).position(|(&(share, most), part)| part.is_none() && most <= part_of(share));
        match full {
            Some(index) => parts[index] = Some(caches[index].1),
            None => return caches.iter().zip(parts).map(|(&(share, _), part)| part.unwrap_or_else(|| part_of(share))).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_cache_cannot_use_goes_to_the_others() {
        assert_eq!(entitlements(90, &[(1.0, 100), (1.0, 100), (1.0, 100)]), [30, 30, 30]);
        assert_eq!(entitlements(90, &[(1.0, 10), (1.0, 100), (1.0, 100)]), [10, 40, 40]);
        assert_eq!(entitlements(90, &[(2.0, 100), (1.0, 100)]), [60, 30]);
        assert_eq!(entitlements(90, &[(1.0, 10), (1.0, 20)]), [10, 20], "more than all need");
        assert_eq!(entitlements(0, &[(1.0, 10)]), [0]);
        assert!(entitlements(5, &[]).is_empty());
    }

    struct Rig {
        device: Arc<SharedDevice>,
        models: Vec<(TimeSliceClient, CacheHandle)>,
    }

    /// Models whose caches are given as (least, backed, largest, is_busy).
    fn rig(sizes: &[(u64, u64, u64, bool)]) -> Rig {
        let device: Arc<SharedDevice> = Arc::default();
        let models = sizes.iter().map(|&(least, backed, most, is_busy)| {
            let (client, cache_handle) = device.join(1.0);
            cache_handle.set(CacheState { least, backed, most, is_busy });
            (client, cache_handle)
        });
        let models = models.collect();
        Rig { device, models }
    }

    fn asked(cache_handle: &CacheHandle) -> Vec<(u64, bool)> {
        cache_handle.requests().try_iter().map(|ask| (ask.bytes, ask.preempts)).collect()
    }

    #[test]
    fn idle_models_give_first_and_busy_ones_what_is_beyond_their_share() {
        let rig = rig(&[(1, 5, 100, true), (1, 60, 100, true), (1, 10, 100, false)]);
        let [one, large, idle] = [0, 1, 2].map(|i| &rig.models[i].1);
        // 75 bytes in all: each is entitled to 25
        one.ask(8, 0);
        assert_eq!((asked(idle), asked(large)), (vec![(8, false)], vec![]));
        one.ask(15, 0);
        assert_eq!((asked(idle), asked(large)), (vec![(9, false)], vec![(6, true)]), "within its share: sequences are preempted");
        one.ask(80, 0);
        assert_eq!((asked(idle), asked(large)), (vec![(9, false)], vec![(35, false)]), "beyond its share: idle blocks only");
        large.ask(10, 0);
        assert_eq!((asked(idle), asked(one)), (vec![(9, false)], vec![]), "the other one is within its share");
    }

    #[test]
    fn a_load_gets_room_and_nobody_grows_into_it() {
        let rig = rig(&[(10, 50, 100, true)]);
        let cache_handle = &rig.models[0].1;
        let free = AtomicU64::new(5);
        let room = std::thread::scope(|scope| {
            scope.spawn(|| {
                for expected in [(15, false), (7, true)] {
                    let MemoryRequest { bytes, preempts, reply } = cache_handle.requests().recv().unwrap();
                    assert_eq!((bytes, preempts), expected);
                    free.fetch_add(8, Ordering::SeqCst);
                    reply.unwrap().send(8).unwrap();
                }
            });
            rig.device.reserve_memory(20, || Some(free.load(Ordering::SeqCst)))
        });
        assert!(cache_handle.permits(1, 21) && !cache_handle.permits(2, 21), "20 bytes are the load's");
        drop(room);
        assert!(cache_handle.permits(21, 21));
        drop(rig.device.reserve_memory(20, || Some(20)));
        drop(rig.device.reserve_memory(20, || None));
        assert!(asked(cache_handle).is_empty(), "there is room, or nobody knows");
    }
}

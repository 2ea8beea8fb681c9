//! [`MemoryLimiter`]: bounds the memory of large grammars that texts follow at the same time.
//!
//! Each text has a copy of its compiled grammar, and a request may ask for many texts, so a pattern of fifty bytes could take gigabytes.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The largest total size of all copies of large grammars [bytes].
const MAX_BYTES: usize = 1 << 30;
/// Smaller grammars are not counted: any number of running texts may follow them [bytes].
const LARGE: usize = 1 << 20;

static BYTES: AtomicUsize = AtomicUsize::new(0);

/// The memory reserved for one copy, which is released on drop.
#[derive(Debug)]
pub struct MemoryLimiter(usize);

impl MemoryLimiter {
    /// Reserves memory for a copy of `bytes` bytes. `None` if there is no room.
    pub fn take(bytes: usize) -> Option<Self> {
        Self::take_of(&BYTES, bytes)
    }

    fn take_of(all: &AtomicUsize, bytes: usize) -> Option<Self> {
        let bytes = if bytes > LARGE { bytes } else { 0 };
        let add = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= MAX_BYTES || bytes == 0);
        all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok().map(|_| Self(bytes))
    }
}

impl Drop for MemoryLimiter {
    fn drop(&mut self) {
        BYTES.fetch_sub(self.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_grammars_share_their_room_and_small_ones_need_none() {
        let all = AtomicUsize::new(0);
        let mut taken: Vec<MemoryLimiter> = (0..32).map_while(|_| MemoryLimiter::take_of(&all, 40 << 20)).collect();
        assert_eq!(taken.len(), 25, "1 GiB in all");
        taken.extend((0..100).map_while(|_| MemoryLimiter::take_of(&all, LARGE)));
        assert_eq!(taken.len(), 125);
        taken.into_iter().for_each(std::mem::forget); // `drop` would subtract them from another sum
        assert!(MemoryLimiter::take(usize::MAX).is_none());
    }
}

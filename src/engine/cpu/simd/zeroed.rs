//! Allocates zeroed memory from the system and gives it back.

use std::ops::{Deref, DerefMut};

use memmap2::{MmapMut, MmapOptions};

/// Floats that start at 0. A page becomes resident when it is first touched. All pages go back to the system when the value is dropped.
///
/// The allocator guarantees neither. It writes zeros to memory that it has used before, which makes every page resident, and it keeps freed
/// memory for later allocations.
#[derive(Default)]
pub struct Zeroed(Option<MmapMut>);

impl Zeroed {
    /// Allocates `floats` floats. None if the system lacks memory or addresses.
    pub fn new(floats: usize) -> Option<Self> {
        if floats == 0 {
            return Some(Self::default());
        }
        let mut options = MmapOptions::new();
        options.len(floats.checked_mul(size_of::<f32>())?);
        // Miri refuses the flag.
        #[cfg(not(miri))]
        options.no_reserve_swap();
        let map = options.map_anon().ok()?;
        // Speeds up reading. This is only a hint: a system without huge pages ignores it.
        #[cfg(all(target_os = "linux", not(miri)))]
        let _ = map.advise(memmap2::Advice::HugePage);
        Some(Self(Some(map)))
    }
}

impl Zeroed {
    /// Gives the pages after the first `floats` floats back to the system. Their contents become 0.
    pub fn give_back_from(&mut self, floats: usize) {
        let Some(map) = &mut self.0 else { return };
        let from = (floats * size_of::<f32>()).next_multiple_of(page_size());
        let Some(len) = map.len().checked_sub(from).filter(|&len| len > 0) else { return };
        #[cfg(all(target_os = "linux", not(miri)))]
        // SAFETY: the map is anonymous, private and exclusively borrowed; its pages become zeros, which are valid floats.
        let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, from, len) };
        #[cfg(any(not(target_os = "linux"), miri))]
        map[from..from + len].fill(0);
    }
}

/// A multiple of all page sizes, except those of huge pages.
const fn page_size() -> usize {
    64 << 10
}

impl Deref for Zeroed {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        self.0.as_deref().map_or(&[], bytemuck::cast_slice)
    }
}

impl DerefMut for Zeroed {
    fn deref_mut(&mut self) -> &mut [f32] {
        self.0.as_deref_mut().map_or(&mut [], bytemuck::cast_slice_mut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zero_and_more_than_there_is_is_refused() {
        assert_eq!(Zeroed::new(0).unwrap().len(), 0);
        let mut floats = Zeroed::new(3_000_001).unwrap();
        assert!(floats.len() == 3_000_001 && floats.iter().all(|&x| x == 0.0));
        floats[3_000_000] = 1.0;
        assert_eq!(floats[3_000_000], 1.0);
        floats[2_000_000] = 1.0;
        floats.give_back_from(2_500_000);
        assert_eq!((floats[2_000_000], floats[3_000_000]), (1.0, 0.0));
        floats[3_000_000] = 2.0;
        floats.give_back_from(0);
        assert!(floats.iter().all(|&x| x == 0.0));
        floats.give_back_from(3_000_001);
        for too_many in [usize::MAX, usize::MAX / 4, 1 << 60] {
            assert!(Zeroed::new(too_many).is_none());
        }
    }
}

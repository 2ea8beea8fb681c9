//! [`HostAdapter`]: an adapter in the host's memory, for sequences to ask for, and [`AdapterPlaces`]: those that an engine has loaded.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use engine::{Adapter, AdapterUse, SequenceAdapters};
use sha2::{Digest, Sha256};

/// An adapter that is ready to be loaded to an engine.
#[derive(Debug)]
pub struct HostAdapter {
    /// Its name in logs and metrics.
    pub name: Arc<str>,
    /// No other adapter of the process has it, not even one that is read again from the same file.
    pub id: u64,
    pub adapter: Adapter,
    digest: OnceLock<[u8; 32]>,
}

impl HostAdapter {
    pub fn new(name: &str, adapter: Adapter) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { name: name.into(), id: NEXT.fetch_add(1, Ordering::Relaxed), adapter, digest: OnceLock::new() }
    }

    /// The adapter's hash, by which other processes know it. Computing it takes about as long as loading the adapter to an engine.
    fn digest(&self) -> &[u8; 32] {
        self.digest.get_or_init(|| {
            let mut hasher = Sha256::new();
            self.adapter.for_each_bytes(|bytes| hasher.update(bytes));
            hasher.finalize().into()
        })
    }
}

/// An adapter that a sequence asks for.
#[derive(Clone, Debug)]
pub struct AdapterRequest {
    pub adapter: Arc<HostAdapter>,
    pub scale: f32,
    /// The first token of the prompt that it changes. 0, but for an activated LoRA.
    pub first: u32,
}

/// The places of an engine for adapters, and what they hold. An adapter that a running sequence uses stays. Others stay until their place
/// is needed, the one that was used last the longest.
#[derive(Debug, Default)]
pub struct AdapterPlaces {
    places: Vec<Place>,
    /// The places whose adapters the engine has not loaded yet.
    due: Vec<u32>,
    /// Number of times that a sequence took places.
    clock: u64,
}

#[derive(Debug, Default)]
struct Place {
    adapter: Option<Arc<HostAdapter>>,
    /// Number of running sequences that use the adapter.
    num_users: usize,
    /// The clock when a sequence took the place.
    last_used: u64,
}

impl AdapterPlaces {
    pub fn new(count: usize) -> Self {
        Self { places: (0..count).map(|_| Place::default()).collect(), ..Self::default() }
    }

    /// Checks that a sequence can have these adapters.
    ///
    /// # Errors
    /// The reason why it cannot, for the client.
    pub fn check(&self, asked: &[AdapterRequest]) -> Result<(), String> {
        let (have, most) = (asked.len(), self.places.len());
        match most {
            _ if have == 0 => Ok(()),
            0 => Err("the model runs on a device without adapters".into()),
            _ if have > most => Err(format!("{have} adapters, and {most} can be loaded at once: raise engine.max_adapters")),
            _ => Ok(()),
        }
    }

    /// Takes the places of a sequence's adapters, which stay until [`leave`](Self::leave). None if other sequences use too many places.
    pub fn take(&mut self, asked: &[AdapterRequest]) -> Option<SequenceAdapters> {
        self.clock += 1;
        let mut taken: Vec<AdapterUse> = Vec::with_capacity(asked.len());
        for AdapterRequest { adapter, scale, first } in asked {
            let Some(place) = self.place_of(adapter) else {
                self.leave(&taken);
                return None;
            };
            let of = &mut self.places[place as usize];
            (of.num_users, of.last_used) = (of.num_users + 1, self.clock);
            taken.push(AdapterUse { place, scale: *scale, first: *first });
        }
        Some(taken.into())
    }

    /// The place that holds an adapter, or that will.
    fn place_of(&mut self, adapter: &Arc<HostAdapter>) -> Option<u32> {
        let is_held = |place: &Place| place.adapter.as_ref().is_some_and(|held| held.id == adapter.id);
        if let Some(place) = self.places.iter().position(is_held) {
            return Some(place as u32);
        }
        let unused = self.places.iter().enumerate().filter(|(_, place)| place.num_users == 0);
        let (place, of) = unused.min_by_key(|(_, place)| (place.adapter.is_some(), place.last_used))?;
        let (place, was_due) = (place as u32, of.adapter.is_some() && self.due.contains(&(place as u32)));
        self.places[place as usize].adapter = Some(adapter.clone());
        if !was_due {
            self.due.push(place);
        }
        Some(place)
    }

    /// Ends a sequence's use of its places.
    pub fn leave(&mut self, taken: &[AdapterUse]) {
        taken.iter().for_each(|of| self.places[of.place as usize].num_users -= 1);
    }

    /// Takes the next adapter to load, with its place.
    pub fn next_due(&mut self) -> Option<(u32, Arc<HostAdapter>)> {
        let place = self.due.pop()?;
        Some((place, self.places[place as usize].adapter.clone()?))
    }

    /// Empties a place whose adapter could not be loaded.
    pub fn forget(&mut self, place: u32) {
        let of = &mut self.places[place as usize];
        (of.adapter, of.last_used) = (None, 0);
    }

    /// Empties the places that no running sequence uses. Returns them.
    pub fn empty_unused(&mut self) -> Vec<u32> {
        let unused = |place: &&mut Place| place.num_users == 0 && place.adapter.is_some();
        let unused = (0..).zip(&mut self.places).filter(|(_, place)| unused(place));
        let emptied: Vec<u32> = unused.map(|(i, place)| (i, place.adapter = None).0).collect();
        self.due.retain(|place| !emptied.contains(place));
        emptied
    }

    /// Panics unless the users of each place are the sequences with it.
    #[cfg(test)]
    pub fn check_users<'a>(&self, taken: impl Iterator<Item = &'a SequenceAdapters>) {
        let mut counts = vec![0; self.places.len()];
        taken.flat_map(|of| of.iter()).for_each(|of| counts[of.place as usize] += 1);
        assert!(self.places.iter().map(|place| place.num_users).eq(counts), "users of the places of adapters");
    }
}

/// The adapters that change a row of a block which begins with item `start` and has `len` items, each with the first of these rows.
fn active(asked: &[AdapterRequest], start: usize, len: usize) -> impl Iterator<Item = (&AdapterRequest, u32)> {
    let end = (start + len) as u32;
    // the rows of a block before an adapter's first one belong to the model alone
    asked.iter().filter(move |of| of.first < end && of.scale != 0.0).map(move |of| (of, of.first.saturating_sub(start as u32)))
}

/// What [`block_adapters`] stands for, in a form that outlives the process.
pub fn saved_adapters(asked: &[AdapterRequest], start: usize, len: usize) -> Vec<u8> {
    let of = |(of, first): (&AdapterRequest, u32)| [&of.adapter.digest()[..], &of.scale.to_le_bytes(), &first.to_le_bytes()].concat();
    active(asked, start, len).flat_map(of).collect()
}

/// What identifies the adapters behind the keys and values of a block that begins with item `start` and has `len` items. 0 if none of them
/// changes one of its rows.
pub fn block_adapters(asked: &[AdapterRequest], start: usize, len: usize) -> u64 {
    let mut active = active(asked, start, len).peekable();
    if active.peek().is_none() {
        return 0;
    }
    static HASHER: OnceLock<RandomState> = OnceLock::new();
    let mut state = HASHER.get_or_init(RandomState::new).build_hasher();
    for (of, first) in active {
        (of.adapter.id, of.scale.to_bits(), first).hash(&mut state);
    }
    state.finish().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(adapter: &Arc<HostAdapter>) -> AdapterRequest {
        AdapterRequest { adapter: adapter.clone(), scale: 1.0, first: 0 }
    }

    fn adapters(count: usize) -> Vec<Arc<HostAdapter>> {
        (0..count).map(|i| Arc::new(HostAdapter::new(&format!("a{i}"), Adapter::default()))).collect()
    }

    #[test]
    fn an_adapter_stays_while_it_is_used_and_the_longest_unused_one_goes() {
        let all = adapters(4);
        let mut places = AdapterPlaces::new(2);
        let (first, second) = (places.take(&[request(&all[0])]).unwrap(), places.take(&[request(&all[1])]).unwrap());
        assert_eq!(std::iter::from_fn(|| places.next_due()).map(|(_, adapter)| adapter.id).max(), Some(all[1].id));
        assert!(places.take(&[request(&all[2])]).is_none(), "both places are in use");
        places.leave(&first);
        assert!(places.take(&[request(&all[0]), request(&all[2])]).is_none(), "two at once, and one place is free");
        places.check_users([&second].into_iter());
        let again = places.take(&[request(&all[0])]).unwrap();
        assert_eq!((again[0].place, places.next_due().is_none()), (first[0].place, true), "it is still there");
        places.leave(&again);
        places.leave(&second);
        let third = places.take(&[request(&all[3])]).unwrap();
        assert_eq!(third[0].place, second[0].place, "the other one was used later");
        assert_eq!(places.next_due().map(|(place, adapter)| (place, adapter.id)), Some((third[0].place, all[3].id)));
        places.leave(&third);
        assert_eq!(places.empty_unused().len(), 2);
        assert!(places.check(&[request(&all[0]), request(&all[1]), request(&all[2])]).unwrap_err().contains("2 can be loaded"));
        assert!(AdapterPlaces::new(0).check(&[request(&all[0])]).is_err());
    }

    #[test]
    fn blocks_are_keyed_by_what_changes_their_rows() {
        let all = adapters(2);
        let with = |first, scale| vec![AdapterRequest { first, scale, ..request(&all[0]) }];
        let key = |asked: &[AdapterRequest], start| block_adapters(asked, start, 16);
        assert_eq!((key(&[], 0), key(&with(16, 1.0), 0), key(&with(0, 0.0), 0)), (0, 0, 0));
        assert_ne!(key(&with(15, 1.0), 0), 0);
        assert_ne!(key(&with(15, 1.0), 0), key(&with(14, 1.0), 0));
        assert_eq!(key(&with(15, 1.0), 16), key(&with(14, 1.0), 16));
        assert_ne!(key(&with(0, 1.0), 0), key(&with(0, 0.5), 0));
        assert_ne!(key(&with(0, 1.0), 0), key(&[request(&all[1])], 0));
        let both = |a: usize, b: usize| [request(&all[a]), request(&all[b])];
        assert_ne!(key(&both(0, 1), 0), key(&both(1, 0), 0), "sums depend on the order");
    }

    #[test]
    fn what_is_saved_of_adapters_depends_on_their_contents() {
        let direction = |x| Adapter { directions: vec![engine::Direction { layer: 1, vector: vec![x] }], ..Adapter::default() };
        let saved = |x, scale, start| {
            let adapter = Arc::new(HostAdapter::new("a", direction(x)));
            saved_adapters(&[AdapterRequest { scale, ..request(&adapter) }], start, 16)
        };
        assert_eq!(saved(1.0, 1.0, 0), saved(1.0, 1.0, 16), "read again, and in a later block");
        assert_ne!(saved(1.0, 1.0, 0), saved(2.0, 1.0, 0));
        assert_ne!(saved(1.0, 1.0, 0), saved(1.0, 0.5, 0));
        assert!(saved(1.0, 0.0, 0).is_empty());
    }
}

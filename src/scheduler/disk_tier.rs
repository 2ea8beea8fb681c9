//! The tier of files below the prefix cache (`tiers`): contents are saved once they are computed, and loaded before a prompt is admitted.
//!
//! **Saving.** Each full block is copied out of the engine after the step that computed it, and written by another thread. So evicting a
//! block from the cache costs nothing, and a process that is killed loses only what waits to be written. If the disk is slower than the
//! engine, blocks wait in the cache and are saved later, unless they are evicted before.
//!
//! **Loading.** A new sequence whose prefix the files hold beyond what the cache holds waits while another thread reads. What has come is
//! put into blocks between two steps, and becomes a content of the cache like any other, which the sequence then finds on admission. The
//! sequence waits no longer than computing the same tokens would take, by the speed of the latest prompts, and does not wait at all if
//! files were read more slowly than that of late.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::block_manager::BlockManager;
use crate::cache_size::CacheSize;
use crate::loading::{Blocks, Loading, Progress, find};
use crate::sequence::Sequence;
use crate::sequences::Sequences;
use crate::unsaved::ToSave;
use engine::{CachePart, Engine, EngineError, PortableCache};
use tiers::{Key, Part, Root, Store, Wanted};

/// Files for the contents of a prefix cache.
#[derive(Clone, Debug)]
pub struct SavedPrefixes {
    pub store: Arc<Store>,
    /// What all identities of the model begin with ([`tiers::root`]).
    pub root: Root,
}

/// The most contents that are copied out of the engine between two steps.
const SAVED_AT_ONCE: usize = 16;
/// The longest wait for files while the speed of the engine is not known.
const PATIENCE: Duration = Duration::from_secs(10);
/// The shortest: a thread must run, and a disk turn.
const LEAST_PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 5000 } else { 20 });
/// The longest wait for the disk when the engine ends.
const LAST_PATIENCE: Duration = Duration::from_secs(2);
/// Steps of fewer rows say little of the time that a prompt's row takes.
const MANY_ROWS: usize = 16;
/// If files are slow, one prompt of so many waits for them, to measure again.
const TRY_EVERY: u32 = 16;

pub struct DiskTier {
    store: Arc<Store>,
    cache: PortableCache,
    loading: Vec<Loading>,
    /// The time of a prompt's row in the latest steps [s]. 0: unknown.
    row_time: f64,
    /// Prompts that did not wait because files are slow, since the last that did.
    num_skipped: u32,
}

impl DiskTier {
    /// None if the cache of the engine cannot leave it, or holds no prefixes.
    pub fn new(saved: SavedPrefixes, engine: &dyn Engine, blocks: &mut BlockManager) -> Option<Self> {
        let cache = engine.portable_cache().filter(|_| blocks.caches_prefixes())?;
        blocks.save_contents(saved.root);
        Some(Self { store: saved.store, cache, loading: Vec::new(), row_time: 0.0, num_skipped: 0 })
    }

    /// Number of sequences that wait for files.
    pub fn num_waiting(&self) -> usize {
        self.loading.iter().map(|loading| loading.sequences.len()).sum()
    }

    /// Whether sequences wait for files, or contents wait to be saved.
    pub fn has_work(&self, blocks: &BlockManager) -> bool {
        !self.loading.is_empty() || blocks.has_unsaved()
    }

    /// Lets a new sequence wait for files. Returns the sequence if they hold nothing of use for it.
    pub fn take(&mut self, sequence: Sequence, blocks: &mut BlockManager) -> Option<Sequence> {
        // The members of a group share a prompt.
        let group = sequence.asked.sequence_group;
        let is_leader = |loading: &&mut Loading| group.is_some() && loading.sequences[0].asked.sequence_group == group;
        if let Some(loading) = self.loading.iter_mut().find(is_leader) {
            loading.sequences.push(sequence);
            return None;
        }
        let found = find(&sequence, blocks, &self.store, &self.cache);
        let bytes: usize = found.wanted.iter().map(|(_, wanted)| wanted.len).sum();
        let Some(patience) = self.patience(found.num_gained, bytes) else { return Some(sequence) };
        let asked: Vec<Wanted> = found.wanted.iter().map(|(_, wanted)| wanted.clone()).collect();
        let Some(files) = self.store.load(asked) else { return Some(sequence) };
        self.loading.push(Loading::new(sequence, found, (files, Instant::now() + patience), blocks));
        None
    }

    /// How long to wait for files of so many tokens. None: computing them is faster.
    fn patience(&mut self, num_tokens: usize, bytes: usize) -> Option<Duration> {
        if num_tokens == 0 {
            return None;
        }
        let computing = self.row_time * num_tokens as f64;
        if computing == 0.0 {
            return Some(PATIENCE);
        }
        let is_slow = self.store.read_speed().is_some_and(|speed| bytes as f64 / speed > computing);
        self.num_skipped = if is_slow { self.num_skipped + 1 } else { 0 };
        if is_slow && !self.num_skipped.is_multiple_of(TRY_EVERY) {
            return None;
        }
        Some(Duration::from_secs_f64(computing.min(1e6)).max(LEAST_PATIENCE))
    }

    /// Learns how long a step of `num_rows` rows took.
    pub fn learn(&mut self, num_rows: usize, took: Duration) {
        if num_rows >= MANY_ROWS {
            let row = took.as_secs_f64() / num_rows as f64;
            self.row_time = if self.row_time == 0.0 { row } else { self.row_time + (row - self.row_time) / 4.0 };
        }
    }

    /// Puts what has been read into blocks. Returns the sequences that wait no longer.
    ///
    /// # Errors
    /// The device is lost.
    pub fn load(
        &mut self,
        engine: &mut dyn Engine,
        sequences: &mut Sequences,
        cache_size: &mut CacheSize,
    ) -> Result<Vec<Sequence>, EngineError> {
        let (mut ready, now) = (Vec::new(), Instant::now());
        // Blocks that the running sequences will soon need.
        let reserve = sequences.running.len() * sequences.blocks.groups().len();
        let mut at = 0;
        while let Some(loading) = self.loading.get_mut(at) {
            let before = loading.sequences.len();
            loading.sequences.retain(|sequence| !sequence.is_cancelled());
            (loading.sequences.len()..before).for_each(|_| sequences.count_end("abort"));
            let progress = match loading.sequences.is_empty() || now >= loading.deadline {
                true => Progress::Over,
                false => {
                    let Sequences { blocks, metrics, .. } = &mut *sequences;
                    loading.advance(&mut Blocks { engine: &mut *engine, blocks, metrics, cache_size: &mut *cache_size, reserve })?
                }
            };
            match progress {
                Progress::Waits => at += 1,
                Progress::Over => ready.extend(self.loading.remove(at).end(&mut sequences.blocks)),
            }
        }
        Ok(ready)
    }

    /// Copies contents out of the engine, to be written.
    ///
    /// # Errors
    /// The device is lost.
    pub fn save(&mut self, engine: &dyn Engine, blocks: &mut BlockManager) -> Result<(), EngineError> {
        let bytes = self.cache.block_bytes.max(self.cache.state_bytes);
        for _ in 0..SAVED_AT_ONCE {
            if !self.store.has_room(bytes) {
                break;
            }
            let Some(item) = blocks.pop_unsaved() else { break };
            let (ToSave::Blocks(content) | ToSave::State(content)) = item;
            let Some(identity) = blocks.identity(content).cloned() else { continue };
            let parts: Vec<(Part, CachePart)> = match item {
                ToSave::State(_) => blocks.checkpoint(content).map(|slot| (Part::State, CachePart::State(slot))).into_iter().collect(),
                ToSave::Blocks(_) => {
                    let of = |group| Some((Part::Block(group as u8), CachePart::Block(blocks.cached_block(content, group)?)));
                    (0..blocks.groups().len()).filter_map(of).collect()
                }
            };
            for (part, from) in parts {
                let key = Key { content: identity.hash, part };
                if !self.store.contains(&key) {
                    let mut payload = Vec::with_capacity(bytes);
                    match engine.export(from, &mut payload) {
                        Ok(()) => self.store.save(key, identity.clone(), payload),
                        Err(error) if error.is_final() => return Err(error),
                        Err(error) => tracing::debug!("a content is not saved: {error}"),
                    }
                }
            }
        }
        Ok(())
    }

    /// Copies everything that waits out of the engine. Gives up if the disk is slow.
    pub fn finish(&mut self, engine: &dyn Engine, blocks: &mut BlockManager) {
        let end = Instant::now() + LAST_PATIENCE;
        while blocks.has_unsaved() && Instant::now() < end {
            match self.save(engine, blocks) {
                Ok(()) => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => return tracing::debug!("contents are not saved: {error}"),
            }
        }
    }

    /// Waits briefly for files to be read or written.
    pub fn wait(&self) {
        const BRIEF: Duration = Duration::from_millis(1);
        let mut select = crossbeam_channel::Select::new();
        self.loading.iter().for_each(|loading| {
            select.recv(loading.files());
        });
        if self.loading.is_empty() {
            std::thread::sleep(BRIEF);
        } else {
            // Ready or not, the next step looks.
            let _ = select.ready_timeout(BRIEF);
        }
    }

    /// Removes and returns all sequences that wait, without releasing memory.
    pub fn drain(&mut self) -> impl Iterator<Item = Sequence> {
        self.loading.drain(..).flat_map(|loading| loading.sequences)
    }

    /// The blocks that are held for sequences that wait.
    #[cfg(test)]
    pub fn held_blocks(&self) -> impl Iterator<Item = &[u32]> {
        self.loading.iter().map(Loading::held_blocks)
    }
}

#[cfg(test)]
#[path = "disk_tier_tests.rs"]
mod tests;

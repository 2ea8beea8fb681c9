//! Random numbers, prompts, cache groups and adapters for tests.

use std::sync::Arc;

use crate::adapters::{AdapterRequest, HostAdapter};
use crate::items::{Items, Layout, RowRun};
use crate::testing::run;
use engine::{CacheGroup, CacheWindow};
use logits::rng::philox4x32;

pub struct Random(pub u64, pub u32);

impl Random {
    /// Uniform in 0..n.
    pub fn below(&mut self, n: u32) -> u32 {
        self.1 += 1;
        philox4x32([self.1, 0, 0, 0], [self.0 as u32, 77])[0] % n
    }
}

/// A run whose source tells everything else. Whole runs have at most `max_rows` rows.
pub fn random_run(random: &mut Random, max_rows: usize) -> RowRun {
    let source = random.below(6) as u8;
    let (height, width) = (1 + u32::from(source) / 2, 2 + u32::from(source) % 3);
    let layout = if source.is_multiple_of(2) { Layout::Grid { height, width } } else { Layout::Line };
    let num_rows = (height * width) as usize;
    run(source, num_rows, layout, !source.is_multiple_of(3) && num_rows <= max_rows)
}

/// The prompt with one or two random runs in it.
pub fn with_runs(prompt: &[u32], random: &mut Random, max_rows: usize) -> Items {
    let first = random.below(1 + prompt.len() as u32) as usize;
    let second = first + random.below(1 + (prompt.len() - first) as u32) as usize;
    let mut runs = vec![(random_run(random, max_rows), prompt[first..second].to_vec())];
    if random.below(2) == 0 {
        runs.push((random_run(random, max_rows), prompt[second..].to_vec()));
    }
    Items::with_runs(prompt[..first].to_vec(), runs)
}

/// What the sequences of a trace have in common.
pub struct Pools {
    pub bases: Vec<Vec<u32>>,
    /// The first one cannot be loaded.
    pub adapters: Vec<Arc<HostAdapter>>,
}

/// Adapters for a prompt of `len` items, more of which the sequences of a trace use than the engine holds.
pub fn random_adapters(random: &mut Random, pools: &Pools, len: usize) -> Vec<AdapterRequest> {
    let request = |random: &mut Random| {
        let mark = if random.below(12) == 0 { 0 } else { 1 + random.below(5) };
        let scale = [1.0, 1.0, 0.5, 0.0][random.below(4) as usize];
        let first = if random.below(2) == 0 { 0 } else { random.below(len as u32 + 1) };
        AdapterRequest { adapter: pools.adapters[mark as usize].clone(), scale, first }
    };
    let count = [0, 0, 1, 1, 2][random.below(5) as usize];
    (0..count).map(|_| request(random)).collect()
}

/// Random cache groups: windows from less than a block to several blocks, and in most cases a group without a window.
pub fn random_groups(random: &mut Random) -> Vec<CacheGroup> {
    let window = |random: &mut Random| match (1 + random.below(17) as usize, random.below(3)) {
        (window, 0) => CacheWindow::Chunked(window),
        (window, _) => CacheWindow::Sliding(window),
    };
    let mut groups: Vec<CacheGroup> = (0..1 + random.below(3)).map(|_| CacheGroup { window: Some(window(random)) }).collect();
    if random.below(4) > 0 {
        groups.insert(random.below(2) as usize, CacheGroup::default());
    }
    groups
}

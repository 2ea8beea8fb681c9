//! Divides layers into cache groups, whose keys and values share KV blocks.
//!
//! All blocks have one size and come from one pool. A block holds some tokens for the layers of one group, whose windows are alike. So a
//! sequence has a block table per group, and blocks that a group's window has left can be reused for anything.

use crate::arch::WindowKind;
use crate::spec::ModelSpec;

/// The earlier rows that a row sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CacheWindow {
    /// The last n rows, including the row itself.
    Sliding(usize),
    /// The rows since the last multiple of n.
    Chunked(usize),
}

impl CacheWindow {
    /// The first position that the row at `position` sees. Never decreases as positions increase.
    pub fn first_seen(self, position: usize) -> usize {
        match self {
            Self::Sliding(window) => (position + 1).saturating_sub(window),
            Self::Chunked(window) => position / window * window,
        }
    }

    /// The most positions that a row sees.
    pub fn tokens(self) -> usize {
        match self {
            Self::Sliding(window) | Self::Chunked(window) => window,
        }
    }
}

/// Layers whose keys and values share a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerGroup {
    /// None if rows see everything before them.
    pub window: Option<CacheWindow>,
    /// In ascending order.
    pub layers: Vec<usize>,
}

/// The most groups. More would cost more in tables than they save.
const MAX_GROUPS: usize = 16;

/// A layer with cached data: its index, its window and its width.
type KeptWidth = (usize, Option<CacheWindow>, usize);

impl ModelSpec {
    /// The model's cache groups, at least one. Every layer that keeps data in the cache belongs to one group. A layer that reads the keys
    /// and values of another layer reads that layer's group.
    ///
    /// A block has the size that the largest group needs. Among the divisions whose longest context takes at most a sixteenth more memory
    /// than the best one, this is the one with the fewest groups.
    pub fn cache_groups(&self) -> Vec<LayerGroup> {
        let kept = self.kept();
        let windows = || {
            let mut windows: Vec<_> = kept.iter().map(|layer| layer.1).collect();
            windows.sort_unstable();
            windows.dedup();
            windows
        };
        let widest = kept.iter().map(|layer| layer.2).max().unwrap_or(0);
        if widest == 0 || windows().len() == 1 {
            let window = kept.first().and_then(|layer| layer.1);
            return vec![LayerGroup { window, layers: kept.iter().map(|layer| layer.0).collect() }];
        }
        // The candidate block widths hold the first layers of some window exactly.
        let mut widths = Vec::new();
        for window in windows() {
            let mut sum = 0;
            let sums = kept.iter().filter(|layer| layer.1 == window).map(|layer| {
                sum += layer.2;
                sum
            });
            widths.extend(sums.filter(|&sum| sum >= widest));
        }
        widths.sort_unstable();
        widths.dedup();
        let divisions: Vec<_> = widths.into_iter().map(|width| divide(&kept, &windows(), width)).collect();
        let cost = |division: &(usize, Vec<LayerGroup>)| self.cost(division);
        let best = divisions.iter().filter(|division| division.1.len() <= MAX_GROUPS).map(cost).min().unwrap_or(u128::MAX);
        let good = divisions.into_iter().filter(|division| cost(division) <= best.saturating_add(best / 16));
        good.min_by_key(|division| (division.1.len(), cost(division))).map(|division| division.1).unwrap_or_default()
    }

    /// The layers that keep data in the cache. If other layers read it too, the window is the loosest of all readers.
    fn kept(&self) -> Vec<KeptWidth> {
        let window = |layer: usize| -> Option<CacheWindow> {
            let window = self.layers[layer].attention()?.window?;
            match self.arch.window_kind {
                WindowKind::Sliding => Some(CacheWindow::Sliding(window)),
                WindowKind::Chunked => Some(CacheWindow::Chunked(window)),
                WindowKind::Symmetric => None,
            }
        };
        let of = |(index, layer): (usize, &crate::LayerSpec)| -> Option<KeptWidth> {
            let cached = layer.cached()?;
            let readers = (0..self.layers.len()).filter(|&i| self.layers[i].attention().is_some_and(|a| a.kv_of == Some(index)));
            let loosest = readers.map(window).fold(window(index), |all, one| all.zip(one).map(|(all, one)| all.max(one)));
            Some((index, loosest.filter(|_| !self.arch.bidirectional), cached.heads * (cached.key + cached.value)))
        };
        self.layers.iter().enumerate().filter_map(of).collect()
    }

    /// The floats that the longest context takes.
    fn cost(&self, (width, groups): &(usize, Vec<LayerGroup>)) -> u128 {
        let tokens = |group: &LayerGroup| group.window.map_or(self.context_length, |window| window.tokens().min(self.context_length));
        groups.iter().map(|group| tokens(group) as u128 * *width as u128).sum()
    }
}

/// Fills groups of at most `width` floats per token with the layers of each window in turn.
fn divide(kept: &[KeptWidth], windows: &[Option<CacheWindow>], width: usize) -> (usize, Vec<LayerGroup>) {
    let mut groups: Vec<LayerGroup> = Vec::new();
    for &window in windows {
        let mut room = 0;
        for &(index, _, floats) in kept.iter().filter(|layer| layer.1 == window) {
            match groups.last_mut().filter(|_| room >= floats) {
                Some(group) => group.layers.push(index),
                None => {
                    groups.push(LayerGroup { window, layers: vec![index] });
                    room = width;
                }
            }
            room -= floats;
        }
    }
    (width, groups)
}

#[cfg(test)]
#[path = "cache_groups_tests.rs"]
mod tests;

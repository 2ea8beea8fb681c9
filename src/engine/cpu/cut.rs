//! [`Cut`]: how a model is cut into parts that run as several devices would run them.

use crate::program::{Scope, Shard};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The number of shards of each layer: 1, 2, 4 or 8.
    pub shards: usize,
    /// The layers that begin a range of their own, in ascending order, except the first.
    pub starts: Vec<usize>,
}

impl Default for Cut {
    /// The whole model.
    fn default() -> Self {
        Self { shards: 1, starts: Vec::new() }
    }
}

impl Cut {
    /// The shards of each range of a model's layers, at least one of each. [`Scope::check`] refuses those that a model cannot have.
    pub fn scopes(&self, num_layers: usize) -> Vec<Vec<Scope>> {
        let starts = std::iter::once(0).chain(self.starts.iter().copied());
        let ends = self.starts.iter().copied().chain([num_layers]);
        let shards = |(start, end)| {
            (0..self.shards.max(1)).map(|index| Scope { layers: start..end, shard: Shard { index, count: self.shards } }).collect()
        };
        starts.zip(ends).map(shards).collect()
    }
}

//! The cache groups of a model on a GPU.

use crate::info::CacheGroup;
use model::ModelSpec;

/// Whether cache groups have block tables of their own: if all layers keep the same of a token, they can share places. Otherwise all
/// layers are one group.
pub fn has_groups(spec: &ModelSpec) -> bool {
    let mut kept = spec.layers.iter().filter_map(|layer| layer.cached());
    let first = kept.next();
    kept.all(|kept| Some(kept) == first)
}

/// The cache groups that have block tables of their own here.
pub fn groups(spec: &ModelSpec) -> Vec<CacheGroup> {
    if has_groups(spec) { CacheGroup::of(spec) } else { vec![CacheGroup::default()] }
}

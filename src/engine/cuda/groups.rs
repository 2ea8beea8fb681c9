//! Decides which cache groups a model has on a GPU.

use crate::info::CacheGroup;
use model::ModelSpec;

/// Whether cache groups have block tables of their own. They do if all layers keep the same data per token, because the groups can then
/// share places. Otherwise all layers form one group.
pub fn has_groups(spec: &ModelSpec) -> bool {
    let mut kept = spec.layers.iter().filter_map(|layer| layer.cached());
    let first = kept.next();
    kept.all(|kept| Some(kept) == first)
}

/// The cache groups that have block tables of their own on a GPU.
pub fn groups(spec: &ModelSpec) -> Vec<CacheGroup> {
    if has_groups(spec) { CacheGroup::of(spec) } else { vec![CacheGroup::default()] }
}

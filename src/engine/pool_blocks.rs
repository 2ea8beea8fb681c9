//! The size of the KV pool.

use crate::info::CacheGroup;
use crate::options::EngineOptions;

/// KV blocks that the options ask for: as many as `kv_tokens` tokens need in sequences of one context each; if that is 0, those of one
/// context. Groups with a window also get the blocks of one step's rows, so that a prompt runs in chunks as long as a step.
pub fn pool_blocks(groups: &[CacheGroup], options: &EngineOptions) -> usize {
    let (context, size) = (options.context.max(1), options.block_size.max(1));
    let tokens = if options.kv_tokens == 0 { context } else { options.kv_tokens };
    let all = tokens.div_ceil(size);
    let of = |group: &CacheGroup| {
        let windows = (tokens / context).saturating_mul(group.num_blocks(context, size)) + group.num_blocks(tokens % context, size);
        let with_rows = windows.saturating_add(options.max_batch_tokens.div_ceil(size));
        if group.window.is_some() { all.min(with_rows) } else { all }
    };
    groups.iter().map(of).fold(0, usize::saturating_add)
}

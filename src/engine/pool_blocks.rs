//! Computes the size of the KV pool.

use crate::info::CacheGroup;
use crate::options::EngineOptions;

/// The fewest tokens that a cache holds while its model is loaded, if the context is at least as long.
const LEAST_TOKENS: usize = 4096;

/// The number of KV blocks that have memory from the start and never lose it. They are enough to run the model on short sequences.
pub fn least_blocks(groups: &[CacheGroup], num_blocks: usize, options: &EngineOptions) -> usize {
    let context = options.context.min(LEAST_TOKENS);
    pool_blocks(groups, &EngineOptions { context, kv_tokens: 0, ..options.clone() }).clamp(1, num_blocks.max(1))
}

/// The number of blocks to give memory to, for a cache that needs `wanted` blocks and has `backed`. Caches grow by at least an eighth, so
/// that they grow seldom.
pub fn grown_blocks(backed: usize, wanted: usize, num_blocks: usize) -> usize {
    if wanted > backed { wanted.max(backed + backed / 8).min(num_blocks) } else { wanted }
}

/// The number of KV blocks that the options ask for: enough for `kv_tokens` tokens in sequences of one context each, or for one context if
/// `kv_tokens` is 0. Groups with a window also get the blocks of one step's rows, so that a prompt can run in chunks as long as a step.
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

//! The size of the KV pool.

use crate::info::CacheGroup;
use crate::options::EngineOptions;

/// Tokens that a cache holds at least as long as its model is loaded, if its context is as long.
const LEAST_TOKENS: usize = 4096;

/// KV blocks that have memory from the start and never lose it. A model runs with them, if only for short sequences.
pub fn least_blocks(groups: &[CacheGroup], num_blocks: usize, options: &EngineOptions) -> usize {
    let context = options.context.min(LEAST_TOKENS);
    pool_blocks(groups, &EngineOptions { context, kv_tokens: 0, ..options.clone() }).clamp(1, num_blocks.max(1))
}

/// As many blocks as a cache is to have that needs `wanted` and has `backed`: caches grow by a part of themselves, so that they seldom do.
pub fn grown_blocks(backed: usize, wanted: usize, num_blocks: usize) -> usize {
    if wanted > backed { wanted.max(backed + backed / 8).min(num_blocks) } else { wanted }
}

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

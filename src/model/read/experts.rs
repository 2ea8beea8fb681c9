//! Reads the shape of feed-forward layers, dense or with experts.

use super::heads::Heads;
use super::keys::{Fallible, Keys, MAX_DIM, metadata};
use super::shape::Shape;
use crate::arch::{Beside, Gating, Mixers, Routed};
use crate::spec::{Experts, FeedForward};
use crate::tensor_roles::TensorRole;

/// The most experts: the engines store their ids in 16 bits.
const MAX_EXPERTS: usize = 1 << 16;

pub fn read(keys: &Keys, shape: &Shape, heads: &Heads) -> Fallible<Vec<FeedForward>> {
    let (arch, n) = (keys.arch, shape.num_layers);
    if matches!(arch.mixers, Mixers::Mamba1 | Mixers::Mamba2) {
        return Ok(vec![FeedForward::None; n]);
    }
    let dims = match keys.per_layer("feed_forward_length", n)? {
        Some(dims) => dims,
        None => return keys.wrong("feed_forward_length", format!("an integer from 1 to {MAX_DIM}")),
    };
    let experts = read_experts(keys, dims.iter().copied().max().unwrap_or(0))?;
    let is_routed = routed_layers(keys, shape)?;
    let mut all = Vec::with_capacity(n);
    for (i, dim) in dims.into_iter().enumerate() {
        // half of Qwen 1's length belongs to the gate
        let dim = if arch.half_ffn { dim / 2 } else { dim };
        if dim == 0 && shape.draft_head != Some(i) && (arch.one_part || heads.attention(i).is_some() && arch.may_lack_ffn) {
            all.push(FeedForward::None);
            continue;
        }
        all.push(match experts.filter(|_| is_routed(i)) {
            Some(experts) if arch.experts.beside == Beside::Either => FeedForward::Experts(experts),
            Some(experts) if arch.experts.beside == Beside::Residual => FeedForward::Both(shape.hidden_dim, experts),
            Some(experts) if arch.experts.beside == Beside::Normed => FeedForward::Both(dim, experts),
            Some(experts) => {
                let dense = keys.dims_of(&TensorRole::FfnUp.name(i)).is_some();
                if dense { FeedForward::Both(dim, experts) } else { FeedForward::Experts(experts) }
            }
            None if dim == 0 => return keys.wrong("feed_forward_length", format!("an integer from 1 to {MAX_DIM} for every layer")),
            None => FeedForward::Dense(dim),
        });
    }
    Ok(all)
}

/// Tells which layers have experts, in a model with experts.
fn routed_layers<'a>(keys: &'a Keys, shape: &'a Shape) -> Fallible<impl Fn(usize) -> bool + 'a> {
    let rule = keys.arch.experts.layers;
    let leading = keys.count_or_none("leading_dense_block_count", MAX_DIM)?.unwrap_or(0);
    let step = keys.count_or_none("interleave_moe_layer_step", MAX_DIM)?.unwrap_or(1);
    let every = keys.count_or_none("moe_every_n_layers", MAX_DIM)?.unwrap_or(usize::MAX);
    if rule == Routed::Metadata && leading > shape.num_layers {
        return keys.wrong("leading_dense_block_count", format!("at most the {} layers", shape.num_layers));
    }
    let has = |role: TensorRole, layer: usize| keys.dims_of(&role.name(layer)).is_some();
    Ok(move |layer: usize| match rule {
        // a head's part does not follow from its number
        _ if shape.draft_head == Some(layer) => has(TensorRole::FfnRouter, layer) || has(TensorRole::FfnDownExps, layer),
        Routed::All => true,
        Routed::Metadata => layer >= leading && (layer + 1).is_multiple_of(step),
        Routed::EveryOther => layer % every == 1,
        Routed::ByTensor => has(TensorRole::FfnRouter, layer),
    })
}

/// Reads the experts. None if the file has none.
fn read_experts(keys: &Keys, ffn_dim: usize) -> Fallible<Option<Experts>> {
    let (rule, suffix) = (&keys.arch.experts, "expert_count");
    if !rule.known {
        keys.absent(suffix, 0.0)?;
        return Ok(None);
    }
    let Some(count) = keys.count_or_none(suffix, MAX_EXPERTS)? else {
        return if rule.needed { keys.wrong(suffix, format!("an integer from 1 to {MAX_EXPERTS}")) } else { Ok(None) };
    };
    let used = keys.required("expert_used_count", count)?;
    // The first files of Qwen 2 only set the total length of the experts that a row uses.
    let share = if rule.total_length { (ffn_dim / used).max(1) } else { ffn_dim };
    let own_dim = keys.count_or_none("expert_feed_forward_length", MAX_DIM)?.unwrap_or(share);
    let shared_ffn_dim = if rule.shared { shared_dim(keys, own_dim, ffn_dim)? } else { 0 };
    let gating = match keys.count_or_none("expert_gating_func", 4)? {
        None => rule.gating,
        Some(1) => Gating::Softmax,
        Some(2) => Gating::Sigmoid,
        Some(3) => Gating::SoftmaxOfChosen,
        Some(_) => return keys.wrong("expert_gating_func", "1 (softmax), 2 (sigmoid) or 3 (softmax of the chosen)"),
    };
    let groups = keys.count_or_none("expert_group_count", count)?.filter(|&groups| groups > 1).unwrap_or(0);
    let groups_used = keys.count_or_none("expert_group_used_count", count)?.unwrap_or(groups);
    if groups > 0 && (!count.is_multiple_of(groups) || groups_used > groups || groups_used * (count / groups) < used) {
        let expected = format!("a divisor of the {count} experts whose {groups_used} used groups hold {used} experts");
        return metadata(keys.key("expert_group_count"), groups.to_string(), expected);
    }
    let (chunk_ffn_dim, chunk_group, chunk_scale) = adjugates(keys, count)?;
    Ok(Some(Experts {
        count,
        used,
        ffn_dim: own_dim,
        shared_ffn_dim,
        gating,
        normalise: keys.flag("expert_weights_norm")?.unwrap_or(rule.normalise),
        scale: keys.positive_or_none("expert_weights_scale")?.unwrap_or(1.0),
        groups,
        groups_used,
        chunk_ffn_dim,
        chunk_group,
        chunk_scale,
    }))
}

/// Reads the inner dimension of the adjugate experts (0 if there are none), the number of experts that share one, and the factor of their
/// outputs.
fn adjugates(keys: &Keys, count: usize) -> Fallible<(usize, usize, f32)> {
    let tensor = TensorRole::FfnUpChexps.name(0);
    let Some(dims) = keys.dims_of(&tensor) else { return Ok((0, 1, 1.0)) };
    let Some(dim) = dims.get(1).and_then(|&dim| usize::try_from(dim).ok()).filter(|dim| (1..=MAX_DIM).contains(dim)) else {
        return metadata(tensor, format!("{dims:?}"), format!("1 to {MAX_DIM} rows per expert"));
    };
    let group = keys.required("experts_per_group", count)?;
    if !count.is_multiple_of(group) {
        return keys.wrong("experts_per_group", format!("a divisor of the {count} experts"));
    }
    match keys.positive_or_none("expert_group_scale")? {
        Some(scale) => Ok((dim, group, scale)),
        None => keys.wrong("expert_group_scale", "a positive number"),
    }
}

/// The inner dimension of the shared expert, or the total of all shared experts, which share one tensor.
fn shared_dim(keys: &Keys, own_dim: usize, ffn_dim: usize) -> Fallible<usize> {
    if let Some(dim) = keys.count_or_none("expert_shared_feed_forward_length", MAX_DIM)? {
        return Ok(dim);
    }
    Ok(match keys.count_or_none("expert_shared_count", MAX_EXPERTS)? {
        Some(count) => own_dim * count,
        None if keys.arch.experts.total_length => ffn_dim,
        None if keys.arch.experts.always_shared => own_dim,
        None => 0,
    })
}

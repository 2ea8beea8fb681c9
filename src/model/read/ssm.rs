//! The shape of mixers with recurrent state.

use super::Shape;
use super::heads::Heads;
use super::keys::{Fallible, Keys, MAX_DIM};
use crate::arch::{Mixers, Recurrent};
use crate::spec::Ssm;

/// Per layer: whether its mixer is the recurrent one, in architectures that have both.
pub fn recurrent_layers(keys: &Keys, shape: &Shape, heads: &Heads) -> Fallible<Vec<bool>> {
    let n = shape.num_layers;
    Ok(match keys.arch.mixers {
        // A layer of Nemotron-H is a mixer or a feed-forward layer.
        Mixers::Or(_) => {
            let ffn = keys.per_layer("feed_forward_length", n)?.unwrap_or_default();
            let only_ffn = |i: usize| keys.arch.one_part && ffn.get(i).is_some_and(|&dim| dim > 0);
            (0..n).map(|i| heads.attention(i).is_none() && !only_ffn(i)).collect()
        }
        Mixers::Interval(_) => match keys.flags("attention.recurrent_layers", n)? {
            Some(flags) => flags,
            None => {
                let every = keys.count_or_none("full_attention_interval", MAX_DIM)?.unwrap_or(4);
                (0..n).map(|i| !(i + 1).is_multiple_of(every)).collect()
            }
        },
        _ => vec![false; n],
    })
}

pub fn read(keys: &Keys, shape: &Shape, kind: Recurrent, heads: &Heads) -> Fallible<Ssm> {
    if kind == Recurrent::ShortConv {
        let conv = keys.required("shortconv.l_cache", 1 << 16)?;
        return Ok(Ssm { kind, inner: shape.hidden_dim, state: 0, conv, heads: 0, groups: 0 });
    }
    if kind == Recurrent::Lightning {
        let Some(attention) = (0..shape.num_layers).find_map(|i| heads.attention(i)) else {
            return keys.wrong("attention.head_count", "at least one head");
        };
        let inner = attention.num_heads * attention.head_dim;
        return Ok(Ssm { kind, inner, state: attention.head_dim, conv: 1, heads: attention.num_heads, groups: 0 });
    }
    let conv = keys.required("ssm.conv_kernel", 1 << 16)?;
    if kind == Recurrent::Kda {
        let state = keys.required("kda.head_dim", MAX_DIM)?;
        let all = keys.per_layer("attention.head_count", shape.num_layers)?.unwrap_or_default();
        let heads = all.into_iter().max().unwrap_or(0).max(1);
        return Ok(Ssm { kind, inner: heads * state, state, conv, heads, groups: heads });
    }
    let inner = keys.required("ssm.inner_size", MAX_DIM)?;
    let state = keys.required("ssm.state_size", MAX_DIM)?;
    let heads = keys.required("ssm.time_step_rank", MAX_DIM)?;
    let groups = keys.count_or_none("ssm.group_count", MAX_DIM)?.unwrap_or(1);
    let by_head = !matches!(kind, Recurrent::Mamba1);
    if by_head && (!inner.is_multiple_of(heads) || !heads.is_multiple_of(groups)) {
        return keys.wrong("ssm.time_step_rank", format!("a divisor of the inner size {inner} and a multiple of the {groups} groups"));
    }
    if inner.checked_mul(state).is_none_or(|size| size > MAX_DIM) {
        return keys.wrong("ssm.state_size", format!("a state of at most {MAX_DIM} floats per layer"));
    }
    Ok(Ssm { kind, inner, state, conv, heads, groups })
}

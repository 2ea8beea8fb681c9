//! Reads the shape of mixers with recurrent state.

use super::heads::Heads;
use super::keys::{Fallible, Keys, MAX_DIM};
use super::shape::Shape;
use crate::arch::{Mixers, Recurrent};
use crate::spec::Ssm;

/// The most rows that a convolution covers. Files of known models have 3 or 4.
const MAX_TAPS: usize = 1 << 10;

/// Whether each layer's mixer is the recurrent one, in architectures that have both kinds.
pub fn recurrent_layers(keys: &Keys, shape: &Shape, heads: &Heads) -> Fallible<Vec<bool>> {
    // a draft head never is, so files need not list it
    let n = shape.draft_head.unwrap_or(shape.num_layers);
    let mut layers = match keys.arch.mixers {
        // A layer of Nemotron-H is either a mixer or a feed-forward layer.
        Mixers::Or(_) => {
            let ffn = keys.per_layer("feed_forward_length", n)?.unwrap_or_default();
            let only_ffn = |i: usize| keys.arch.one_part && ffn.get(i).is_some_and(|&dim| dim > 0);
            (0..n).map(|i| heads.attention(i).is_none() && !only_ffn(i)).collect()
        }
        Mixers::Interval(kind) => match keys.flags("attention.recurrent_layers", n)? {
            Some(flags) => flags,
            None => {
                let usual = if kind == Recurrent::Lightning { 8 } else { 4 };
                let every = keys.count_or_none("full_attention_interval", MAX_DIM)?.unwrap_or(usual);
                (0..n).map(|i| !(i + 1).is_multiple_of(every)).collect()
            }
        },
        _ => vec![false; n],
    };
    layers.resize(shape.num_layers, false);
    Ok(layers)
}

pub fn read(keys: &Keys, shape: &Shape, kind: Recurrent, heads: &Heads) -> Fallible<Ssm> {
    let ssm = match kind {
        Recurrent::ShortConv => {
            let conv = keys.required("shortconv.l_cache", MAX_TAPS)?;
            Ssm { kind, inner: shape.hidden_dim, state: 0, conv, heads: 0, groups: 0, normalised: false }
        }
        Recurrent::Lightning => {
            let Some(attention) = (0..shape.num_layers).find_map(|i| heads.attention(i)) else {
                return keys.wrong("attention.head_count", "at least one head");
            };
            let (heads, state) = (attention.num_heads, attention.head_dim);
            Ssm { kind, inner: heads * state, state, conv: 1, heads, groups: heads, normalised: false }
        }
        Recurrent::Kda => kda(keys, shape)?,
        _ => by_ssm_keys(keys, kind)?,
    };
    let floats = ssm.inner.checked_mul(ssm.state).zip(ssm.conv_channels().checked_mul(ssm.conv));
    if floats.is_none_or(|(state, rows)| state > MAX_DIM || rows > MAX_DIM) {
        let suffix = match kind {
            Recurrent::ShortConv => "shortconv.l_cache",
            Recurrent::Lightning => "attention.head_count",
            Recurrent::Kda => "kda.head_dim",
            _ => "ssm.state_size",
        };
        return keys.wrong(suffix, format!("a state of at most {MAX_DIM} floats per layer"));
    }
    Ok(ssm)
}

fn kda(keys: &Keys, shape: &Shape) -> Fallible<Ssm> {
    let conv = keys.required("ssm.conv_kernel", MAX_TAPS)?;
    let state = keys.required("kda.head_dim", MAX_DIM)?;
    let all = keys.per_layer("attention.head_count", shape.num_layers)?.unwrap_or_default();
    let heads = all.into_iter().max().unwrap_or(0).max(1);
    match heads.checked_mul(state) {
        Some(inner) if inner <= MAX_DIM => Ok(Ssm { kind: Recurrent::Kda, inner, state, conv, heads, groups: heads, normalised: false }),
        _ => keys.wrong("kda.head_dim", format!("{heads} heads with at most {MAX_DIM} elements in all")),
    }
}

/// Reads Mamba's keys, which the delta rule also uses.
fn by_ssm_keys(keys: &Keys, kind: Recurrent) -> Fallible<Ssm> {
    let conv = keys.required("ssm.conv_kernel", MAX_TAPS)?;
    let inner = keys.required("ssm.inner_size", MAX_DIM)?;
    let state = keys.required("ssm.state_size", MAX_DIM)?;
    let heads = keys.required("ssm.time_step_rank", MAX_DIM)?;
    let groups = match kind {
        Recurrent::Mamba1 | Recurrent::MambaPlamo => 1,
        Recurrent::Mamba2 => keys.count_or_none("ssm.group_count", MAX_DIM)?.unwrap_or(1),
        _ => keys.required("ssm.group_count", MAX_DIM)?,
    };
    if kind != Recurrent::Mamba1 && !inner.is_multiple_of(heads) {
        return keys.wrong("ssm.time_step_rank", format!("a divisor of the inner size {inner}"));
    }
    if !heads.is_multiple_of(groups) {
        return keys.wrong("ssm.group_count", format!("a divisor of the {heads} heads (ssm.time_step_rank)"));
    }
    if groups.checked_mul(state).is_none_or(|shared| shared > MAX_DIM) {
        return keys.wrong("ssm.state_size", format!("{groups} groups with at most {MAX_DIM} elements in all"));
    }
    let normalised = kind == Recurrent::Mamba1 && keys.flag("ssm.dt_b_c_rms")?.unwrap_or(false);
    Ok(Ssm { kind, inner, state, conv, heads, groups, normalised })
}

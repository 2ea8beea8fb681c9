//! Reads the shape of attention, layer by layer.

use super::keys::{Fallible, Keys, MAX_DIM, metadata};
use super::shape::{Shape, positions};
use super::{rope, windows};
use crate::arch::{Mixers, PictureRows, Positions, WindowKind};
use crate::spec::{Attention, AttnGate, HeadNorm, RopeSpec, RunSight};
use crate::tensor_roles::TensorRole;

pub struct Heads {
    layers: Vec<Option<Attention>>,
}

impl Heads {
    /// The attention of a layer. None if the layer has no attention.
    pub fn attention(&self, layer: usize) -> Option<Attention> {
        self.layers[layer]
    }
}

pub fn read(keys: &Keys, shape: &Shape) -> Fallible<Heads> {
    let (arch, n) = (keys.arch, shape.num_layers);
    let Some(heads) = keys.per_layer("attention.head_count", n)? else { return Ok(Heads { layers: vec![None; n] }) };
    let kv_heads = keys.per_layer("attention.head_count_kv", n)?.unwrap_or_else(|| heads.clone());
    let windows = windows::windows(keys, shape)?;
    let rotated = windows::rotated(keys, shape, &windows)?;
    let first_shared = first_shared_layer(keys, n)?;
    let mut layers = Vec::with_capacity(n);
    for i in 0..n {
        if heads[i] == 0 || kv_heads[i] == 0 {
            if arch.mixers == Mixers::Attention && !arch.may_lack_ffn {
                let suffix = if heads[i] == 0 { "attention.head_count" } else { "attention.head_count_kv" };
                return keys.wrong(suffix, format!("an integer from 1 to {MAX_DIM} for every layer"));
            }
            layers.push(None);
            continue;
        }
        let local = windows[i].is_some();
        let (head_dim, value_dim) = dims(keys, shape, heads[i], kv_heads[i], local)?;
        let rope = if rotated[i] { Some(rope::read(keys, head_dim, local, shape.context_length)?) } else { None };
        // A layer without keys and values of its own reads those of the last layer of its kind that has them.
        let kv_of = (i >= first_shared && shape.draft_head != Some(i))
            .then(|| (0..first_shared).rev().find(|&j| windows[j].is_some() == local).unwrap_or(0));
        let gate = gate(keys, i, heads[i] * head_dim);
        let q_norm = head_norm(keys, TensorRole::AttnQNorm, i, heads[i], head_dim, rope)?;
        // Keys are normalised only if queries are (MPT).
        let k_norm = match q_norm {
            HeadNorm::None => HeadNorm::None,
            _ => head_norm(keys, TensorRole::AttnKNorm, i, kv_heads[i], head_dim, rope)?,
        };
        layers.push(Some(Attention {
            num_heads: heads[i],
            num_kv_heads: kv_heads[i],
            head_dim,
            value_dim,
            rope,
            window: windows[i],
            scale: scale(keys, shape, heads[i], head_dim)?,
            soft_cap: shape.attn_cap,
            clamp: keys.positive_or_none("attention.clamp_kqv")?,
            alibi: alibi(keys, n)?,
            temperature: if arch.window_kind == WindowKind::Chunked { chunked_temperature(keys, rope)? } else { rope::temperature(keys)? },
            q_norm,
            k_norm,
            v_norm: if arch.weightless_v_norm { HeadNorm::Weightless } else { HeadNorm::None },
            gate,
            kv_of,
            picture_rows: run_sight(keys, local),
        }));
    }
    check_shared(keys, &layers)?;
    Ok(Heads { layers })
}

fn run_sight(keys: &Keys, local: bool) -> RunSight {
    match keys.arch.picture_rows {
        PictureRows::Whole => RunSight::Whole,
        PictureRows::WholeInWindows if local => RunSight::Later,
        _ => RunSight::Causal,
    }
}

/// Checks that a layer without keys and values of its own reads those of a layer whose heads have the same shape.
fn check_shared(keys: &Keys, layers: &[Option<Attention>]) -> Fallible<()> {
    let shape = |a: Attention| (a.num_kv_heads, a.head_dim, a.value_dim, a.window);
    for (i, a) in layers.iter().enumerate().filter_map(|(i, a)| Some((i, a.as_ref()?))) {
        if a.kv_of.is_some_and(|of| layers[of].map(shape) != Some(shape(*a))) {
            let expected = format!("a number that leaves an earlier layer whose keys and values have the shape of those of layer {i}");
            return keys.wrong("attention.shared_kv_layers", expected);
        }
    }
    Ok(())
}

/// The first layer without keys and values of its own, or the number of layers if there is none.
fn first_shared_layer(keys: &Keys, num_layers: usize) -> Fallible<usize> {
    let suffix = "attention.shared_kv_layers";
    match keys.count_or_none(suffix, MAX_DIM)? {
        Some(shared) if shared >= num_layers => keys.wrong(suffix, format!("fewer than the {num_layers} layers")),
        Some(shared) => Ok(num_layers - shared),
        None => Ok(keys.arch.own_kv_layers.unwrap_or(num_layers).min(num_layers)),
    }
}

/// The elements per head of keys and of values.
fn dims(keys: &Keys, shape: &Shape, heads: usize, kv_heads: usize, local: bool) -> Fallible<(usize, usize)> {
    if !heads.is_multiple_of(kv_heads) {
        return metadata(keys.key("attention.head_count_kv"), kv_heads.to_string(), format!("a divisor of the {heads} heads"));
    }
    let length = |suffix: &str| -> Fallible<Option<usize>> {
        let own = if local { keys.count_or_none(&format!("{suffix}_swa"), MAX_DIM)? } else { None };
        Ok(own.or(keys.count(suffix, MAX_DIM)?))
    };
    let head_dim = match length("attention.key_length")? {
        Some(dim) => dim,
        None if shape.hidden_dim.is_multiple_of(heads) => shape.hidden_dim / heads,
        None => {
            let expected = format!("a divisor of the embedding length {}", shape.hidden_dim);
            return metadata(keys.key("attention.head_count"), heads.to_string(), expected);
        }
    };
    if !head_dim.is_multiple_of(2) {
        return metadata(keys.key("attention.key_length"), head_dim.to_string(), "an even number of elements per head");
    }
    let value_dim = length("attention.value_length")?.unwrap_or(head_dim);
    if heads.checked_mul(head_dim.max(value_dim)).is_none_or(|width| width > MAX_DIM) {
        let expected = format!("heads of {} with at most {MAX_DIM} elements in all", head_dim.max(value_dim));
        return metadata(keys.key("attention.head_count"), heads.to_string(), expected);
    }
    Ok((head_dim, value_dim))
}

fn scale(keys: &Keys, shape: &Shape, heads: usize, head_dim: usize) -> Fallible<f32> {
    if let Some(scale) = keys.positive_or_none("attention.scale")?.or(keys.arch.attn_scale) {
        return Ok(scale);
    }
    // Gemma 3 27B and Gemma 2 27B divide by hidden_dim / num_heads (168 and 144) instead of the elements per head (128). Their files do not
    // say so. The number of layers distinguishes these models from the smaller ones.
    let by_width = keys.arch.scaled_by_width == Some(shape.num_layers);
    let dim = if by_width { shape.hidden_dim / heads } else { head_dim };
    if keys.arch.scaled_by_dim {
        return Ok(1.0 / dim as f32);
    }
    Ok(1.0 / (dim as f32).sqrt())
}

fn alibi(keys: &Keys, num_layers: usize) -> Fallible<Option<f32>> {
    if positions(keys, num_layers)? != Positions::Alibi {
        // Some files of models with RoPE carry the key.
        return Ok(None);
    }
    Ok(Some(keys.positive_or_none("attention.max_alibi_bias")?.unwrap_or(8.0)))
}

/// Llama 4 scales the queries of its layers without rotation.
fn chunked_temperature(keys: &Keys, rope: Option<RopeSpec>) -> Fallible<Option<crate::spec::Temperature>> {
    if rope.is_some() {
        return Ok(None);
    }
    let scale = keys.positive_or_none("attention.temperature_scale")?.unwrap_or(0.1);
    let floor = keys.count_or_none("attention.temperature_length", MAX_DIM)?.unwrap_or(8192);
    Ok(Some(crate::spec::Temperature { scale, floor: floor as f32, offset: 1.0 }))
}

/// The part of a row that a norm of queries or keys covers, from the shape of its tensor.
fn head_norm(keys: &Keys, role: TensorRole, layer: usize, heads: usize, dim: usize, rope: Option<RopeSpec>) -> Fallible<HeadNorm> {
    let arch = keys.arch;
    if arch.weightless_qk_norm {
        return Ok(if rope.is_some() { HeadNorm::Weightless } else { HeadNorm::None });
    }
    if !arch.required.contains(&role) && !arch.optional.contains(&role) {
        return Ok(HeadNorm::None);
    }
    let name = role.name(layer);
    match keys.dims_of(&name) {
        None => Ok(if arch.required.contains(&role) { HeadNorm::Head } else { HeadNorm::None }),
        Some(&[len] | &[len, 1]) if len == dim as u64 => Ok(HeadNorm::Head),
        Some(&[len] | &[len, 1]) if len == (dim * heads) as u64 => Ok(HeadNorm::Row),
        Some(&[len, count]) if (len, count) == (dim as u64, heads as u64) => Ok(HeadNorm::OwnHead),
        Some(found) => Err(crate::error::ModelFault::TensorShape { tensor: name, found: found.to_vec(), expected: vec![dim as u64] }),
    }
}

fn gate(keys: &Keys, layer: usize, width: usize) -> AttnGate {
    let twice = || keys.dims_of(&TensorRole::AttnQ.name(layer)).is_some_and(|dims| dims.get(1) == Some(&(2 * width as u64)));
    if keys.arch.required.contains(&TensorRole::AttnGate) {
        AttnGate::Own
    } else if keys.arch.gate_in_query && twice() {
        AttnGate::InQuery
    } else {
        AttnGate::None
    }
}

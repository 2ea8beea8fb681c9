//! Parts of the cache as bytes: a block or a state of each shard of each group, then the draft head's.

use super::forward::Forward;
use crate::{CachePart, EngineError, EngineInfo, KvCapacity, PortableCache};

fn unknown(part: CachePart) -> EngineError {
    EngineError::Unsupported(format!("{part:?} of the cache: there is none"))
}

/// The form of the exported parts. It names all that rows of keys, values and states depend on besides the weights: the kernels, which
/// differ in the order of their sums, the rotations, which may depend on the context, and the layout.
pub fn form(forward: &Forward, kv: &KvCapacity, info: &EngineInfo) -> PortableCache {
    let (members, head) = forward.parts();
    let (mut block_bytes, mut state_bytes) = (head.map_or(0, |head| head.cache().stride()), 0);
    for member in members {
        block_bytes += member.cache.stride();
        state_bytes += member.state.bytes(0).map_or(0, <[u8]>::len);
    }
    let KvCapacity { block_size, groups, cache_type, .. } = kv;
    let (device, ropes, head) = (&info.device, forward.ropes(), head.is_some());
    let form = format!("{device} {cache_type} {block_size} {groups:?} {ropes:?} {head} {block_bytes} {state_bytes}");
    PortableCache { form, block_bytes, state_bytes }
}

/// See [`Engine::export`](crate::Engine::export).
pub fn export(forward: &Forward, part: CachePart, out: &mut Vec<u8>) -> Result<(), EngineError> {
    let (members, head) = forward.parts();
    for member in members {
        let bytes = match part {
            CachePart::Block(block) => member.cache.block(block),
            CachePart::State(slot) => member.state.bytes(slot),
        };
        out.extend_from_slice(bytes.ok_or_else(|| unknown(part))?);
    }
    if let (CachePart::Block(block), Some(head)) = (part, head) {
        out.extend_from_slice(head.cache().block(block).ok_or_else(|| unknown(part))?);
    }
    Ok(())
}

/// See [`Engine::import`](crate::Engine::import).
pub fn import(forward: &mut Forward, part: CachePart, mut bytes: &[u8]) -> Result<(), EngineError> {
    let mut take = |to: Option<&mut [u8]>| -> Result<(), EngineError> {
        let to = to.ok_or_else(|| unknown(part))?;
        let other = || EngineError::Unsupported(format!("{part:?} of the cache, from bytes of another length"));
        let (own, rest) = bytes.split_at_checked(to.len()).ok_or_else(other)?;
        bytes = rest;
        to.copy_from_slice(own);
        Ok(())
    };
    let (mut members, head) = forward.parts_mut();
    match part {
        CachePart::Block(block) => {
            members.try_for_each(|member| take(member.cache.block_mut(block)))?;
            head.map_or(Ok(()), |head| take(head.cache_mut().block_mut(block)))
        }
        CachePart::State(slot) => members.try_for_each(|member| take(member.state.bytes_mut(slot))),
    }
}

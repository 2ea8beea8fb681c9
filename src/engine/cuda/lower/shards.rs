//! Joins the shards of a model: one device runs their programs in lock-step.
//!
//! Each shard has its own tensors, buffers and caches. Between two exchanges, the ops of one shard follow those of the other. An exchange
//! is one op, which gives all shards the sum. The head is the first shard's.

use super::super::sys;
use super::lowering::Lowering;
use super::parts::{DeviceProgram, NONE};
use crate::EngineError;
use crate::program::slices::MAX_SLICES;
use crate::program::{Program, RowSet, Shard};
use model::Weights;

/// Refuses anything but all shards of a model in their order.
pub fn check(programs: &[Program]) -> Result<(), EngineError> {
    let count = programs.len();
    for (index, program) in programs.iter().enumerate() {
        let shard = program.scope.shard;
        if shard != (Shard { index, count }) {
            let Shard { index, count } = shard;
            return Err(EngineError::Unsupported(format!("shard {index} of {count} on a GPU: use --backend cpu")));
        }
    }
    Ok(())
}

pub fn join(weights: &Weights, programs: &[Program]) -> Result<DeviceProgram, EngineError> {
    let mut out = DeviceProgram::default();
    let mut shards: Vec<Lowering> = programs.iter().map(|program| Lowering::new(weights, program)).collect();
    shards.iter_mut().for_each(|shard| shard.lend(&mut out, Lowering::begin));
    loop {
        let mut exchanges = Vec::new();
        for shard in &mut shards {
            exchanges.extend(shard.lend(&mut out, Lowering::run_to_exchange)?);
        }
        if exchanges.is_empty() {
            break;
        }
        let halves = shards.iter().all(|shard| shard.in_halves);
        let parts: Vec<Option<u32>> = shards.iter_mut().flat_map(|shard| std::mem::take(&mut shard.parts)).collect();
        out.push(exchange(&parts, &exchanges, halves)?, RowSet::Step);
    }
    if let Some(first) = shards.first_mut() {
        first.lend(&mut out, Lowering::end)?;
    }
    Ok(out)
}

/// The op that adds up the parts of all shards. `outs` are the shards' buffers and whether the sum is added there.
fn exchange(parts: &[Option<u32>], outs: &[(u32, bool)], halves: bool) -> Result<sys::pen_exchange, EngineError> {
    let due = if halves && outs.len() == 2 { 2 } else { MAX_SLICES };
    let adds = outs.iter().filter(|(_, add)| *add).count();
    if parts.len() != due || (adds > 0 && adds < outs.len()) {
        return Err(EngineError::Unsupported(format!("{} parts of sums in {} shards on a GPU", parts.len(), outs.len())));
    }
    let part = |i: usize| parts.get(i).copied().flatten().unwrap_or(NONE);
    let out = |i: usize| outs.get(i).map_or(NONE, |(out, _)| *out);
    Ok(sys::pen_exchange {
        part0: part(0),
        part1: part(1),
        part2: part(2),
        part3: part(3),
        part4: part(4),
        part5: part(5),
        part6: part(6),
        part7: part(7),
        num_parts: due as u32,
        out0: out(0),
        out1: out(1),
        out2: out(2),
        out3: out(3),
        out4: out(4),
        out5: out(5),
        out6: out(6),
        out7: out(7),
        add: u32::from(adds > 0),
        halves: u32::from(halves),
    })
}

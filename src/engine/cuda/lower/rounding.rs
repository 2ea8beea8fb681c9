//! Decides which buffers of a program the device rounds to float16.

use crate::program::uses::UseKind;
use crate::program::{BufferId, Heads, Op, Program};

/// Which buffers are float16: those that matrices multiply, if every op that writes them can round. The stream stays float32, and so do
/// rows that an op copies to it.
pub fn halves(program: &Program) -> Vec<bool> {
    let width = |id: BufferId| program.buffer(id).width;
    let (mut is_factor, mut is_float) = (vec![false; program.buffers.len()], vec![false; program.buffers.len()]);
    is_float[program.stream.0] = true;
    for step in &program.ops {
        let rounds = matches!(step.op, Op::Norm(_) | Op::Map(_) | Op::Activate(_) | Op::Attention(_) | Op::Among(_) | Op::Heads(_));
        let is_copy = matches!(&step.op, Op::Map(map) if !map.add && map.from.buffer != map.to.buffer && map.to.buffer == program.stream);
        for used in step.op.uses(&width) {
            let id = used.part.buffer.0;
            is_factor[id] |= used.kind == UseKind::Factor;
            let is_mixed = matches!(step.op, Op::Mix(_));
            is_float[id] |= used.kind.writes() && !rounds || (is_copy || is_mixed) && used.kind == UseKind::Read;
        }
        if let Op::Attention(op) = &step.op
            && is_plain(&op.queries)
        {
            is_factor[op.queries.from.buffer.0] = true;
        }
    }
    is_factor.into_iter().zip(is_float).map(|(factor, float)| factor && !float).collect()
}

/// Whether nothing is done to heads.
pub fn is_plain(heads: &Heads) -> bool {
    let Heads { bias, clamp, norm, rope, temperature, .. } = heads;
    bias.is_none() && clamp.is_none() && norm.is_none() && rope.is_none() && temperature.is_none()
}

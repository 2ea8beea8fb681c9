//! Lowers a program to the CPU's kernels: each op becomes a [`Kernel`] that holds its weights in the forms that it needs.

mod among;
mod attention;
mod buffers;
mod elementwise;
mod embed;
mod experts;
mod heads;
mod key_bias;
mod linear;
mod mix;
mod norm;
mod recurrence;
mod step;
mod stored_keys;
mod streams;
mod tensors;

use crate::EngineError;
use crate::program::{Exchange, Op};
pub use buffers::Buffers;
pub use step::{Kernel, Step};
pub use tensors::Tensors;

/// Makes the kernels of a program.
///
/// # Errors
/// [`EngineError::Unsupported`] for a tensor type that the CPU's kernels do not know.
pub fn lower(tensors: &Tensors) -> Result<Vec<Instruction>, EngineError> {
    tensors.program.ops.iter().map(|step| instruction(&step.op, tensors)).collect()
}

/// An op of one shard, or an exchange between all shards.
pub enum Instruction {
    Run(Box<dyn Kernel>),
    Exchange(Exchange),
}

fn instruction(op: &Op, tensors: &Tensors) -> Result<Instruction, EngineError> {
    Ok(Instruction::Run(match op {
        Op::Exchange(op) => return Ok(Instruction::Exchange(*op)),
        Op::Embed(op) => Box::new(embed::EmbedKernel::new(op, tensors)?),
        Op::Norm(op) => Box::new(norm::NormKernel::new(op, tensors)),
        Op::ToLength(op) => Box::new(norm::ToLengthKernel(*op)),
        Op::Linear(op) => Box::new(linear::LinearKernel::new(op, tensors)?),
        Op::EachHead(op) => Box::new(linear::EachHeadKernel::new(op, tensors)?),
        Op::Activate(op) => Box::new(elementwise::ActivateKernel::new(op, tensors)),
        Op::Map(op) => Box::new(elementwise::MapKernel::new(op, tensors)),
        Op::Heads(op) => Box::new(heads::HeadsKernel::new(op, tensors)),
        Op::Attention(op) => Box::new(attention::AttentionKernel::new(op, tensors)),
        Op::Among(op) => Box::new(among::AmongKernel::new(op, tensors)),
        Op::Mix(op) => Box::new(mix::MixKernel::new(op, tensors)?),
        Op::AddSlice(op) => Box::new(embed::AddSliceKernel::new(op, tensors)),
        Op::Convolve(op) => Box::new(recurrence::ConvolveKernel::new(op, tensors)),
        Op::Scan(op) => Box::new(recurrence::ScanKernel::new(op, tensors)),
        Op::Delta(op) => Box::new(recurrence::DeltaKernel::new(op, tensors)),
        Op::Experts(op) => Box::new(experts::ExpertsKernel::new(op, tensors)?),
        Op::AddShared(op) => Box::new(experts::AddSharedKernel::new(op, tensors)?),
        Op::Predict(op) => Box::new(streams::PredictKernel::new(op, tensors)),
        Op::Correct(op) => Box::new(streams::CorrectKernel::new(op, tensors)),
        Op::Match(op) => Box::new(streams::MatchKernel(*op)),
    }))
}

//! Lists the kernels that a step of a model would run.

use std::fmt::Write;

use super::describe::Description;
use super::lower::{DeviceProgram, Op};
use super::raii::KernelDevice;
use super::sys;
use crate::{DefaultLoad, EngineError, EngineOptions, StepSize};
use model::Weights;

/// One line per op and its kernels, in the order of the program, with how many times it occurs. The workspace is that of a server under
/// the `usual` load, or larger if the step needs more.
pub fn list(weights: &Weights, on: &KernelDevice, size: StepSize, usual: DefaultLoad) -> Result<String, EngineError> {
    let [sequences, rows, context] = [size.sequences, size.rows, size.context].map(|n| n as usize);
    let options = EngineOptions {
        context: context.max(1),
        max_slots: sequences.max(usual.max_slots),
        max_batch_tokens: (sequences * rows).max(usual.max_batch_tokens),
        state_slots: sequences.max(usual.max_slots),
        ..EngineOptions::default()
    };
    let description = Description::new(weights, &options)?;
    let load = sys::pen_load { num_seqs: size.sequences, rows: size.rows, context: size.context };
    let kernels = description.kernels(on, &load)?;
    let program = description.program();
    let labels = program.ops.iter().map(|op| label(op, program)).chain(["Head and sampling".to_owned()]);
    let mut lines: Vec<(String, String, usize)> = Vec::new();
    for (label, kernels) in labels.zip(kernels).filter(|(_, kernels)| !kernels.is_empty()) {
        match lines.iter_mut().find(|line| line.0 == label && line.1 == kernels) {
            Some(line) => line.2 += 1,
            None => lines.push((label, kernels, 1)),
        }
    }
    let width = lines.iter().map(|line| line.0.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for (label, kernels, count) in lines {
        let _ = writeln!(out, "{count:>5} × {label:width$}  {kernels}");
    }
    Ok(out)
}

/// An op's name and shape.
fn label(op: &Op, program: &DeviceProgram) -> String {
    let matrix = |tensor: u32| program.tensors.get(tensor as usize).map(|tensor| tensor.desc);
    match op {
        Op::Linear(of) => {
            let halves = |kind| if kind == sys::PEN_UPPER_HALF { 2 } else { 1 };
            let rows: u32 = [of.w0, of.w1, of.w2].into_iter().filter_map(matrix).map(|w| w.rows * halves(w.kind)).sum();
            format!("Linear {} → {rows}", matrix(of.w0).map_or(0, |w| w.cols))
        }
        Op::Attention(of) => {
            let sys::pen_cache { heads, key_dim, .. } = program.caches[of.cache as usize];
            let window = if of.window == 0 { String::new() } else { format!(", window {}", of.window) };
            format!("Attention {} heads over {heads} of {key_dim}{window}", of.heads)
        }
        Op::Heads(of) => format!("Heads {} of {}", of.heads, of.dim),
        Op::EachHead(of) => format!("EachHead {}", of.heads),
        Op::Experts(of) => format!("Experts {} of {}, {} → {}", of.used, of.count, of.hidden, of.dim),
        other => other.name().to_owned(),
    }
}

#[cfg(test)]
#[path = "kernels_tests.rs"]
mod tests;

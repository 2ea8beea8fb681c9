//! Copies the weights to the device in several threads.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

use super::lower::DeviceProgram;
use super::raii::Model;
use crate::EngineError;
use model::Weights;
use outside::in_line;

/// The most copying threads. Eight fill the bus from the page cache, and one does not.
const MAX_THREADS: usize = 8;

/// All tensors to copy, the largest first.
pub struct CopyPlan<'a> {
    program: &'a DeviceProgram,
    /// The numbers of the tensors.
    order: Vec<u32>,
    file_bytes: u64,
}

impl<'a> CopyPlan<'a> {
    pub fn new(program: &'a DeviceProgram) -> Self {
        let bytes = |tensor: &u32| program.tensors[*tensor as usize].file_bytes();
        let mut order: Vec<u32> = (0..program.tensors.len() as u32).collect();
        order.sort_by_key(|tensor| std::cmp::Reverse(bytes(tensor)));
        let file_bytes = order.iter().map(|tensor| bytes(tensor) as u64).sum();
        Self { program, order, file_bytes }
    }

    /// Copies every tensor. Returns the bytes of the file copied per second.
    pub fn copy(&self, model: &Model, weights: &Weights) -> Result<f64, EngineError> {
        let (start, progress) = (Instant::now(), bar(&weights.spec.name, self.file_bytes));
        let (next, fault) = (AtomicUsize::new(0), Mutex::new(None));
        let work = || {
            while let Some(&tensor) = self.order.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(error) = self.send(model, weights, tensor) {
                    // the others stop at their next tensor
                    next.store(self.order.len(), Ordering::Relaxed);
                    fault.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(error);
                    return;
                }
                progress.inc(self.program.tensors[tensor as usize].file_bytes() as u64);
            }
        };
        std::thread::scope(|scope| (0..MAX_THREADS.min(self.order.len())).for_each(|_| drop(scope.spawn(work))));
        progress.finish_and_clear();
        if let Some(error) = fault.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
            return Err(error);
        }
        let (seconds, gigabytes) = (start.elapsed().as_secs_f64(), self.file_bytes as f64 / 1e9);
        let rate = gigabytes / seconds.max(1e-9);
        tracing::info!("copied {gigabytes:.2} GB of weights to the device in {seconds:.2} s ({rate:.1} GB/s)");
        Ok(rate * 1e9)
    }

    fn send(&self, model: &Model, weights: &Weights, tensor: u32) -> Result<(), EngineError> {
        let of = &self.program.tensors[tensor as usize];
        let parts = of.parts(weights);
        let each = of.desc.count / parts.len().max(1) as u32;
        for (part, data) in parts.iter().enumerate() {
            model.tensor((tensor, &of.name), part as u32 * each, each, data)?;
        }
        Ok(())
    }
}

/// A progress bar with GB/s on a terminal, and a hidden one elsewhere.
fn bar(name: &str, bytes: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(bytes).with_prefix(in_line(name).into_owned());
    match ProgressStyle::with_template("{prefix} {bar:30} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

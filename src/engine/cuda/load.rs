//! Loading: the threads that copy the weights to the device.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

use super::describe::{Item, items};
use super::raii::Model;
use crate::EngineError;
use model::Weights;

/// Threads that copy: eight fill the bus from the page cache, one does not.
const MAX_THREADS: usize = 8;

/// Everything to copy, the largest first.
pub struct Plan {
    items: Vec<Item>,
    file_bytes: u64,
}

impl Plan {
    pub fn new(weights: &Weights) -> Self {
        let bytes = |item: &Item| item.weight.num_bytes();
        let mut items = items(weights);
        items.sort_by_key(|item| (std::cmp::Reverse(bytes(item)), item.slot as u32, item.layer));
        let file_bytes = items.iter().map(|item| bytes(item) as u64).sum();
        Self { items, file_bytes }
    }

    /// Copies every tensor; returns the bytes of the file copied per second.
    pub fn copy(&self, model: &Model, weights: &Weights) -> Result<f64, EngineError> {
        let (start, progress) = (Instant::now(), bar(&weights.spec.name, self.file_bytes));
        let (next, fault) = (AtomicUsize::new(0), Mutex::new(None));
        let work = || {
            while let Some(item) = self.items.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(error) = send(model, weights, item) {
                    // the others stop at their next tensor
                    next.store(self.items.len(), Ordering::Relaxed);
                    fault.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(error);
                    return;
                }
                progress.inc(item.weight.num_bytes() as u64);
            }
        };
        std::thread::scope(|scope| (0..MAX_THREADS.min(self.items.len())).for_each(|_| drop(scope.spawn(work))));
        progress.finish_and_clear();
        if let Some(error) = fault.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
            return Err(error);
        }
        let (seconds, gigabytes) = (start.elapsed().as_secs_f64(), self.file_bytes as f64 / 1e9);
        let rate = gigabytes / seconds.max(1e-9);
        tracing::info!("copied {gigabytes:.2} GB of weights to the device in {seconds:.2} s ({rate:.1} GB/s)");
        Ok(rate * 1e9)
    }
}

fn send(model: &Model, weights: &Weights, item: &Item) -> Result<(), EngineError> {
    let weight = &item.weight;
    if item.is_vector() {
        let mut vector = vec![0f32; weight.rows * weight.cols];
        (weight.quant.dequantize)(weights.data(weight), &mut vector);
        return model.tensor(item.slot, item.layer, bytemuck::cast_slice(&vector));
    }
    if weight.stack.is_none() {
        return model.tensor(item.slot, item.layer, weights.data(weight));
    }
    // the device takes a stack's parts one after another
    let mut whole = Vec::with_capacity(weight.num_bytes());
    weights.parts(weight).for_each(|part| whole.extend_from_slice(weights.data(&part)));
    model.tensor(item.slot, item.layer, &whole)
}

/// A bar with GB/s on a terminal, nothing elsewhere.
fn bar(name: &str, bytes: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(bytes).with_prefix(name.to_owned());
    match ProgressStyle::with_template("{prefix} {bar:30} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

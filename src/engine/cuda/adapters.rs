//! [`AdapterSites`]: the matrices of a device's program that adapters change.
//!
//! The device adds low-rank changes to the products of its linear ops and of the head. Experts, tables, gains, replaced weights and
//! directions are refused by name.

use half::f16;

use super::lower::{DeviceProgram, Op, Source};
use super::raii::Lent;
use super::sys;
use crate::adapter::rows_in_file;
use crate::{Adapter, ChangeKind, EngineError, LowRank, WeightChange};
use model::Weights;

/// A matrix that linear ops read.
struct Site {
    /// The device's tensor, or [`sys::PEN_NONE`] for the head.
    tensor: u32,
    /// The name of the file's tensor that holds the rows.
    name: String,
    first_row: usize,
    rows: usize,
    cols: usize,
    /// The rows of the file's tensor.
    rows_in_file: usize,
}

pub struct AdapterSites(Vec<Site>);

/// A change of one site in the device's form.
struct SiteChange {
    raw: sys::pen_change,
    a: Vec<u16>,
    b: Vec<u16>,
}

/// The largest rank on a device.
const MAX_RANK: usize = 1024;

impl AdapterSites {
    pub fn of(program: &DeviceProgram, weights: &Weights) -> Self {
        let mut tensors: Vec<u32> = Vec::new();
        for op in &program.ops {
            if let Op::Linear(op) = op {
                let is_gated = [sys::PEN_SILU_MUL, sys::PEN_GELU_MUL].contains(&op.epilogue);
                let all = if is_gated { [op.w0, op.w0 + 1, sys::PEN_NONE] } else { [op.w0, op.w1, op.w2] };
                tensors.extend(all.into_iter().filter(|&tensor| tensor != sys::PEN_NONE));
            }
        }
        tensors.sort_unstable();
        tensors.dedup();
        let site = |tensor: u32| Site::of(program, weights, tensor);
        let head = program.output.is_none().then(|| site(program.head.w)).flatten();
        // also where the head shares the table of tokens
        let head = head.map(|head| Site { tensor: sys::PEN_NONE, name: "output.weight".into(), ..head });
        Self(tensors.into_iter().filter_map(site).chain(head).collect())
    }

    /// Calls `f` with an adapter in the device's form.
    ///
    /// # Errors
    /// [`EngineError::Adapter`] names what the device cannot change.
    pub fn lend<T>(&self, adapter: &Adapter, f: impl FnOnce(&Lent<'_, &[sys::pen_change]>) -> T) -> Result<T, EngineError> {
        if !adapter.directions.is_empty() {
            return Err(EngineError::Adapter("control vectors on a GPU: use --backend cpu".into()));
        }
        let mut changes = Vec::new();
        for change in &adapter.changes {
            let mut sites = self.0.iter().filter(|site| site.name == change.tensor).peekable();
            if sites.peek().is_none() {
                let name = &change.tensor;
                return Err(EngineError::Adapter(format!("{name} is no matrix that adapters change on a GPU: use --backend cpu")));
            }
            for site in sites {
                changes.push(site.change(change)?);
            }
        }
        let point = |change: &SiteChange| sys::pen_change { a: change.a.as_ptr(), b: change.b.as_ptr(), ..change.raw };
        let raw: Vec<sys::pen_change> = changes.iter().map(point).collect();
        // SAFETY: `a` and `b` have the lengths that the shapes give, and both they and the list outlive the call.
        Ok(f(&unsafe { Lent::new(&raw[..]) }))
    }
}

/// Calls `f` with no change at all, which empties a place.
pub fn lend_none<T>(f: impl FnOnce(&Lent<'_, &[sys::pen_change]>) -> T) -> T {
    // SAFETY: an empty list is never read.
    f(&unsafe { Lent::new(&[][..]) })
}

impl Site {
    /// None for what no file holds in whole rows.
    fn of(program: &DeviceProgram, weights: &Weights, tensor: u32) -> Option<Self> {
        let of = program.tensors.get(tensor as usize)?;
        let Source::File(weight) = &of.source else { return None };
        let (rows, cols) = (of.desc.rows as usize, of.desc.cols as usize);
        let place = rows_in_file(weight, [of.desc.count as usize, cols], weights).filter(|_| of.desc.count == 1)?;
        Some(Self { tensor, name: place.name, first_row: place.first, rows, cols, rows_in_file: place.rows })
    }

    fn change(&self, change: &WeightChange) -> Result<SiteChange, EngineError> {
        let (have, want) = ([change.count, change.rows, change.cols], [1, self.rows_in_file, self.cols]);
        let name = &change.tensor;
        if have != want {
            return Err(EngineError::Adapter(format!("{name} has the shape {have:?} (matrices, rows, columns), expected {want:?}")));
        }
        let low = match &change.kind {
            ChangeKind::Low(low) if low.gain.is_none() && low.rank <= MAX_RANK => low,
            ChangeKind::Low(low) if low.gain.is_none() => {
                return Err(EngineError::Adapter(format!("{name} has the rank {}, expected at most {MAX_RANK} on a GPU", low.rank)));
            }
            ChangeKind::Low(_) => return Err(EngineError::Adapter(format!("{name}: DoRA on a GPU: use --backend cpu"))),
            ChangeKind::Replacement(_) => {
                return Err(EngineError::Adapter(format!("{name}: replaced weights on a GPU: use --backend cpu")));
            }
        };
        let LowRank { rank, a, b, scale, .. } = low;
        let rows = &b[self.first_row * rank..][..self.rows * rank];
        let raw = sys::pen_change {
            tensor: self.tensor,
            rows: self.rows as u32,
            cols: self.cols as u32,
            rank: *rank as u32,
            scale: *scale,
            a: std::ptr::null(),
            b: std::ptr::null(),
        };
        Ok(SiteChange { raw, a: halves(name, a)?, b: halves(name, rows)? })
    }
}

/// Numbers as float16.
fn halves(name: &str, numbers: &[f32]) -> Result<Vec<u16>, EngineError> {
    let halves: Vec<f16> = numbers.iter().map(|&number| f16::from_f32(number)).collect();
    match halves.iter().all(|half| half.is_finite()) {
        true => Ok(halves.into_iter().map(f16::to_bits).collect()),
        false => Err(EngineError::Adapter(format!("{name} has a number that does not fit into float16: use --backend cpu"))),
    }
}

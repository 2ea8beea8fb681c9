//! Drives the kernels of recurrences safely and in parallel. A task has up to [`BLOCK`] channels of one head of one sequence.

use super::attend::SequenceRows;
use super::pool::{Disjoint, ThreadPool};
use super::rows::Rows;
use super::scan::{DeltaArgs, Fade, Part, ScanArgs, Strided};
use super::{Kernels, LANES};

/// The most channels per task. With 128 key elements, their state takes 32 KiB.
const BLOCK: usize = 4 * LANES;

/// The part of each row that heads read. Head `i` starts `i * step` floats after `start`.
#[derive(Clone, Copy)]
pub struct View<'a> {
    floats: &'a [f32],
    /// Floats from one row to the next. 0 if all rows are the same.
    ld: usize,
    width: usize,
    rows: usize,
    start: usize,
    step: usize,
}

impl<'a> View<'a> {
    pub fn of(rows: &'a Rows, start: usize, step: usize) -> Self {
        Self { floats: rows.floats(), ld: rows.ld(), width: rows.width(), rows: rows.num_rows(), start, step }
    }

    /// A view of the same floats in every row.
    pub fn constant(floats: &'a [f32], step: usize) -> Self {
        Self { floats, ld: 0, width: floats.len(), rows: usize::MAX, start: 0, step }
    }

    /// Panics unless `heads` heads of `len` floats fit into `rows` rows.
    fn check(&self, heads: usize, len: usize, rows: usize) {
        let end = self.start + heads.saturating_sub(1) * self.step + len;
        assert!(end <= self.width && rows <= self.rows, "heads lie within their rows");
    }

    /// The rows of `head` from row `row`. Callers must have passed `check`.
    fn head(&self, head: usize, row: usize) -> Strided {
        let at = row * self.ld + self.start + head * self.step;
        Strided { start: self.floats[at.min(self.floats.len())..].as_ptr(), ld: self.ld }
    }
}

/// The heads of a recurrence, and the states of the sequences.
pub struct Heads<'a, 'b> {
    pub count: usize,
    /// Elements per key: the rows of the state.
    pub keys: usize,
    /// Elements per value (channels): the columns of the state.
    pub values: usize,
    pub sequences: &'a [SequenceRows],
    /// Per sequence: [count][keys][values]
    pub states: &'a mut [&'b mut [f32]],
}

/// The decay of a scan's state.
#[derive(Clone, Copy)]
pub enum Decay<'a> {
    /// One factor per row and head. `steps` holds the factor of each head's input.
    PerHead { factors: View<'a>, steps: Option<View<'a>> },
    /// e^(step · a), with a step per channel that is also the input's factor. `a` is [keys][count * values].
    PerChannel { steps: View<'a>, a: &'a [f32] },
}

/// A selective scan: S = decay · S + b ⊗ (step · x), out = Sᵀ c. `group` heads share b and c.
pub struct Scan<'a> {
    pub x: View<'a>,
    pub b: View<'a>,
    pub c: View<'a>,
    pub group: usize,
    pub decay: Decay<'a>,
}

/// Which key head a value head uses, if there are fewer key heads than value heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyHeads {
    /// Neighbouring value heads share a key head: 0, 0, 1, 1.
    Repeated,
    /// Value heads cycle through the key heads: 0, 1, 0, 1.
    Tiled,
}

/// The gated delta rule: S = decay · S, S += k ⊗ (beta · (v − Sᵀ k)), out = Sᵀ q.
pub struct Delta<'a> {
    pub q: View<'a>,
    pub k: View<'a>,
    pub v: View<'a>,
    pub num_key_heads: usize,
    pub key_heads: KeyHeads,
    /// One factor per head and row, or one per key element if `by_key` is set.
    pub decay: View<'a>,
    pub by_key: bool,
    pub beta: View<'a>,
}

impl Kernels {
    /// Runs a selective scan, out = [num_tokens, count * values].
    pub fn scan(&self, pool: &mut ThreadPool, heads: &mut Heads, scan: &Scan, out: &mut Rows) {
        let (count, keys, values, n) = (heads.count, heads.keys, heads.values, out.num_rows());
        scan.x.check(count, values, n);
        [scan.b, scan.c].iter().for_each(|view| view.check(count.div_ceil(scan.group), keys, n));
        match scan.decay {
            Decay::PerHead { factors, steps } => [Some(factors), steps].iter().flatten().for_each(|view| view.check(count, 1, n)),
            Decay::PerChannel { steps, a } => {
                steps.check(count, values, n);
                assert!(a.len() >= keys * count * values, "shapes match");
            }
        }
        heads.walk(pool, out, |part, head, row, at| {
            let fade = match scan.decay {
                Decay::PerHead { factors, .. } => Fade::Whole(factors.head(head, row)),
                Decay::PerChannel { steps, a } => {
                    Fade::Channel { steps: steps.head(head, row).behind(at), a: a[head * values + at..].as_ptr(), ld: count * values }
                }
            };
            let steps = if let Decay::PerHead { steps: Some(steps), .. } = scan.decay { steps.head(head, row) } else { Strided::NONE };
            let group = head / scan.group;
            let (b, c) = (scan.b.head(group, row), scan.c.head(group, row));
            // SAFETY: every view and the part were checked; tasks have different channels; dispatch checked the instruction set.
            unsafe { (self.scan)(&ScanArgs { part, x: scan.x.head(head, row).behind(at), b, c, steps, fade }) };
        });
    }

    /// Runs the delta rule, out = [num_tokens, count * values].
    pub fn delta(&self, pool: &mut ThreadPool, heads: &mut Heads, delta: &Delta, out: &mut Rows) {
        let (count, keys, n) = (heads.count, heads.keys, out.num_rows());
        [delta.q, delta.k].iter().for_each(|view| view.check(delta.num_key_heads, keys, n));
        delta.v.check(count, heads.values, n);
        delta.decay.check(count, if delta.by_key { keys } else { 1 }, n);
        delta.beta.check(count, 1, n);
        let group = count / delta.num_key_heads;
        assert!(group * delta.num_key_heads == count, "each key head has as many value heads");
        heads.walk(pool, out, |part, head, row, at| {
            let key_head = match delta.key_heads {
                KeyHeads::Repeated => head / group,
                KeyHeads::Tiled => head % delta.num_key_heads,
            };
            let (q, k, v) = (delta.q.head(key_head, row), delta.k.head(key_head, row), delta.v.head(head, row).behind(at));
            let (decay, beta, by_key) = (delta.decay.head(head, row), delta.beta.head(head, row), delta.by_key);
            // SAFETY: as in `scan`.
            unsafe { (self.delta)(&DeltaArgs { part, q, k, v, decay, by_key, beta }) };
        });
    }
}

impl Strided {
    const NONE: Self = Self { start: std::ptr::null(), ld: 0 };

    /// The rows starting at column `at`. The view's check covers them.
    fn behind(self, at: usize) -> Self {
        Self { start: self.start.wrapping_add(at), ..self }
    }
}

impl Heads<'_, '_> {
    /// Calls `task(part, head, first row, first channel)` for all channels of all heads of all sequences.
    fn walk(&mut self, pool: &mut ThreadPool, out: &mut Rows, task: impl Fn(Part, usize, usize, usize) + Sync) {
        let (count, keys, values) = (self.count, self.keys, self.values);
        assert!(out.width() >= count * values && self.states.len() == self.sequences.len(), "shapes match");
        let in_batch = |s: &SequenceRows| s.first_row + s.num_rows <= out.num_rows();
        assert!(self.sequences.iter().all(in_batch), "a sequence's rows are in the batch");
        assert!(self.states.iter().all(|state| state.len() == count * keys * values), "shapes match");
        let states: Vec<_> = self.states.iter_mut().map(|state| Disjoint::new(state)).collect();
        let blocks = values.div_ceil(BLOCK);
        let ld_out = out.ld();
        let (sequences, out) = (self.sequences, Disjoint::new(out.floats_mut()));
        pool.run(sequences.len() * count * blocks, &|index, _| {
            let (sequence, head, at) = (index / (count * blocks), index / blocks % count, index % blocks * BLOCK);
            let SequenceRows { first_row, num_rows, .. } = sequences[sequence];
            // SAFETY: the state and the rows hold all heads (asserted above); tasks have different heads, channels or sequences.
            let (state, to) = unsafe { (states[sequence].at(head * keys * values + at), out.at(first_row * ld_out + head * values + at)) };
            let channels = BLOCK.min(values - at);
            task(Part { state, ld_state: values, keys, channels, rows: num_rows, out: to, ld_out }, head, first_row, at);
        });
    }
}

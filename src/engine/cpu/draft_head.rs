//! [`DraftHead`]: the draft head of a model (multi-token prediction), which runs behind each step and guesses tokens between steps.
//!
//! The row of token p reads the model's row of token p − 1. So the model's rows are kept in the head's cache, at the places of their
//! tokens, beside the head's keys and values. Whatever shares or copies a block of the model's cache then shares or copies these, too, and
//! the head knows nothing of sequences. Rows of guessed tokens lie behind the last row of a sequence until a step replaces them: in its
//! last block, or in a block of the sequence's slot that only the head knows.

use super::group::{Common, Member, MemorySizes, ShardGroup};
use super::head::finish_logits;
use super::run::Run;
use super::simd::Kernels;
use super::simd::attend::{CacheLayer, CacheLayout, SequenceRows};
use super::simd::rows::Rows;
use crate::check::{CheckedBatch, Limits};
use crate::picture_layout::PictureLayout;
use crate::program::{Program, Scope};
use crate::rope::{Rope, ropes};
use crate::{Batch, DraftHeadInfo, DraftRequest, EngineError, Input, KvCapacity, MAX_HEAD_DRAFTS};
use model::{ModelSpec, TensorRole, Weights};

pub struct DraftHead {
    /// The model with the head as its last layer.
    weights: Weights,
    ropes: Vec<Rope>,
    rotations: Vec<Rows>, // [num_ropes][num_tokens, rope_dim] cosines, then sines
    /// The head's program, alone.
    group: ShardGroup,
    /// The limits of batches of guessed tokens.
    limits: Limits,
    info: DraftHeadInfo,
    last: Rows,   // [rows, hidden] normed rows of the head
    logits: Rows, // [rows, vocab]
}

/// The cache group of a model whose blocks the head shares: the first one without a window.
fn cache_group(spec: &ModelSpec) -> Result<usize, EngineError> {
    let groups = spec.cache_groups();
    let found = groups.iter().position(|group| group.window.is_none());
    found.ok_or_else(|| EngineError::Unsupported("a draft head of a model all of whose layers have windows".into()))
}

/// What the head keeps per token: its keys and values, and behind these, as a layer of its own, the model's row.
fn layout(whole: &ModelSpec) -> CacheLayout {
    let head = whole.num_layers() - 1;
    let mut layers = vec![CacheLayer::default(); head + 2];
    layers[head] = whole.layers[head].cached().map_or(CacheLayer::default(), |kept| CacheLayer::new(kept.heads, kept.key, kept.value));
    layers[head + 1] = CacheLayer::new(1, 0, whole.hidden_dim);
    CacheLayout::new(layers, std::iter::once(&[head, head + 1][..]))
}

/// The bytes of the head's part of a KV block. `whole`: the model with the head.
pub fn block_bytes(whole: &ModelSpec, block_size: usize) -> u64 {
    layout(whole).bytes(1, block_size).unwrap_or(u64::MAX)
}

/// The bytes of the head's own tensors, and those that it reads for a guess: its layer and the matrix of the logits.
pub fn head_bytes(whole: &Weights) -> [u64; 2] {
    let head = whole.spec.num_layers() - 1;
    let own = |role: TensorRole| if role.per_layer() { head } else { 0 };
    let size = |role: TensorRole| whole.get(role, own(role)).map_or(0, |weight| weight.num_bytes() as u64);
    let all = TensorRole::ALL.iter().filter(|role| role.per_layer()).map(|&role| size(role)).sum::<u64>();
    let output = if whole.get(TensorRole::NextnOutput, head).is_some() { 0 } else { size(TensorRole::Output) };
    let experts = whole.spec.layers[head].ffn.experts().copied().unwrap_or_default();
    let unused = TensorRole::ALL.iter().filter(|role| role.is_routed()).map(|&role| size(role)).sum::<u64>();
    let unused = unused - unused / experts.count.max(1) as u64 * experts.used as u64;
    [all, all.saturating_sub(size(TensorRole::NextnTokenEmbd)).saturating_sub(unused) + output]
}

impl DraftHead {
    /// Makes the kernels of a head. `whole` is the model with the head as its last layer, `limits` and `trunk` are the model's without it,
    /// and `step_bytes` is what one of its steps reads.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] for a tensor type that the kernels do not know, and for a model all of whose layers have windows.
    /// [`EngineError::OutOfMemory`].
    pub fn new(
        kernels: &'static Kernels,
        whole: Weights,
        (context, num_blocks): (usize, usize),
        (limits, trunk): (&Limits, &ModelSpec),
        step_bytes: u64,
    ) -> Result<Self, EngineError> {
        let (ropes, links) = ropes(&whole, context);
        let Some(scope) = Scope::draft_head(&whole.spec) else {
            return Err(EngineError::Unsupported("a model without a draft head".into()));
        };
        let program = Program::new(&whole, &links, &scope)?;
        let cost = head_bytes(&whole)[1] as f64 / step_bytes.max(1) as f64;
        let info = DraftHeadInfo { group: cache_group(trunk)?, cost };
        // a block per sequence slot for guessed tokens lies behind those of the model's cache
        let block_size = limits.kv.block_size;
        let all_blocks = num_blocks + limits.max_slots;
        let sizes = MemorySizes { num_blocks: all_blocks, block_size, state_slots: 0, draft_states: 0 };
        let member = Member::with_layout(kernels, &whole, &program, (layout(&whole.spec), sizes))?;
        let kv = KvCapacity::blocks(all_blocks, block_size);
        let limits = Limits { kv, num_backed: all_blocks, max_batch_tokens: limits.max_slots, ..limits.clone() };
        let rotations = ropes.iter().map(|rope| Rows::new(rope.dim())).collect();
        let (last, logits) = (Rows::new(whole.spec.hidden_dim), Rows::new(whole.spec.vocab_size));
        Ok(Self { weights: whole, ropes, rotations, group: ShardGroup { members: vec![member] }, limits, info, last, logits })
    }

    pub fn info(&self) -> DraftHeadInfo {
        self.info
    }

    /// Whether the head reads the model's rows before the final norm.
    pub fn reads_stream(&self) -> bool {
        self.weights.spec.arch.unnormed_drafts
    }

    /// The layer as which the model's rows are kept.
    fn rows_layer(&self) -> usize {
        self.weights.spec.num_layers()
    }

    /// Gives the memory of block `block` and all later blocks back to the system.
    pub fn give_back_from(&mut self, block: usize) {
        self.group.members[0].cache.give_back_from(block);
    }

    /// Runs behind a step of the model. `inputs`: the batch's resolved inputs. `rows`: the model's row of each input.
    pub fn follow(&mut self, run: &mut Run, batch: CheckedBatch, inputs: &[Input], rows: &Rows) {
        batch.with_group(self.info.group, |batch| {
            self.group.begin(&batch, inputs.len());
            let layer = self.rows_layer();
            let hidden = rows.width();
            self.group.members[0].cache.write(run.pool, layer, batch.places(0), (rows, rows), [0, hidden]);
            self.pass(run, batch, inputs, Some(rows));
        });
    }

    /// Runs the head's program. The row before each input is one of `rows`, the model's rows of the same batch or those of the pass before,
    /// or comes from the cache.
    fn pass(&mut self, run: &mut Run, batch: CheckedBatch, inputs: &[Input], rows: Option<&Rows>) {
        let (layer, block_size) = (self.rows_layer(), self.limits.kv.block_size);
        let sequences = SequenceRows::of(&batch);
        let member = &mut self.group.members[0];
        let mut x = member.buffers.take(member.stream);
        for (i, s) in sequences.iter().enumerate() {
            for k in 0..s.num_rows {
                let (row, index) = (x.row_mut(s.first_row + k), s.first_position + k);
                match (index, k, rows) {
                    // the first token has no row before it
                    (0, _, _) => row.fill(0.0),
                    (_, 1.., Some(rows)) => row.copy_from_slice(rows.row(s.first_row + k - 1)),
                    _ => {
                        let block = batch.block_table(0, i)[(index - 1) / block_size] as usize;
                        let kept = member.cache.value(layer, block * block_size + (index - 1) % block_size);
                        row.copy_from_slice(&kept[..row.len()]);
                    }
                }
            }
        }
        member.buffers.put(member.stream, x);
        for (rope, rotations) in self.ropes.iter().zip(&mut self.rotations) {
            rotations.resize(inputs.len());
            rotations.for_each(run.pool, |i, row| rope.rotation(batch.positions_of(i), row));
        }
        self.group.run(&mut Common {
            kernels: run.kernels,
            pool: run.pool,
            scratch: run.scratch,
            weights: &self.weights,
            batch,
            inputs,
            sequences: &sequences,
            pictures: &PictureLayout::default(),
            ropes: &self.ropes,
            rotations: &self.rotations,
        });
    }

    /// The logits of rows of the latest pass, one row per requested row [vocab].
    pub fn logits(&mut self, run: &mut Run, rows: &[u32]) -> &mut Rows {
        let Self { weights, group, last, logits, .. } = self;
        let member = &group.members[0];
        let Some(head) = &member.head else { return logits };
        let x = member.buffers.rows(member.stream);
        last.resize(rows.len());
        last.for_each(run.pool, |i, row| match &head.norm {
            Some(norm) => run.kernels.norm(row, x.row(rows[i] as usize), norm),
            None => row.copy_from_slice(x.row(rows[i] as usize)),
        });
        logits.resize(rows.len());
        head.output.run((run.kernels, weights), run.pool, run.scratch, last, logits);
        finish_logits(&weights.spec, run.kernels, run.pool, logits);
        logits
    }

    /// Guesses the tokens that follow each sequence: always the likeliest one.
    ///
    /// # Errors
    /// [`EngineError::InvalidBatch`] for requests that cannot be.
    pub fn draft(&mut self, run: &mut Run, requests: &[DraftRequest]) -> Result<Vec<Vec<u32>>, EngineError> {
        let block_size = self.limits.kv.block_size;
        let is_wrong = |request: &DraftRequest| {
            let due = (request.index as usize).div_ceil(block_size);
            request.most > MAX_HEAD_DRAFTS || request.index == 0 || request.blocks.len() < due
        };
        if requests.iter().any(is_wrong) {
            return Err(EngineError::InvalidBatch("a request for drafts names too few blocks or asks for too many tokens".into()));
        }
        let mut guesses: Vec<Vec<u32>> = vec![Vec::new(); requests.len()];
        for depth in 0..requests.iter().map(|request| request.most).max().unwrap_or(0) {
            let active: Vec<usize> = (0..requests.len()).filter(|&i| requests[i].most > depth && guesses[i].len() == depth).collect();
            let batch = self.draft_batch(requests, &active, &guesses);
            if active.is_empty() {
                break;
            }
            let batch = self.limits.check(&batch)?;
            self.group.begin(&batch, active.len());
            self.pass(run, batch, &batch.inputs, None);
            let all: Vec<u32> = (0..active.len() as u32).collect();
            let logits = self.logits(run, &all);
            for (row, &i) in active.iter().enumerate() {
                guesses[i].extend(likeliest(logits.row(row)));
            }
            self.keep_rows(run, batch);
        }
        Ok(guesses)
    }

    /// Keeps the head's own rows for the guesses that follow, in place of the model's.
    fn keep_rows(&mut self, run: &mut Run, batch: CheckedBatch) {
        let (layer, hidden, is_raw) = (self.rows_layer(), self.last.width(), self.reads_stream());
        let Member { cache, buffers, stream, .. } = &mut self.group.members[0];
        let rows = if is_raw { buffers.rows(*stream) } else { &self.last };
        cache.write(run.pool, layer, batch.places(0), (rows, rows), [0, hidden]);
    }

    /// The rows of the sequences' next guesses.
    fn draft_batch(&self, requests: &[DraftRequest], active: &[usize], guesses: &[Vec<u32>]) -> Batch {
        let (block_size, own_blocks) = (self.limits.kv.block_size, self.limits.num_backed - self.limits.max_slots);
        let mut batch = Batch { cu_seqlens_q: (0..=active.len() as u32).collect(), ..Batch::default() };
        let indices: Vec<usize> = active.iter().map(|&i| requests[i].index as usize + guesses[i].len()).collect();
        batch.max_blocks = indices.iter().map(|index| index / block_size + 1).max().unwrap_or(0);
        for (&i, index) in active.iter().zip(indices) {
            let (request, guess) = (&requests[i], &guesses[i]);
            batch.inputs.push(Input::Token(guess.last().copied().unwrap_or(request.token)));
            batch.positions.push(request.position + guess.len() as u32);
            batch.context_lens.push(index as u32 + 1);
            batch.sequence_slots.push(request.slot);
            let held = &request.blocks[..(request.index as usize).div_ceil(block_size)];
            let first = batch.block_tables.len();
            batch.block_tables.extend_from_slice(held);
            if held.len() <= index / block_size {
                batch.block_tables.push(own_blocks as u32 + request.slot);
            }
            let block = batch.block_tables[first + index / block_size];
            batch.slot_mapping.push(block * block_size as u32 + (index % block_size) as u32);
            batch.block_tables.resize(first + batch.max_blocks, 0);
        }
        batch
    }
}

/// The id with the largest logit. None if no logit is a number.
fn likeliest(logits: &[f32]) -> Option<u32> {
    let numbers = logits.iter().enumerate().filter(|(_, x)| !x.is_nan());
    numbers.max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0))).map(|(id, _)| id as u32)
}

#[cfg(test)]
#[path = "draft_head_tests.rs"]
mod tests;

//! [`DraftHead`]: the draft head of a model (multi-token prediction), which runs behind each step and guesses tokens between steps.
//!
//! The row of token p reads the model's row of token p − 1. So the model's rows are kept in the head's cache, at the places of their
//! tokens, beside the head's keys and values. Whatever shares or copies a block of the model's cache then shares or copies these, too,
//! and they need nothing else. Rows of guessed tokens lie behind the last row of a sequence until a step replaces them: in its last
//! block, or in a block of the sequence's slot that only the head knows.
//!
//! The head runs behind steps with rows of prompts. Behind other steps, only the model's rows are kept, and the head runs the rows that
//! it lacks once it is asked, together with the first guess. So a head that is not asked costs next to nothing. The last rows of a
//! sequence that was not asked again are missing in blocks that others reuse: their guesses are worse, never their texts.

use super::adapters::AdaptedRows;
use super::group::{Common, Member, MemorySizes, ShardGroup, rotate};
use super::head::finish_logits;
use super::run::Run;
use super::simd::Kernels;
use super::simd::attend::{CacheLayer, CacheLayout, KvCache, SequenceRows};
use super::simd::rows::Rows;
use crate::check::{CheckedBatch, Limits, Places};
use crate::picture_layout::PictureLayout;
use crate::program::{Program, Scope};
use crate::rope::{Rope, ropes};
use crate::{Batch, CacheType, DraftHeadInfo, DraftRequest, EngineError, Input, KvCapacity, MAX_HEAD_DRAFTS};
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
    /// [max_slots] the rows of each sequence slot that the head lacks.
    lacking: Vec<Lacking>,
    last: Rows,   // [rows, hidden] normed rows of the head
    logits: Rows, // [rows, vocab]
}

/// The rows of a sequence that the head has not run: those from `first` on.
#[derive(Clone, Debug, Default)]
struct Lacking {
    first: usize,
    rows: Vec<LackingRow>,
}

/// A row's token and positions.
type LackingRow = (Input, [u32; 3]);

/// The most rows that a sequence may lack. With half of them, the head runs them behind a step.
const MOST_LACKING: usize = 64;

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
        let sizes = MemorySizes { num_blocks: all_blocks, block_size, cache_type: CacheType::F32, state_slots: 0, draft_states: 0 };
        let member = Member::with_layout(kernels, &whole, &program, (layout(&whole.spec), sizes))?;
        let kv = KvCapacity::blocks(all_blocks, block_size);
        let max_batch_tokens = limits.max_slots * (MOST_LACKING + 1);
        let limits = Limits { kv, num_backed: all_blocks, max_batch_tokens, ..limits.clone() };
        let lacking = vec![Lacking::default(); limits.max_slots];
        let rotations = ropes.iter().map(|rope| Rows::new(rope.dim())).collect();
        let (last, logits) = (Rows::new(whole.spec.hidden_dim), Rows::new(whole.spec.vocab_size));
        Ok(Self { weights: whole, ropes, rotations, group: ShardGroup { members: vec![member] }, limits, info, lacking, last, logits })
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

    pub fn cache(&self) -> &KvCache {
        &self.group.members[0].cache
    }

    pub fn cache_mut(&mut self) -> &mut KvCache {
        &mut self.group.members[0].cache
    }

    /// Gives the memory of block `block` and all later blocks back to the system.
    pub fn give_back_from(&mut self, block: usize) {
        self.group.members[0].cache.give_back_from(block);
    }

    /// Follows a step of the model. `inputs`: the batch's resolved inputs. `rows`: the model's row of each input.
    ///
    /// # Errors
    /// [`EngineError::InvalidBatch`] if the rows that the head lacks cannot run, which is a fault of its own.
    pub fn follow(&mut self, run: &mut Run, batch: CheckedBatch, inputs: &[Input], rows: &Rows) -> Result<(), EngineError> {
        let sequences = SequenceRows::of(&batch);
        let mut num_sampled = vec![0; sequences.len()];
        batch.sampled_seqs().for_each(|i| num_sampled[i] += 1);
        let reads_prompt = |i: usize| num_sampled[i] < sequences[i].num_rows;
        batch.with_group(self.info.group, |batch| {
            self.group.begin(&batch, inputs.len());
            let (layer, hidden) = (self.rows_layer(), rows.width());
            self.group.members[0].cache.write(run.pool, layer, batch.places(0), (rows, rows), [0, hidden]);
            let numbers = 0..sequences.len();
            let late: Vec<DraftRequest> = numbers.clone().filter_map(|i| self.note(&batch, inputs, (i, &sequences[i]))).collect();
            self.catch_up(run, &late)?;
            if batch.want_draft_logits || numbers.clone().any(reads_prompt) {
                self.group.begin(&batch, inputs.len());
                self.pass(run, batch, inputs);
            }
            numbers.filter(|&i| reads_prompt(i)).for_each(|i| self.lacking[batch.sequence_slots[i] as usize].ran(sequences[i].end));
            Ok(())
        })
    }

    /// Notes the rows of a sequence that the head lacks. If they are too many, returns a request that makes the head run those before.
    fn note(&mut self, batch: &Batch, inputs: &[Input], (i, s): (usize, &SequenceRows)) -> Option<DraftRequest> {
        let (slot, start) = (batch.sequence_slots[i], s.first_position);
        let lacking = &mut self.lacking[slot as usize];
        // wrong drafts do not count
        lacking.rows.truncate(start.saturating_sub(lacking.first));
        if lacking.first + lacking.rows.len() != start || batch.init.iter().any(|init| init.slot == slot) {
            // what lies before in the cache was run for another sequence
            *lacking = Lacking { first: start, rows: Vec::new() };
        }
        let is_late = lacking.rows.len() > MOST_LACKING / 2;
        lacking.rows.extend((s.first_row..s.first_row + s.num_rows).map(|row| (inputs[row], batch.positions_of(row))));
        let Input::Token(token) = inputs[s.first_row] else { return None };
        let held = start.div_ceil(self.limits.kv.block_size);
        let blocks = batch.block_table(0, i)[..held].to_vec();
        let position = batch.positions[s.first_row];
        is_late.then_some(DraftRequest { slot, token, index: start as u32, position, blocks, most: 1 })
    }

    /// Runs the rows that the head lacks before those of the requests.
    fn catch_up(&mut self, run: &mut Run, late: &[DraftRequest]) -> Result<(), EngineError> {
        if late.is_empty() {
            return Ok(());
        }
        let all: Vec<usize> = (0..late.len()).collect();
        let batch = self.draft_batch(late, &all, &vec![Vec::new(); late.len()]);
        let batch = self.limits.check(&batch)?;
        self.group.begin(&batch, batch.num_tokens());
        self.pass(run, batch, &batch.inputs);
        late.iter().for_each(|request| self.lacking[request.slot as usize].ran(request.index as usize));
        Ok(())
    }

    /// Runs the head's program. The row before each input comes from the cache.
    fn pass(&mut self, run: &mut Run, batch: CheckedBatch, inputs: &[Input]) {
        let (layer, block_size) = (self.rows_layer(), self.limits.kv.block_size);
        let sequences = SequenceRows::of(&batch);
        let member = &mut self.group.members[0];
        let mut x = member.buffers.take(member.stream);
        for (i, s) in sequences.iter().enumerate() {
            let table = batch.block_table(0, i);
            for (row, index) in (s.first_row..s.first_row + s.num_rows).zip(s.first_position..) {
                let row = x.row_mut(row);
                // the first token has no row before it
                let Some(before) = index.checked_sub(1) else {
                    row.fill(0.0);
                    continue;
                };
                let kept = member.cache.value(layer, table[before / block_size] as usize * block_size + before % block_size);
                row.copy_from_slice(&kept[..row.len()]);
            }
        }
        member.buffers.put(member.stream, x);
        rotate(&self.ropes, &mut self.rotations, run.pool, &batch, inputs.len());
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
            // guesses do not need them
            adapted: &AdaptedRows::default(),
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
        if requests.iter().any(|request| is_wrong(request) || request.slot as usize >= self.lacking.len()) {
            return Err(EngineError::InvalidBatch("a request for drafts names too few blocks or asks for too many tokens".into()));
        }
        let mut guesses: Vec<Vec<u32>> = vec![Vec::new(); requests.len()];
        for depth in 0..requests.iter().map(|request| request.most).max().unwrap_or(0) {
            let active: Vec<usize> = (0..requests.len()).filter(|&i| requests[i].most > depth && guesses[i].len() == depth).collect();
            if active.is_empty() {
                break;
            }
            let batch = self.draft_batch(requests, &active, &guesses);
            let batch = self.limits.check(&batch)?;
            self.group.begin(&batch, batch.num_tokens());
            self.pass(run, batch, &batch.inputs);
            let logits = self.logits(run, &batch.sampled_rows);
            for (row, &i) in active.iter().enumerate() {
                guesses[i].extend(likeliest(logits.row(row)));
            }
            self.keep_rows(run, batch);
        }
        requests.iter().for_each(|request| self.lacking[request.slot as usize].ran(request.index as usize));
        Ok(guesses)
    }

    /// Keeps the head's own row of each sequence's last token for the guess that follows, in place of the model's.
    fn keep_rows(&mut self, run: &mut Run, batch: CheckedBatch) {
        let (layer, hidden, is_raw, num_backed) = (self.rows_layer(), self.last.width(), self.reads_stream(), self.limits.num_backed);
        let places: Vec<u32> = batch.sampled_rows.iter().map(|&row| batch.places(0)[row as usize]).collect();
        let Some(places) = Places::distinct(&places, num_backed * self.limits.kv.block_size) else { return };
        let Member { cache, buffers, stream, .. } = &mut self.group.members[0];
        if is_raw {
            let x = buffers.rows(*stream);
            self.last.for_each(run.pool, |i, row| row.copy_from_slice(x.row(batch.sampled_rows[i] as usize)));
        }
        cache.write(run.pool, layer, places, (&self.last, &self.last), [0, hidden]);
    }

    /// The rows of the sequences' next guesses, whose last ones are sampled. With the first guess, the head runs the rows that it lacks.
    fn draft_batch(&self, requests: &[DraftRequest], active: &[usize], guesses: &[Vec<u32>]) -> Batch {
        let (block_size, own_blocks) = (self.limits.kv.block_size, self.limits.num_backed - self.limits.max_slots);
        let ends = || active.iter().map(|&i| requests[i].index as usize + guesses[i].len());
        let max_blocks = ends().map(|end| end / block_size + 1).max().unwrap_or(0);
        let mut batch = Batch { cu_seqlens_q: vec![0], max_blocks, ..Batch::default() };
        let mut grid = Vec::new();
        for (&i, end) in active.iter().zip(ends()) {
            let (request, guess) = (&requests[i], &guesses[i]);
            let held = &request.blocks[..(request.index as usize).div_ceil(block_size)];
            let first = batch.block_tables.len();
            batch.block_tables.extend_from_slice(held);
            if held.len() <= end / block_size {
                batch.block_tables.push(own_blocks as u32 + request.slot);
            }
            batch.block_tables.resize(first + max_blocks, 0);
            let lacking = self.lacking[request.slot as usize].up_to(request.index as usize).filter(|_| guess.is_empty());
            let (start, rows) = lacking.map_or((end, &[][..]), |(start, rows)| (start, rows));
            let own = (Input::Token(guess.last().copied().unwrap_or(request.token)), [request.position + guess.len() as u32; 3]);
            for (index, (input, position)) in (start..).zip(rows.iter().chain([&own])) {
                batch.inputs.push(*input);
                batch.positions.push(position[0]);
                grid.push([position[1], position[2]]);
                let block = batch.block_tables[first + index / block_size];
                batch.slot_mapping.push(block * block_size as u32 + (index % block_size) as u32);
            }
            batch.cu_seqlens_q.push(batch.inputs.len() as u32);
            batch.sampled_rows.push(batch.inputs.len() as u32 - 1);
            batch.context_lens.push(end as u32 + 1);
            batch.sequence_slots.push(request.slot);
        }
        if self.limits.refuses_grids.is_none() {
            batch.grid_positions = grid;
        }
        batch
    }
}

impl Lacking {
    /// Records that the head has run the rows before row `end`.
    fn ran(&mut self, end: usize) {
        self.rows.drain(..(end.saturating_sub(self.first)).min(self.rows.len()));
        self.first = end;
    }

    /// The first lacking row, and those from there up to row `end`. None if the head does not know them all, or lacks none, or if one of
    /// them is not a token.
    fn up_to(&self, end: usize) -> Option<(usize, &[LackingRow])> {
        let rows = self.rows.get(..end.checked_sub(self.first)?)?;
        let are_tokens = rows.iter().all(|(input, _)| matches!(input, Input::Token(_)));
        (!rows.is_empty() && are_tokens).then_some((self.first, rows))
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

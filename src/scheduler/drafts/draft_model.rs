//! Drafts from a second, smaller model with the same vocabulary, which has an engine and a cache of its own on the engine thread.
//!
//! Before it guesses, the draft model reads what it has not read of each sequence: the prompt, in chunks, or else the tokens since its last
//! guess. A prefix that its cache holds is not read again, under the rules of the target's own prefix cache. It then guesses a token per
//! pass for all sequences at once. It draws as the target does, with the sequence's own parameters and seed, so that both take the same
//! token where their distributions agree. Rows of embeddings are left out. Nothing that it does reaches the target's engine but the guess.

use std::collections::HashMap;

use super::guess_request::GuessRequest;
use crate::batch;
use crate::block_key::{BlockScopes, CacheScope};
use crate::block_manager::BlockManager;
use crate::items::Items;
use crate::sequence_cache::SequenceCache;
use crate::tokens::Tokens;
use engine::{Batch, Engine, EngineError, EngineInfo, Input, Sampled, SlotInit, StepOutput};

/// The most rows that the draft model reads before a step, so that a long prompt does not delay others for long.
const MAX_ROWS: usize = 128;

/// The time of a pass per time of its bytes: a pass also reads the tokens that were guessed wrong, and its engine starts cold.
const OVERHEAD: f64 = 1.5;

/// The engine of a draft model.
pub struct DraftEngine {
    pub engine: Box<dyn Engine>,
    /// Number of leading ids that both models have. Others are neither read nor guessed.
    pub num_ids: usize,
    /// The longest context that the draft model was made for [tokens].
    pub context: usize,
    /// Time of a pass, in units of a step of the target without rows.
    pub pass: f64,
}

impl DraftEngine {
    /// The time of a pass by the bytes that it reads, compared with those of a step. It is rather too long than too short, so that a draft
    /// model whose size hardly pays is hardly asked.
    pub fn pass_time(target: &EngineInfo, draft: &EngineInfo) -> f64 {
        OVERHEAD * draft.step_bytes as f64 / target.step_bytes.max(1) as f64
    }
}

/// What the draft model knows of a sequence.
#[derive(Debug)]
struct Context {
    cache: SequenceCache,
    slot: u32,
    /// The prompt's tokens.
    prompt: Items,
    /// Number of the sequence's tokens that are in the cache.
    num_read: usize,
    /// Guessed tokens that are in the cache behind them.
    guessed: Vec<u32>,
}

/// The rows of a sequence in a pass.
#[derive(Debug)]
struct Part {
    /// Index of the request.
    index: usize,
    id: u64,
    /// The place of the first row in the context.
    start: usize,
    tokens: Vec<u32>,
    init: Option<SlotInit>,
    /// Whether the last row is sampled.
    sampled: bool,
    /// The most tokens to guess from there on.
    most: usize,
}

pub struct DraftModel {
    engine: Box<dyn Engine>,
    num_ids: usize,
    max_tokens: usize,
    max_rows: usize,
    /// Number of blocks that always have memory.
    least: usize,
    blocks: BlockManager,
    contexts: HashMap<u64, Context>,
    free_slots: Vec<u32>,
    // Buffers that every pass reuses.
    batch: Batch,
    output: StepOutput,
}

impl DraftModel {
    pub fn new(draft: DraftEngine, prefix_cache: bool) -> Self {
        let DraftEngine { engine, num_ids, context, .. } = draft;
        let (capacity, least) = (engine.kv_capacity(), engine.num_backed_blocks());
        let max_rows = Some(engine.info().max_batch_tokens).filter(|&rows| rows > 0).map_or(MAX_ROWS, |rows| rows.min(MAX_ROWS));
        Self {
            num_ids,
            max_tokens: capacity.max_tokens().min(context),
            max_rows,
            least,
            blocks: BlockManager::new(capacity, least, prefix_cache),
            contexts: HashMap::new(),
            free_slots: (0..engine.max_slots() as u32).rev().collect(),
            batch: Batch::default(),
            output: StepOutput::default(),
            engine,
        }
    }

    /// Forgets the sequences that do not run any more. Their prefixes stay in the cache.
    pub fn keep(&mut self, is_kept: impl Fn(u64) -> bool) {
        let gone: Vec<u64> = self.contexts.keys().copied().filter(|&id| !is_kept(id)).collect();
        gone.into_iter().for_each(|id| self.forget(id));
    }

    fn forget(&mut self, id: u64) {
        if let Some(mut context) = self.contexts.remove(&id) {
            context.cache.release(&mut self.blocks, 0);
            self.free_slots.push(context.slot);
        }
    }

    /// Gives back the memory of the cache, and what it holds.
    ///
    /// # Errors
    /// The device is lost.
    pub fn give_back(&mut self) -> Result<(), EngineError> {
        self.keep(|_| false);
        self.blocks.remove_backed(self.least);
        let backed = self.engine.resize_cache(self.least)?;
        self.blocks.add_backed(backed);
        Ok(())
    }

    /// Number of a sequence's tokens that the draft model must read before it guesses. Takes in a sequence that is new. None if it cannot
    /// guess what follows: the sequence is too long, has an id that it lacks, or finds no memory.
    pub fn num_unread(&mut self, request: &GuessRequest<'_>) -> Result<Option<usize>, EngineError> {
        if request.len() >= self.max_tokens || !self.take_in(request)? {
            return Ok(None);
        }
        let num_known = self.contexts.get(&request.id).map_or(0, |context| context.num_known(request));
        let can_read = (num_known..request.len()).all(|index| (request.token(index) as usize) < self.num_ids);
        Ok(can_read.then_some(request.len() - num_known))
    }

    fn take_in(&mut self, request: &GuessRequest<'_>) -> Result<bool, EngineError> {
        if self.contexts.contains_key(&request.id) {
            return Ok(true);
        }
        if self.blocks.num_backed() < self.blocks.num_blocks() {
            let backed = self.engine.resize_cache(self.blocks.num_blocks())?;
            self.blocks.add_backed(backed);
        }
        let prompt = if request.prompt.is_text() { request.prompt.clone() } else { Items::text(request.prompt.tokens().to_vec()) };
        let Some(slot) = self.free_slots.pop() else { return Ok(false) };
        let (tokens, mut cache) = (Tokens { prompt: &prompt, generated: request.generated }, SequenceCache::default());
        let scopes = scopes(request, &self.blocks);
        match cache.take(&mut self.blocks, tokens, scopes, tokens.len() - 1, 0) {
            Some(hit) => {
                self.contexts.insert(request.id, Context { cache, slot, prompt, num_read: hit.num_tokens, guessed: Vec::new() });
                Ok(true)
            }
            None => {
                self.free_slots.push(slot);
                Ok(false)
            }
        }
    }

    /// Guesses what follows some sequences, each of which [`num_unread`](Self::num_unread) has taken in. A guess is empty if the sequence
    /// is not read to its end yet.
    ///
    /// # Errors
    /// Those of the engine. The draft model is of no more use.
    pub fn guess(&mut self, requests: &[GuessRequest<'_>]) -> Result<Vec<Vec<u32>>, EngineError> {
        let mut order: Vec<usize> = (0..requests.len()).collect();
        let unread = |request: &GuessRequest<'_>| request.len() - self.contexts.get(&request.id).map_or(0, |context| context.num_read);
        // Those that have little to read come first, so that none waits for a long prompt.
        order.sort_by_key(|&index| unread(&requests[index]));
        let (mut parts, mut room) = (Vec::new(), self.max_rows);
        for index in order {
            let part = self.prepare(index, &requests[index], room);
            room -= part.as_ref().map_or(0, |part| part.tokens.len());
            parts.extend(part);
        }
        let mut guesses = vec![Vec::new(); requests.len()];
        while !parts.is_empty() {
            let sampled = self.run(&mut parts)?;
            let mut next = Vec::new();
            for (part, sampled) in parts.iter().filter(|part| part.sampled).zip(sampled) {
                let Sampled::Token(token) = sampled else { continue };
                if token as usize >= self.num_ids || requests[part.index].stop_ids.contains(&token) {
                    continue;
                }
                guesses[part.index].push(token);
                if part.most > 1 {
                    let start = part.start + part.tokens.len();
                    next.push(Part { start, tokens: vec![token], init: None, most: part.most - 1, ..*part });
                    if let Some(context) = self.contexts.get_mut(&part.id) {
                        context.guessed.push(token);
                    }
                }
            }
            parts = next;
        }
        Ok(guesses)
    }

    /// The rows with which a sequence begins, at most `room`.
    fn prepare(&mut self, index: usize, request: &GuessRequest<'_>, room: usize) -> Option<Part> {
        let context = self.contexts.get_mut(&request.id)?;
        let (len, start) = (request.len(), context.num_known(request));
        context.guessed.clear();
        context.num_read = start;
        let tokens = Tokens { prompt: &context.prompt, generated: request.generated };
        // Rows before the first one are final.
        context.cache.commit(start, tokens, (scopes(request, &self.blocks), request.owner), &mut self.blocks);
        let wanted = len.min(start + room).max(start);
        // the last token that is guessed is not read
        let behind = if wanted == len { request.most.saturating_sub(1).min(self.max_tokens - len) } else { 0 };
        let end = context.cache.grow(start..wanted + behind, 0, &mut self.blocks, 0);
        let last = end.min(wanted);
        if last <= start || request.most == 0 {
            return None;
        }
        context.num_read = last;
        let init = SlotInit {
            slot: context.slot,
            params: request.params.clone(),
            prompt: request.prompt.tokens().clone(),
            generated: request.generated.to_vec(),
        };
        let tokens = (start..last).map(|at| request.token(at)).collect();
        Some(Part { index, id: request.id, start, tokens, init: Some(init), sampled: last == len, most: 1 + end - last })
    }

    /// Runs a pass. Returns what the parts that are sampled have sampled.
    fn run(&mut self, parts: &mut [Part]) -> Result<Vec<Sampled>, EngineError> {
        batch::clear(&mut self.batch);
        for part in &mut *parts {
            let Some(context) = self.contexts.get(&part.id) else { continue };
            let end = part.start + part.tokens.len();
            self.batch.init.extend(part.init.take());
            self.batch.inputs.extend(part.tokens.iter().copied().map(Input::Token));
            self.batch.positions.extend(part.start as u32..end as u32);
            self.batch.cu_seqlens_q.push(self.batch.inputs.len() as u32);
            self.batch.context_lens.push(end as u32);
            self.batch.sequence_slots.push(context.slot);
            self.batch.sampled_rows.extend(part.sampled.then(|| self.batch.inputs.len() as u32 - 1));
        }
        let caches = || parts.iter().filter_map(|part| self.contexts.get(&part.id)).map(|context| &context.cache);
        let groups = (0..self.blocks.groups().len()).map(|group| caches().map(move |cache| cache.block_table(group)));
        batch::set_tables(&mut self.batch, groups, self.blocks.block_size());
        let step = self.engine.submit(&self.batch)?;
        self.engine.collect(step, &mut self.output)?;
        match self.output.sampled.len() == self.batch.num_sampled() {
            true => Ok(std::mem::take(&mut self.output.sampled)),
            false => Err(EngineError::InvalidBatch(format!("a pass sampled {} rows", self.output.sampled.len()))),
        }
    }
}

impl Context {
    /// Number of leading tokens of the sequence that are in the cache. The last token is not among them, since its row gives the guess.
    fn num_known(&self, request: &GuessRequest<'_>) -> usize {
        let came = (self.num_read..request.len()).map(|index| request.token(index));
        let num_right = self.guessed.iter().zip(came).take_while(|(guessed, came)| *guessed == came).count();
        (self.num_read + num_right).min(request.len() - 1)
    }
}

/// The scopes of a sequence's blocks, as in the target's cache. The draft model has no adapters.
fn scopes(request: &GuessRequest<'_>, blocks: &BlockManager) -> BlockScopes<'static> {
    BlockScopes { of_all: CacheScope { salt: request.salt, format: blocks.format(), ..CacheScope::default() }, adapters: &[] }
}

#[cfg(test)]
#[path = "draft_model_tests.rs"]
mod tests;

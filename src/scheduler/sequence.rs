//! One sequence as the scheduler sees it: items, memory, progress. Outside of `items.rs`, a sequence's items count as its tokens.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crate::block_key::{BlockScopes, CacheScope};
use crate::block_manager::BlockManager;
use crate::channel::EventSender;
use crate::checkpoints::Checkpoints;
use crate::client::Client;
use crate::drafts::{Asking, DrafterKind, Drafts, GuessRequest, History, MAX_DRAFTS};
use crate::engine_state::ActiveSequence;
use crate::event::Event;
use crate::items::Items;
use crate::mask_threads::MaskThreads;
use crate::masks::{GrammarCursor, PATIENCE};
use crate::new_sequence::NewSequence;
use crate::queue_permits::{QueuePermit, QueueTicket, RequestKey};
use crate::sequence_cache::{PrefixHit, SequenceCache};
use crate::timeline::Timeline;
use crate::tokens::Tokens;
use engine::{DraftRequest, Sampled, Scored, SequenceAdapters, SlotInit, VectorRequest};
use metrics::ModelMetrics;

#[derive(Debug)]
pub struct Sequence {
    /// The ordinal of the first admission, starting at 1. 0 before admission.
    pub id: u64,
    /// The caller's request. The grammar has moved to the cursor.
    pub asked: NewSequence,
    generated: Vec<u32>,
    pub cache: SequenceCache,
    pub timeline: Timeline,
    /// Present if the tokens must follow a grammar.
    pub grammar: Option<GrammarCursor>,
    /// Present if the sequence is drafted.
    pub drafts: Option<Box<Drafts>>,
    /// The places of its adapters. Empty unless the sequence runs.
    pub adapters: SequenceAdapters,
    /// Whether the prompt was computed for another member of the sequence group.
    pub is_fork: bool,
    events: Arc<EventSender>,
    permit: QueuePermit,
    /// Counts the sequence at its engine. None before it is sent to one.
    active: Option<ActiveSequence>,

    /// The engine's sequence slot. Valid while the sequence runs.
    sequence_slot: u32,
    /// The stop id that ended the sequence.
    stopped_by: Option<u32>,
    /// Whether the sequence slot must be initialised with the next step.
    needs_init: bool,
    /// Number of tokens whose K and V are in the cache after all submitted steps.
    num_computed: usize,
    /// Number of tokens sampled by steps that are not collected yet.
    num_pending: usize,
    /// Number of prompt tokens whose scores the client has. Starts at 1, since the first token has no score.
    num_scored: usize,
}

impl Sequence {
    pub fn new(mut asked: NewSequence, events: Arc<EventSender>, permit: QueuePermit) -> Self {
        Self {
            id: 0,
            generated: Vec::new(),
            cache: SequenceCache::default(),
            timeline: Timeline::new(asked.prompt.len()),
            grammar: asked.grammar.take().map(GrammarCursor::new),
            asked,
            adapters: SequenceAdapters::default(),
            is_fork: false,
            drafts: None,
            events,
            permit,
            active: None,
            sequence_slot: 0,
            stopped_by: None,
            needs_init: false,
            num_computed: 0,
            num_pending: 0,
            num_scored: 1,
        }
    }

    /// The request that the sequence belongs to.
    pub fn request(&self) -> RequestKey {
        self.permit.request()
    }

    /// The sequence's room in the queue.
    pub fn ticket(&self) -> &Arc<QueueTicket> {
        self.permit.ticket()
    }

    /// Counts the sequence at the engine that it is sent to.
    pub fn count_at(&mut self, engine: ActiveSequence) {
        self.active = Some(engine);
    }

    /// Remembers where the sequence and its answer are cached.
    pub fn remember(&self) {
        if let Some(active) = &self.active {
            active.state().remember(&self.asked, &self.generated);
        }
    }

    /// The channel to the client.
    pub fn events(&self) -> &Arc<EventSender> {
        &self.events
    }

    /// The client of the request.
    pub fn client(&self) -> Client {
        self.permit.client()
    }

    /// Checks that the sequence can run in this cache, in steps of at most `max_rows` rows.
    ///
    /// # Errors
    /// The reason why it cannot run, for the client.
    pub fn check(&self, blocks: &BlockManager, max_rows: usize) -> Result<(), String> {
        let (capacity, prompt) = (blocks.max_tokens(), self.prompt());
        let len = prompt.len();
        prompt.check()?;
        let NewSequence { max_tokens, score_prompt, pool, .. } = self.asked;
        if len == 0 || max_tokens == 0 && score_prompt.is_none() && pool.is_none() {
            return Err("a sequence needs a prompt, and a token to generate, a score or a vector to compute".into());
        }
        if pool.is_some() && max_tokens > 0 {
            return Err("a sequence either generates tokens or becomes a vector, not both".into());
        }
        if score_prompt.is_some() && !prompt.is_text() {
            return Err("a prompt has scores only if all of it is text".into());
        }
        if len + usize::from(max_tokens > 0) > capacity {
            return Err(format!("the prompt has {len} tokens and the KV cache holds {capacity}"));
        }
        let together = prompt.most_together();
        if together > max_rows {
            return Err(format!(
                "{together} rows of the prompt must run in one step, and a step has at most {max_rows} rows: raise max_batch_tokens"
            ));
        }
        if together > 1 && !blocks.fits(len, together) {
            return Err(format!("{together} rows of the prompt must run in one step, and the KV cache has too few blocks for that"));
        }
        Ok(())
    }

    /// Number of rows that the next step may run: tokens that are known or pending, and not computed. 0 if the pending tokens already
    /// exhaust `max_tokens` or a KV cache of `capacity` tokens. A sequence that generates nothing has only the rows of its prompt.
    pub fn num_remaining(&self, capacity: usize) -> usize {
        if !self.generates() {
            return self.prompt().len() - self.num_computed;
        }
        // What follows drafts is not known before their step has ended.
        if self.num_in_flight_drafts() > 0 {
            return 0;
        }
        let total = self.num_tokens() + self.num_pending;
        let exhausted = self.generated.len() + self.num_pending >= self.max_tokens() || total > capacity;
        if exhausted { 0 } else { total - self.num_computed }
    }

    /// Number of drafts that a step in flight verifies.
    pub fn num_in_flight_drafts(&self) -> usize {
        self.drafts.as_ref().map_or(0, |drafts| drafts.in_flight().len())
    }

    /// The most drafts that may follow the known and the pending tokens: up to the end of `max_tokens` and of a KV cache of `capacity`
    /// tokens, with a token to sample after each draft.
    pub fn max_drafts(&self, capacity: usize) -> usize {
        let left = self.max_tokens().saturating_sub(self.generated.len() + self.num_pending);
        left.min((capacity + 1).saturating_sub(self.num_tokens() + self.num_pending)).min(MAX_DRAFTS)
    }

    /// Guesses the tokens that follow, after `num_new` new tokens.
    pub fn guess(&mut self, num_new: usize, capacity: usize) {
        let most = self.max_drafts(capacity) + self.num_pending;
        let history = History { prompt: self.asked.prompt.tokens(), generated: &self.generated };
        if let Some(drafts) = &mut self.drafts {
            drafts.guess(history, num_new, most);
        }
    }

    /// What to ask the draft head, whose keys and values are in the blocks of `group`. `num_rows`: rows of the next step besides drafts.
    pub fn draft_request(&self, group: usize, num_rows: usize, blocks: &BlockManager) -> Option<DraftRequest> {
        let drafts = self.drafts.as_ref().filter(|_| self.num_pending == 0)?;
        let most = drafts.num_to_ask(self.asking(num_rows, 1, blocks.max_tokens()));
        let index = self.num_tokens() - 1;
        let token = *self.generated.last().filter(|_| most > 0 && self.num_computed == index)?;
        let held = self.cache.block_table(group).get(..index.div_ceil(blocks.block_size()))?;
        let position = self.prompt().next_position() + (index - self.prompt().len()) as u32;
        Some(DraftRequest { slot: self.sequence_slot, token, index: index as u32, position, blocks: held.to_vec(), most })
    }

    /// The sequence before a step with `num_rows` rows besides drafts, for a drafter that must read `num_unread` tokens before it guesses.
    pub fn asking(&self, num_rows: usize, num_unread: usize, capacity: usize) -> Asking {
        Asking { num_rows, most: self.max_drafts(capacity), num_unread, num_left: self.max_tokens() - self.generated.len() }
    }

    /// What a draft model reads to guess the tokens that follow. None if the sequence has no tokens yet, or a step in flight adds some.
    pub fn guess_request(&self) -> Option<GuessRequest<'_>> {
        let is_known = self.num_pending == 0 && !self.generated.is_empty();
        is_known.then(|| GuessRequest {
            id: self.id,
            prompt: &self.asked.prompt,
            generated: &self.generated,
            params: &self.asked.params,
            stop_ids: &self.asked.stop_ids,
            salt: self.asked.cache_salt,
            owner: self.client().tenant,
            most: 0,
        })
    }

    /// Takes what the draft head or the draft model guessed.
    pub fn bring_guess(&mut self, guess: Vec<u32>) {
        let history = History { prompt: self.asked.prompt.tokens(), generated: &self.generated };
        if let Some(drafts) = &mut self.drafts {
            drafts.bring(history, guess);
        }
    }

    /// Advances the grammar by the sampled `tokens`, and by the drafts behind them.
    pub fn advance_grammar(&mut self, tokens: &[u32], threads: &mut MaskThreads) {
        let drafts = self.drafts.as_ref().filter(|_| self.num_pending == 0).map_or(&[][..], |drafts| drafts.expected());
        if let Some(grammar) = &mut self.grammar {
            grammar.accept(tokens, drafts, threads);
        }
    }

    /// Records that the drafts in flight were verified. `counts`: the number of drafts, and of those that were right.
    pub fn count_drafts(&mut self, counts: (usize, usize), metrics: &ModelMetrics) {
        let kind = self.drafts.as_mut().and_then(|drafts| {
            drafts.settle(counts);
            drafts.land()
        });
        self.timeline.progress().count_drafts(counts, kind == Some(DrafterKind::Prediction));
        metrics.count_drafts(counts.0, counts.1);
    }

    /// Whether this result ends the sequence.
    pub fn is_stopped_by(&self, sampled: Sampled) -> bool {
        matches!(sampled, Sampled::Token(id) if self.asked.stop_ids.contains(&id))
    }

    /// Number of tokens sampled by steps that are not collected yet.
    pub fn num_pending(&self) -> usize {
        self.num_pending
    }

    /// Number of rows that the next step must run if it runs the sequence: 1, or the rows of a run that see each other.
    pub fn num_together(&self) -> usize {
        self.prompt().num_together(self.num_computed)
    }

    /// Number of blocks that the next rows need and the sequence does not hold.
    pub fn num_missing_blocks(&self, capacity: usize, block_size: usize) -> usize {
        if self.num_remaining(capacity) == 0 {
            return 0;
        }
        self.cache.num_missing(self.num_computed + self.num_together(), block_size)
    }

    pub fn num_computed(&self) -> usize {
        self.num_computed
    }

    pub fn prompt(&self) -> &Items {
        &self.asked.prompt
    }

    pub fn tokens(&self) -> Tokens<'_> {
        Tokens { prompt: &self.asked.prompt, generated: &self.generated }
    }

    /// Number of tokens that the host knows.
    pub fn num_tokens(&self) -> usize {
        self.asked.prompt.len() + self.generated.len()
    }

    pub fn num_generated(&self) -> usize {
        self.generated.len()
    }

    pub fn max_tokens(&self) -> usize {
        self.asked.max_tokens as usize
    }

    pub fn generates(&self) -> bool {
        self.asked.max_tokens > 0
    }

    fn cache_scope(&self, blocks: &BlockManager) -> CacheScope {
        CacheScope { salt: self.asked.cache_salt, format: blocks.format(), ..CacheScope::default() }
    }

    pub fn block_scopes(&self, blocks: &BlockManager) -> BlockScopes<'_> {
        BlockScopes { of_all: self.cache_scope(blocks), adapters: &self.asked.adapters }
    }

    /// Takes cached blocks and memory for the rest, see [`SequenceCache::take`].
    pub fn take_cache(&mut self, blocks: &mut BlockManager, headroom: usize) -> Option<PrefixHit> {
        let num_reusable = self.num_reusable(blocks.has_state());
        let scopes = BlockScopes { of_all: self.cache_scope(blocks), adapters: &self.asked.adapters };
        let tokens = Tokens { prompt: &self.asked.prompt, generated: &self.generated };
        self.cache.take(blocks, tokens, scopes, num_reusable, headroom)
    }

    /// Registers the blocks of the first `num_tokens` tokens, see [`SequenceCache::commit`].
    pub fn commit_cache(&mut self, num_tokens: usize, blocks: &mut BlockManager) {
        let scopes = BlockScopes { of_all: self.cache_scope(blocks), adapters: &self.asked.adapters };
        let scope = (scopes, self.client().tenant);
        let tokens = Tokens { prompt: &self.asked.prompt, generated: &self.generated };
        self.cache.commit(num_tokens, tokens, scope, blocks);
    }

    /// Number of tokens that the members of a sequence group share: the prompt without its last token, from whose logits each member
    /// samples. If the prompt ends with a run whose rows see each other, they are not shared either.
    pub fn num_shared(&self) -> usize {
        self.prompt().boundary_before(self.prompt().len() - 1)
    }

    /// Start of the last rows of the known and pending tokens, of which the engine samples the last one: a single row, or a run at the
    /// prompt's end whose rows see each other.
    fn last_start(&self) -> usize {
        self.prompt().boundary_before(self.num_tokens() + self.num_pending - 1)
    }

    /// Whether the last row cannot run twice, so that it waits for its mask: it would advance the state again, or its run must run as one.
    fn runs_last_once(&self, has_state: bool) -> bool {
        has_state || self.last_start() + 1 < self.num_tokens() + self.num_pending
    }

    /// Whether every row of the prompt must run, even if the prefix cache holds the prompt.
    pub fn needs_whole_prompt(&self) -> bool {
        self.asked.pool.is_some() || self.asked.score_prompt.is_some() && self.num_scored < self.prompt().len()
    }

    /// The most tokens that may come from the prefix cache. One token is left to compute, for its logits. With recurrent state and a
    /// grammar, a second one is left, because the last row may have to wait for its mask and the step that copies the state must run a row.
    pub fn num_reusable(&self, has_state: bool) -> usize {
        let num_left = if has_state && self.grammar.is_some() { 2 } else { 1 };
        if self.needs_whole_prompt() || self.prompt().is_whole() { 0 } else { self.num_tokens().saturating_sub(num_left) }
    }

    /// Whether a step that starts `now` must leave the sequence out because its next mask has not arrived.
    ///
    /// A step does not wait for slow masks. A row that was sampled without its mask must run again, which is impossible with recurrent
    /// state. So a sequence with state takes part only if its mask has arrived.
    pub fn awaits_mask(&mut self, now: Instant, has_state: bool) -> bool {
        let runs_once = self.grammar.is_some() && self.runs_last_once(has_state);
        let Some(grammar) = &mut self.grammar else { return false };
        let is_slow = grammar.is_slow();
        let deadline = if is_slow { now } else { now + PATIENCE };
        (runs_once || is_slow) && (self.num_pending > 0 || !grammar.is_ready_by(deadline))
    }

    /// The next position at which a chunk must end, so that the row there runs in a later step.
    ///
    /// There are three kinds of boundaries: the end of the tokens that a sequence group shares, the last row of a sequence with a grammar
    /// whose last row cannot run twice (it may wait for its mask), and checkpoints.
    pub fn chunk_boundary(&self, blocks: &BlockManager) -> Option<usize> {
        let branch = self.asked.sequence_group.is_some().then(|| self.num_shared());
        let last = (self.grammar.is_some() && self.runs_last_once(blocks.has_state())).then(|| self.last_start());
        let cuts = |border: &usize| self.prompt().boundary_before(*border) < *border;
        let checkpoint = self.checkpoints(blocks).and_then(|borders| {
            let next = |&border: &usize| borders.behind(border);
            std::iter::successors(borders.behind(self.num_computed), next).find(|border| !cuts(border))
        });
        [branch, last, checkpoint].into_iter().flatten().filter(|&boundary| boundary > self.num_computed).min()
    }

    /// The positions after which the recurrent state is kept. None if the model has no state, or if the state is of no use to other
    /// sequences.
    pub fn checkpoints(&self, blocks: &BlockManager) -> Option<Checkpoints> {
        let keeps = blocks.keeps_checkpoints() && !self.prompt().is_whole();
        keeps.then(|| Checkpoints::new(self.num_tokens() + self.num_pending, self.cache.branch(), blocks.block_size()))
    }

    /// Whether the next rows are the last ones, which a mask may delay.
    pub fn is_at_last(&self) -> bool {
        self.num_computed == self.last_start()
    }

    /// The rows of the tokens in `range` whose scores the client wants and does not have yet. The first of these tokens has row `first` in
    /// the batch. Only a text has scores.
    pub fn rows_to_score(&self, range: &Range<usize>, first: usize) -> impl Iterator<Item = Scored> {
        let (start, ids) = (range.start, self.prompt().tokens());
        let due = start.max(self.num_scored - 1)..range.end.min(self.prompt().len() - 1);
        let due = if self.asked.score_prompt.is_some() { due } else { 0..0 };
        let num_logprobs = self.asked.score_prompt.unwrap_or(0);
        due.map(move |at| Scored { row: (first + at - start) as u32, id: ids[at + 1], num_logprobs })
    }

    /// The vector to request from the engine. `complete`: whether the step computes the last row of the prompt.
    pub fn vector(&self, complete: bool) -> Option<VectorRequest> {
        self.asked.pool.map(|pooling| VectorRequest { pooling, complete })
    }

    pub fn sequence_slot(&self) -> u32 {
        self.sequence_slot
    }

    pub fn assign_engine_slot(&mut self, slot: u32) {
        self.sequence_slot = slot;
        self.needs_init = true;
    }

    /// The initial state of the sequence slot, if the slot still needs it.
    pub fn take_init(&mut self) -> Option<SlotInit> {
        std::mem::take(&mut self.needs_init).then(|| SlotInit {
            slot: self.sequence_slot,
            params: self.asked.params.clone(),
            prompt: self.prompt().tokens().clone(),
            generated: self.generated.clone(),
        })
    }

    /// Starts the sequence with `num_tokens` tokens in the cache. It no longer counts against the queue's bound.
    pub fn admit(&mut self, num_tokens: usize) {
        self.num_computed = num_tokens;
        self.timeline.progress().set_computed(num_tokens);
        self.permit.leave_queue();
    }

    /// Records that the sequence lost its memory: all tokens must be computed again.
    pub fn restart(&mut self) {
        debug_assert_eq!(self.num_pending, 0, "preempted with a token in flight");
        self.num_computed = 0;
    }

    /// Records that a step computes the next `num_rows` rows. `sampled`: whether the step samples the last one.
    pub fn advance(&mut self, num_rows: usize, sampled: bool) {
        self.num_computed += num_rows;
        self.timeline.progress().set_computed(self.num_computed);
        self.num_pending += usize::from(sampled);
    }

    /// Number of further steps that a loop may run for the sequence: up to the end of `max_tokens` and of a KV cache of `capacity` tokens.
    pub fn num_more(&self, capacity: usize) -> usize {
        let left = self.max_tokens().saturating_sub(self.generated.len() + self.num_pending);
        left.min((capacity + 1).saturating_sub(self.num_tokens() + self.num_pending))
    }

    /// Records that a loop runs `num_steps` further steps, which sample a token each.
    pub fn advance_ahead(&mut self, num_steps: usize) {
        self.num_computed += num_steps;
        self.num_pending += num_steps;
    }

    /// Takes back steps of a loop that did not run.
    pub fn take_back(&mut self, num_steps: usize) {
        self.num_computed -= num_steps;
        self.num_pending -= num_steps;
    }

    /// Takes back rows of an [`advance`](Self::advance) that did not run or must run again. `reinit`: whether the sequence slot must be
    /// initialised again.
    pub fn revert(&mut self, num_rows: usize, sampled: bool, reinit: bool) {
        self.num_computed -= num_rows;
        self.num_pending -= usize::from(sampled);
        self.needs_init |= reinit;
        if let Some(drafts) = &mut self.drafts {
            drafts.land();
        }
    }

    /// Takes a sampled token. False if the token ends the sequence.
    pub fn collect(&mut self, token: u32) -> bool {
        self.num_pending -= 1;
        let goes_on = !self.asked.stop_ids.contains(&token);
        if goes_on {
            self.generated.push(token);
        } else {
            self.stopped_by = Some(token);
        }
        goes_on
    }

    /// The stop id that ended the sequence.
    pub fn stopped_by(&self) -> Option<u32> {
        self.stopped_by
    }

    /// Whether the sequence has reached `max_tokens` or the end of a KV cache of `capacity` tokens.
    pub fn is_exhausted(&self, capacity: usize) -> bool {
        self.generated.len() >= self.max_tokens() || self.num_tokens() > capacity
    }

    /// Records the end of the prefill. The prompt's tokens count as processed, unless another member of the sequence group computed them.
    pub fn end_prefill(&mut self, now: Instant, metrics: &ModelMetrics) {
        if !self.timeline.end_prefill(now, metrics) {
            return;
        }
        self.active.iter_mut().for_each(ActiveSequence::end_prefill);
        if !self.is_fork {
            metrics.prompt_tokens_total.inc_by(self.prompt().len() as u64);
        }
    }

    /// Counts scores that were sent to the client.
    pub fn count_scored(&mut self, count: usize) {
        self.num_scored += count;
    }

    /// Number of prompt tokens found in the prefix cache at the first admission.
    pub fn num_cached(&self) -> u32 {
        self.timeline.progress().cached_tokens()
    }

    pub fn set_cached(&self, num_tokens: usize) {
        self.timeline.progress().set_cached(num_tokens);
    }

    /// Whether the client is gone.
    pub fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }

    /// Sends an event. The event is dropped if the client is gone.
    pub fn send(&self, event: Event) {
        self.events.send(event);
    }

    /// Sends the last event. The permit is dropped first, so that the counts are right once the client sees the end.
    pub fn end(self, last: Event) {
        let Self { events, permit, active, .. } = self;
        drop((permit, active));
        events.send(last);
    }
}

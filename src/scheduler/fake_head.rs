//! Drafts of the test engine: states that go back behind wrong ones, a draft model that is wrong now and then, and a draft head. The head
//! reads the context back from the cache, through the blocks that a request names, so a request with wrong blocks or a wrong place fails
//! here. Two of three guesses are right.

use super::{FakeEngine, RecurrentState, Unsampled, VOCAB, entry, next_token};
use crate::drafts::draft_model::DraftEngine;
use engine::{DraftHeadInfo, DraftRequest, MAX_HEAD_DRAFTS, Sampled};

impl FakeEngine {
    /// Adds a draft head, which shares the blocks of the first group without a window.
    pub fn with_draft_head(self) -> Self {
        let group = self.capacity.groups.iter().position(|group| group.window.is_none());
        Self { draft_head: group.map(|group| DraftHeadInfo { group, cost: 0.02 }), ..self }
    }

    /// Makes the engine that of a draft model, of which two of three guesses are right.
    pub fn into_draft(self, pass: f64) -> DraftEngine {
        DraftEngine { engine: Box::new(Self { is_draft: true, ..self }), num_ids: VOCAB as usize, context: usize::MAX, pass }
    }

    /// Takes states back behind wrong drafts, as an engine that keeps states does.
    pub(super) fn go_back(&mut self, unsampled: &Unsampled, sampled: &[Sampled]) {
        let batch = &unsampled.batch;
        let skipped = batch.sampled_seqs().zip(&batch.sampled_rows).zip(sampled).filter(|(_, sampled)| **sampled == Sampled::Skipped);
        // the last row that counts is the one before the first skipped row
        for ((i, &row), _) in skipped.collect::<Vec<_>>().into_iter().rev() {
            if let Some(&slot) = batch.state_slots.get(i) {
                let len = batch.indices(i).start as usize + row as usize - batch.rows(i).start;
                self.states[slot as usize] = RecurrentState { len, hash: unsampled.states[row as usize - 1] };
            }
        }
    }

    pub(super) fn guess(&self, request: &DraftRequest) -> Vec<u32> {
        let group = self.draft_head.expect("a draft head").group;
        assert!(self.done.is_empty() && self.unsampled.is_none(), "drafts while a step is in flight");
        assert!((1..=MAX_HEAD_DRAFTS).contains(&request.most));
        let (block_size, index) = (self.capacity.block_size, request.index as usize);
        assert_eq!(request.blocks.len(), index.div_ceil(block_size));
        let cached = |at: usize| {
            let kept = self.kv[request.blocks[at / block_size] as usize * block_size + at % block_size];
            assert_eq!((kept.group, kept.position), (group, at), "a block that was given back or never written is read");
            kept.entry
        };
        let mut context: Vec<u32> = (0..index).map(cached).collect();
        let params = &self.slots[&request.slot].init.params;
        let (mut guesses, mut token) = (Vec::new(), request.token);
        for depth in 0..request.most {
            context.push(entry(token, context.len(), [request.position + depth as u32; 3]));
            token = next_token(&context, params, &self.capacity);
            guesses.push(if context.len().is_multiple_of(3) { (token + 1) % VOCAB } else { token });
        }
        guesses
    }
}

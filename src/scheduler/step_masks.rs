//! Collects the masks of one step while its forward pass runs.

use std::time::Instant;

use crate::event::{Event, FinishReason};
use crate::masks::NextMask;
use crate::plan::Scheduled;
use crate::running::Running;
use crate::sequences::Sequences;
use engine::Masks;
use logits::Allowed;

/// The masks of a step. The buffers are reused by every step.
#[derive(Default)]
pub struct StepMasks {
    masks: Masks,
    /// Sequences whose masks were late.
    late: Vec<u64>,
    /// Sequences that end before they sample, with their last event, or None if their text is complete.
    ended: Vec<(u64, Option<Event>)>,
}

impl StepMasks {
    /// Waits until `deadline` at most for the masks of all sampled rows.
    pub fn gather(&mut self, running: &mut Running, scheduled: &mut [Scheduled], deadline: Instant) -> &Masks {
        self.masks.words.clear();
        self.masks.of.clear();
        self.late.clear();
        self.ended.clear();
        for part in scheduled.iter_mut().filter(|part| part.sampled) {
            // A sequence that has ended meanwhile needs no mask: its token is discarded.
            let mut grammar = running.get_mut(part.id).and_then(|sequence| sequence.grammar.as_mut());
            let mask = match grammar.as_mut().map_or(NextMask::Unrestricted, |grammar| grammar.next_mask(deadline)) {
                NextMask::Unrestricted => None,
                NextMask::Restricted(words) => Some(self.masks.add(words)),
                NextMask::Late => {
                    part.withheld = true;
                    self.late.push(part.id);
                    None
                }
                NextMask::Complete => {
                    self.ended.push((part.id, None));
                    None
                }
                NextMask::Broken(last) => {
                    self.ended.push((part.id, Some(last)));
                    None
                }
            };
            self.masks.of.push(mask);
            let ahead = grammar.as_ref().map(|grammar| grammar.masks_ahead());
            part.num_masked = 1 + ahead.map_or(part.num_drafts, |ahead| ahead.len().min(part.num_drafts));
            for row in 0..part.num_drafts {
                let mask = match ahead.and_then(|ahead| ahead.get(row)) {
                    Some(Allowed::Mask(words)) => Some(self.masks.add(words)),
                    _ => None,
                };
                self.masks.of.push(mask);
            }
        }
        &self.masks
    }

    /// Reverts the rows whose masks were late, and ends the sequences that may not sample. Their tokens of this step are discarded.
    pub fn settle(&mut self, sequences: &mut Sequences) {
        for id in self.late.drain(..) {
            if let Some(sequence) = sequences.running.get_mut(id) {
                // The sequence slot has sampled a token that does not count, so the slot is initialised again.
                sequence.revert(1, true, true);
            }
        }
        for (id, last) in self.ended.drain(..) {
            match last {
                None => sequences.finish(id, FinishReason::Stop, Instant::now()),
                Some(last) => sequences.fail(id, last),
            }
        }
    }
}

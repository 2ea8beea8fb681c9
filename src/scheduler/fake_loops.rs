//! Loops of the test engine. A loop's steps run when they are collected, in the order in which a device would run them, so that what the
//! scheduler does with blocks meanwhile shows in the text.

use super::*;
use engine::LoopLimits;

/// The loops of an engine.
#[derive(Default)]
pub struct FakeLoops {
    pub limits: Option<LoopLimits>,
    /// Number of turns that run after the loops were asked to end.
    pub num_late: u32,
    in_flight: VecDeque<FakeLoop>,
    num_submitted: u64,
}

struct FakeLoop {
    step: StepId,
    batch: Batch,
    num_run: u32,
    /// Number of steps that the loop runs, unless it is asked to end.
    num_steps: u32,
}

/// Loops and steps have numbers of their own.
const FIRST: u64 = 1 << 40;

impl FakeLoops {
    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    pub fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Takes a loop in.
    pub fn submit(&mut self, batch: &Batch, block_size: usize) -> StepId {
        let limits = self.limits.expect("the engine has loops");
        let (steps, seqs) = (batch.loop_steps as usize, batch.num_seqs());
        assert!(steps <= limits.most_steps && steps.is_multiple_of(limits.turn) && seqs <= limits.most_seqs, "{steps} steps, {seqs} rows");
        assert_eq!([batch.num_tokens(), batch.num_sampled(), batch.rooms.len()], [seqs; 3]);
        assert!(!batch.sample_later && batch.init.is_empty() && batch.copies.is_empty() && batch.scored.is_empty());
        for (room, context) in batch.rooms.iter().zip(&batch.context_lens) {
            assert!(room >= context && *room < context + batch.loop_steps && room.div_ceil(block_size as u32) as usize <= batch.max_blocks);
        }
        self.num_submitted += 1;
        let step = StepId(FIRST + self.num_submitted);
        self.in_flight.push_back(FakeLoop { step, batch: batch.clone(), num_run: 0, num_steps: batch.loop_steps });
        step
    }

    /// Cuts the loops, except for the turns that are late.
    pub fn end(&mut self) {
        let turn = self.limits.map_or(1, |limits| limits.turn as u32);
        let mut left = self.num_late * turn;
        for (index, of) in self.in_flight.iter_mut().enumerate() {
            let begun = if index == 0 { of.num_run.next_multiple_of(turn) } else { 0 };
            let end = of.num_steps.min(begun + left);
            left -= end - begun;
            // A loop begins only when the one before it has run all its steps.
            left *= u32::from(end == of.num_steps);
            of.num_steps = end;
        }
    }
}

impl FakeLoop {
    /// The batch of the next step, of the sequences that have room, and the indices of these.
    fn next_batch(&self, groups: usize, block_size: usize) -> (Batch, Vec<usize>) {
        let Self { batch, num_run, .. } = self;
        let there: Vec<usize> = (0..batch.num_seqs()).filter(|&i| batch.context_lens[i] + num_run <= batch.rooms[i]).collect();
        let of = |list: &[u32], add: u32| there.iter().map(|&i| list[i] + add).collect::<Vec<_>>();
        let context_lens = of(&batch.context_lens, *num_run);
        let mut next = Batch {
            inputs: there.iter().map(|&i| if *num_run == 0 { batch.inputs[i] } else { Input::Sampled(batch.sequence_slots[i]) }).collect(),
            positions: of(&batch.positions, *num_run),
            cu_seqlens_q: (0..=there.len() as u32).collect(),
            max_blocks: batch.max_blocks,
            sequence_slots: of(&batch.sequence_slots, 0),
            sampled_rows: (0..there.len() as u32).collect(),
            ..Batch::default()
        };
        for group in 0..groups {
            for (&i, &context) in there.iter().zip(&context_lens) {
                let (table, at) = (batch.block_table(group, i), context as usize - 1);
                next.slot_mapping.push(table[at / block_size] * block_size as u32 + (at % block_size) as u32);
                next.block_tables.extend_from_slice(table);
            }
        }
        next.context_lens = context_lens;
        (next, there)
    }
}

impl FakeEngine {
    /// An engine with loops, which run `num_late` further turns when they are asked to end.
    pub fn looping(mut self, limits: LoopLimits, num_late: u32) -> Self {
        self.loops = FakeLoops { limits: Some(limits), num_late, ..FakeLoops::default() };
        self
    }

    /// Runs the next step of the oldest loop, if it has one.
    pub(super) fn collect_loop(&mut self, step: StepId, out: &mut StepOutput) -> Result<(), EngineError> {
        let mut of = self.loops.in_flight.pop_front().expect("a loop in flight");
        assert_eq!(of.step, step, "collected in order");
        *out = StepOutput::default();
        if of.num_run == of.num_steps {
            return Ok(());
        }
        let (batch, there) = of.next_batch(self.capacity.groups.len(), self.capacity.block_size);
        out.sampled = vec![Sampled::Token(0); of.batch.num_seqs()];
        let number = self.count_step(&batch)?;
        self.fault(number, false)?;
        self.fault(number, true)?;
        let mut states = Vec::new();
        (0..batch.num_seqs()).for_each(|i| self.write(&batch, i, number, &mut states));
        let unsampled = Unsampled { step: StepId(number), batch, states };
        for (row, i) in there.into_iter().enumerate() {
            out.sampled[i] = self.draw(&unsampled, row, row, true, None);
        }
        of.num_run += 1;
        self.control.lock().unwrap().num_loop_steps += 1;
        // Whether the device goes on is not known as long as it may be asked to end.
        out.goes_on = of.num_run < of.batch.loop_steps;
        if out.goes_on {
            self.loops.in_flight.push_front(of);
        }
        Ok(())
    }
}

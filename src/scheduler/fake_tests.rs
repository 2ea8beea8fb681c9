//! Features of the seam that the scheduler does not use yet: several sampled rows per sequence, and rows that are embeddings.

use super::*;
use crate::batch;
use crate::testing::params;

fn plain() -> KvCapacity {
    KvCapacity::blocks(4, 4)
}

fn recurrent() -> KvCapacity {
    KvCapacity { num_state_slots: 2, ..plain() }
}

const SEED: u64 = 5;

/// An engine with one sequence, whose prompt is `prompt`.
struct Rig {
    engine: FakeEngine,
    prompt: Vec<u32>,
}

impl Rig {
    fn new(capacity: KvCapacity, prompt: &[u32]) -> Self {
        Self { engine: FakeEngine::new(capacity, 1, 1).0, prompt: prompt.to_vec() }
    }

    /// Computes rows that start at position `start`.
    fn step(&mut self, start: usize, inputs: &[Input], sampled_rows: &[u32], embeddings: &[f32]) -> Vec<Sampled> {
        let (capacity, block_table, end) = (self.engine.capacity.clone(), [3, 1], start + inputs.len());
        let mut batch = Batch {
            inputs: inputs.to_vec(),
            positions: (start as u32..end as u32).collect(),
            cu_seqlens_q: vec![0, inputs.len() as u32],
            context_lens: vec![end as u32],
            sequence_slots: vec![0],
            state_slots: if capacity.has_state() { vec![1] } else { Vec::new() },
            sampled_rows: sampled_rows.to_vec(),
            embeddings: embeddings.to_vec(),
            ..Batch::default()
        };
        batch::set_tables(&mut batch, std::iter::once([&block_table[..]].into_iter()), capacity.block_size);
        if start == 0 {
            let (params, prompt) = (params(SEED), self.prompt[..].into());
            batch.init.push(SlotInit { slot: 0, params, prompt, generated: vec![] });
        }
        let (id, mut output) = (self.engine.submit(&batch).unwrap(), StepOutput::default());
        self.engine.collect(id, &mut output).unwrap();
        output.sampled
    }
}

fn tokens(ids: &[u32]) -> Vec<Input> {
    ids.iter().copied().map(Input::Token).collect()
}

#[test]
fn rows_of_a_right_draft_sample_what_single_steps_would_and_rows_after_a_wrong_one_are_skipped() {
    for capacity in [plain(), recurrent()] {
        let mut context = vec![1, 2, 3];
        let expected: Vec<u32> = (0..4)
            .map(|_| {
                context.push(next_token(&context, &params(SEED), &capacity));
                context[context.len() - 1]
            })
            .collect();
        let mut rig = Rig::new(capacity.clone(), &[1, 2, 3]);
        assert_eq!(rig.step(0, &tokens(&[1, 2, 3]), &[2], &[]), [Sampled::Token(expected[0])]);
        let draft = [expected[0], expected[1], (expected[2] + 1) % VOCAB];
        let sampled = rig.step(3, &tokens(&draft), &[0, 1, 2], &[]);
        assert_eq!(sampled, [Sampled::Token(expected[1]), Sampled::Token(expected[2]), Sampled::Skipped]);
    }
}

#[test]
fn an_embedding_row_changes_the_text_as_a_token_would() {
    for capacity in [plain(), recurrent()] {
        let sample = |embeddings: &[f32], row| {
            let inputs = [Input::Token(1), Input::Embedding(row), Input::Token(2)];
            Rig::new(capacity.clone(), &[1, 2]).step(0, &inputs, &[2], embeddings)
        };
        let (red, blue) = ([0.5, 0.25], [0.125, -1.0]);
        let table = [red, blue].concat();
        for (row, embedding) in [red, blue].iter().enumerate() {
            let context = [1, embedded(embedding), 2];
            assert_eq!(sample(&table, row as u32), [Sampled::Token(next_token(&context, &params(SEED), &capacity))]);
        }
        assert_ne!(sample(&table, 0), sample(&table, 1));
    }
}

#[test]
#[should_panic(expected = "state slot 1 holds the state of another position")]
fn a_row_that_runs_twice_is_noticed_by_the_state() {
    let mut rig = Rig::new(recurrent(), &[1, 2, 3]);
    rig.step(0, &tokens(&[1, 2, 3]), &[], &[]);
    rig.step(2, &tokens(&[3]), &[2], &[]);
}

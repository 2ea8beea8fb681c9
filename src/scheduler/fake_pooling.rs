//! Pools the vector of a sequence of the [`FakeEngine`](super::FakeEngine).

use engine::{Batch, Input, Pooling, VectorRequest};

use super::SequenceSlot;

impl SequenceSlot {
    pub(super) fn pool(&mut self, batch: &Batch, start: usize, end: usize, request: VectorRequest) {
        let first = batch.positions[start] as usize;
        if first == 0 {
            self.pooled.clear();
        }
        assert!(request.pooling != Pooling::Mean || self.pooled.len() == first, "every row from the first on");
        assert_eq!(request.complete, first + end - start == self.init.prompt.len());
        for row in start..end {
            let Input::Token(id) = batch.inputs[row] else { panic!("a prompt's token is known") };
            let wanted = match request.pooling {
                Pooling::First => first + row == start,
                Pooling::Last | Pooling::Rank => request.complete && row + 1 == end,
                Pooling::Mean => true,
            };
            self.pooled.extend(wanted.then_some(id as f32));
        }
    }
}

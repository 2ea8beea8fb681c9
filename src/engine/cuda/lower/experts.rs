//! Experts.

use super::super::sys;
use super::convert::activation;
use super::lowering::Lowering;
use super::parts::NONE;
use super::stream::is_plain_add;
use crate::EngineError;
use crate::program::{Experts, Op};
use model::arch::Gating;

impl Lowering<'_> {
    pub fn experts(&mut self, op: &Experts) -> Result<(), EngineError> {
        if !self.from.scope.shard.is_whole() {
            return Err(self.cannot("the sums of some experts"));
        }
        let from = self.factor(op.input);
        // the op also adds the shared expert
        let shared = match self.next() {
            Some(Op::AddShared(shared)) if shared.to == op.out => Some(*shared),
            _ => None,
        };
        self.at += usize::from(shared.is_some());
        // the sum goes to the stream at once if the next op adds it
        let is_added = matches!(self.next(), Some(Op::Map(map))
            if is_plain_add(map) && map.factor == 1.0 && map.from.buffer == op.out && map.to.buffer == self.from.stream);
        let direct = is_added && !op.add;
        if direct {
            self.settle();
            self.at += 1;
            self.rounded.remove(&self.from.stream);
        }
        let out = self.buffer(if direct { self.from.stream } else { op.out });
        let [gate, up] = match op.gate {
            None => [NONE, self.matrix(op.up)?],
            Some(gate) => match self.pair([gate, op.up])? {
                Some(pair) => pair,
                None => [self.matrix(gate)?, self.matrix(op.up)?],
            },
        };
        let down = self.matrix(op.down)?;
        let [gate_bias, up_bias, down_bias] = op.biases.map(|bias| self.vector_or_none(bias));
        let (choice_bias, output_scales) = (self.vector_or_none(op.choice_bias), self.vector_or_none(op.output_scales));
        let shared_rows = shared.map_or(NONE, |shared| self.buffer(shared.from));
        let shared_router = self.vector_or_none(shared.and_then(|shared| shared.router));
        let scores = self.buffer(op.scores);
        let experts = op.experts;
        let (groups, groups_used) = if op.adjugate { (0, 0) } else { (experts.groups, experts.groups_used) };
        self.op(sys::pen_experts {
            scores,
            r#in: from,
            out,
            add: u32::from(op.add || direct),
            count: experts.count as u32,
            used: if op.adjugate { experts.used.min(experts.num_chunks()) } else { experts.used } as u32,
            gating: match experts.gating {
                Gating::Softmax => sys::PEN_GATE_SOFTMAX,
                Gating::Sigmoid => sys::PEN_GATE_SIGMOID,
                Gating::SoftmaxOfChosen => sys::PEN_GATE_SOFTMAX_OF_CHOSEN,
            },
            normalise: u32::from(experts.normalise),
            groups: groups as u32,
            groups_used: groups_used as u32,
            choice_bias,
            output_scales,
            chunk_group: if op.adjugate { experts.chunk_group as u32 } else { 0 },
            gate,
            up,
            down,
            dim: op.dim as u32,
            hidden: self.from.buffer(op.out).width as u32,
            gate_bias,
            up_bias,
            down_bias,
            activation: activation(op.activation),
            weigh_input: u32::from(op.weigh_input),
            shared: shared_rows,
            shared_router,
            mean_shared: u32::from(shared.is_some_and(|shared| shared.mean)),
            scale: experts.scale,
            factor: op.factor,
        });
        Ok(())
    }
}

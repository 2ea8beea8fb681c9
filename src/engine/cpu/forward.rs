//! Runs the forward pass: the groups of a model's layers, one after another, and the head.

use super::adapters::{AdaptedRows, Adapters};
use super::cut::Cut;
use super::draft_head::DraftHead;
use super::group::{Common, Member, MemorySizes, ShardGroup, rotate};
use super::head::{Head, finish_logits};
use super::run::Run;
use super::simd::Kernels;
use super::simd::attend::SequenceRows;
use super::simd::pool::ThreadPool;
use super::simd::rows::{Rows, Scratch};
use crate::check::CheckedBatch;
use crate::picture_layout::PictureLayout;
use crate::program::{LayerLinks, Program, Scope};
use crate::rope::Rope;
use crate::{Adapter, Batch, EngineError, Input, Sampled};
use model::{ModelSpec, Weights};

pub struct Forward {
    kernels: &'static Kernels,
    weights: Weights,
    ropes: Vec<Rope>,
    /// The layers in ranges, each of them a group of shards.
    groups: Vec<ShardGroup>,
    draft_head: Option<DraftHead>,
    /// The rows of the latest batch that adapters change.
    adapted: AdaptedRows,
    pool: ThreadPool,
    scratch: Scratch,
    rotations: Vec<Rows>, // [num_ropes][num_tokens, rope_dim] cosines, then sines
    last: Rows,           // [rows of the head, hidden]
    dense: Rows,          // [rows, hidden] of a classifier
    logits: Rows,         // [rows of the head, vocab]
    part: Rows,           // [rows of the head, vocab of a shard]
    scores: Rows,         // [rows, classes] of a classifier
}

impl Forward {
    /// Makes the kernels of a model, which is cut into ranges of layers and shards. `ropes` holds the rotations, and the index of each
    /// layer's.
    ///
    /// # Errors
    /// [`EngineError::Tensor`] for a missing tensor or shapes that do not fit. [`EngineError::Unsupported`] for a tensor type that the
    /// kernels do not know, and for what cannot be cut. [`EngineError::OutOfMemory`].
    pub fn new(
        kernels: &'static Kernels,
        weights: Weights,
        (ropes, links): (Vec<Rope>, LayerLinks),
        (cut, sizes): (&Cut, MemorySizes),
        pool: ThreadPool,
    ) -> Result<Self, EngineError> {
        let spec = &weights.spec;
        let member = |scope: Scope| Member::new(kernels, &weights, &Program::new(&weights, &links, &scope)?, sizes);
        let group = |shards: Vec<Scope>| Ok(ShardGroup { members: shards.into_iter().map(member).collect::<Result<_, EngineError>>()? });
        let groups = cut.scopes(spec.num_layers()).into_iter().map(group).collect::<Result<Vec<_>, EngineError>>()?;
        let (hidden, vocab) = (spec.hidden_dim, spec.vocab_size);
        Ok(Self {
            groups,
            draft_head: None,
            adapted: AdaptedRows::default(),
            rotations: ropes.iter().map(|rope| Rows::new(rope.dim())).collect(),
            last: Rows::new(hidden),
            dense: Rows::new(hidden),
            logits: Rows::new(vocab),
            part: Rows::default(),
            scores: Rows::default(),
            scratch: Scratch::default(),
            kernels,
            weights,
            ropes,
            pool,
        })
    }

    /// Lets a draft head follow each batch.
    pub fn set_draft_head(&mut self, draft_head: DraftHead) {
        self.draft_head = Some(draft_head);
    }

    /// Loads an adapter to a place. The place is empty after an error.
    ///
    /// # Errors
    /// [`EngineError::Adapter`] for a change that fits no tensor of the program.
    pub fn load_adapter(&mut self, place: usize, adapter: &Adapter) -> Result<(), EngineError> {
        let mut bound = vec![false; adapter.changes.len()];
        let mut members = self.groups.iter_mut().flat_map(|group| &mut group.members);
        let loaded = members.try_for_each(|member| member.adapters.load(place, adapter, &mut bound));
        let unknown = adapter.changes.iter().zip(&bound).find(|(_, is_bound)| !**is_bound).map(|(change, _)| &change.tensor);
        let fits = loaded.and_then(|()| unknown.map_or(Ok(()), |name| Err(no_product(name))));
        if fits.is_err() {
            self.unload_adapter(place);
        }
        fits
    }

    pub fn unload_adapter(&mut self, place: usize) {
        self.groups.iter_mut().flat_map(|group| &mut group.members).for_each(|member| member.adapters.unload(place));
    }

    /// Gives the memory of block `block` and all later blocks back to the system.
    pub fn give_back_from(&mut self, block: usize) {
        self.draft_head.iter_mut().for_each(|head| head.give_back_from(block));
        self.groups.iter_mut().flat_map(|group| &mut group.members).for_each(|member| member.cache.give_back_from(block));
    }

    /// The shards of all groups, and the draft head, each of which has a part of every KV block and of every state slot.
    pub fn parts(&self) -> (impl Iterator<Item = &Member>, Option<&DraftHead>) {
        (self.groups.iter().flat_map(|group| &group.members), self.draft_head.as_ref())
    }

    /// As [`parts`](Self::parts), to write to.
    pub fn parts_mut(&mut self) -> (impl Iterator<Item = &mut Member>, Option<&mut DraftHead>) {
        (self.groups.iter_mut().flat_map(|group| &mut group.members), self.draft_head.as_mut())
    }

    pub fn ropes(&self) -> &[Rope] {
        &self.ropes
    }

    /// Takes the states of sequences back behind wrong drafts.
    pub fn go_back(&mut self, batch: &Batch, sampled: &[Sampled]) {
        self.groups.iter_mut().flat_map(|group| &mut group.members).for_each(|member| member.state.go_back(batch, sampled));
    }

    /// The recurrent state of a state slot in one layer. Its length is the layer's state width.
    pub fn state(&mut self, state_slot: u32, layer: usize) -> &mut [f32] {
        let of_layer = self.groups.iter().position(|group| group.has_state(layer)).unwrap_or(0);
        self.groups[of_layer].members[0].state.layer_mut(state_slot, layer)
    }

    pub fn spec(&self) -> &ModelSpec {
        &self.weights.spec
    }

    /// The logits that [`Forward::head`] computed last, one row per requested row [vocab].
    pub fn logits(&mut self) -> &mut Rows {
        &mut self.logits
    }

    /// Runs a batch. `inputs` are its resolved inputs: tokens and embeddings. Leaves the logits of the first `max_logits` sampled rows.
    pub fn run(&mut self, batch: CheckedBatch, inputs: &[Input], max_logits: usize) {
        let sequences = SequenceRows::of(&batch);
        self.adapted.collect(&batch);
        self.groups.iter_mut().for_each(|group| group.begin(&batch, inputs.len()));
        rotate(&self.ropes, &mut self.rotations, &mut self.pool, &batch, inputs.len());
        let common = &mut Common {
            kernels: self.kernels,
            pool: &mut self.pool,
            scratch: &mut self.scratch,
            weights: &self.weights,
            batch,
            inputs,
            sequences: &sequences,
            pictures: &PictureLayout::default(),
            ropes: &self.ropes,
            rotations: &self.rotations,
            adapted: &self.adapted,
        };
        for i in 0..self.groups.len() {
            self.groups[i].run(common);
            if let [this, next, ..] = &mut self.groups[i..] {
                this.hand_over(next, common.pool);
            }
        }
        self.follow(batch, inputs);
        self.head(&batch.sampled_rows[..batch.num_sampled().min(max_logits)]);
    }

    /// Runs the draft head behind the model's layers.
    fn follow(&mut self, batch: CheckedBatch, inputs: &[Input]) {
        let Some(mut draft_head) = self.draft_head.take() else { return };
        let all: Vec<u32> = (0..inputs.len() as u32).collect();
        self.gather(&all, !draft_head.reads_stream());
        let Self { kernels, pool, scratch, weights, last, .. } = self;
        let followed = draft_head.follow(&mut Run { kernels, pool, scratch, weights }, batch, inputs, last);
        match followed {
            Ok(()) => self.draft_head = Some(draft_head),
            // guesses are never needed
            Err(error) => tracing::error!("the draft head fails and runs no more: {error}"),
        }
    }

    /// The draft head, and what it runs with.
    pub fn draft_head(&mut self) -> Option<(&mut DraftHead, Run<'_>)> {
        let Self { kernels, pool, scratch, weights, draft_head, .. } = self;
        Some((draft_head.as_mut()?, Run { kernels, pool, scratch, weights }))
    }

    /// Computes the logits of rows of the latest batch.
    pub fn head(&mut self, rows: &[u32]) -> &mut Rows {
        self.finish(rows);
        let Self { groups, weights, kernels, pool, scratch, last, logits, part, adapted, .. } = self;
        let spec = &weights.spec;
        let changed = adapted.changed_of(rows.iter().map(|&row| row as usize));
        let run = &mut Run { kernels, pool: &mut *pool, scratch, weights };
        logits.resize(rows.len());
        // gathers the logits of all shards
        for (head, adapters) in heads(groups) {
            if head.vocab.is_whole() {
                head.output.run_adapted(run, (adapters, &changed), (last, logits));
                continue;
            }
            part.reshape(rows.len(), head.vocab.len);
            head.output.run_adapted(run, (adapters, &changed), (last, part));
            logits.for_each(run.pool, |i, row| row[head.vocab.range()].copy_from_slice(part.row(i)));
        }
        finish_logits(spec, kernels, pool, logits);
        logits
    }

    /// Computes the classifier's scores of rows of the latest batch [rows, classes]. Returns the rows themselves if the model has no
    /// classifier.
    pub fn classify(&mut self, rows: &[u32]) -> &Rows {
        self.finish(rows);
        let Self { kernels, weights, groups, pool, scratch, last, dense, scores, .. } = self;
        let Some(classifier) = heads(groups).next().and_then(|(head, _)| head.classifier.as_ref()) else { return last };
        let mut input = &*last;
        if let Some(layer) = &classifier.dense {
            dense.resize(rows.len());
            layer.run((kernels, weights), pool, scratch, input, dense);
            dense.for_each(pool, |_, row| row.iter_mut().for_each(|x| *x = x.tanh()));
            input = dense;
        }
        scores.reshape(rows.len(), weights.spec.num_classes);
        classifier.output.run((kernels, weights), pool, scratch, input, scores);
        scores
    }

    /// Normalises rows of the latest batch with the final norm.
    pub fn finish(&mut self, rows: &[u32]) -> &Rows {
        self.gather(rows, true)
    }

    /// Gathers rows of the latest batch, normalised with the final norm or as they are.
    fn gather(&mut self, rows: &[u32], is_normed: bool) -> &Rows {
        let Self { kernels, groups, pool, last, .. } = self;
        last.resize(rows.len());
        let norm = heads(groups).next().and_then(|(head, _)| head.norm.as_ref()).filter(|_| is_normed);
        let Some(member) = groups.last().and_then(|group| group.members.first()) else { return last };
        let x = member.buffers.rows(member.stream);
        last.for_each(pool, |i, row| {
            let x = x.row(rows[i] as usize);
            match norm {
                Some(norm) => kernels.norm(row, x, norm),
                None => row.copy_from_slice(x),
            }
        });
        last
    }
}

fn no_product(tensor: &str) -> EngineError {
    EngineError::Adapter(format!("{tensor} is no matrix that the model multiplies with"))
}

/// The heads of all shards, which follow the last layers, with the adapters of the shard.
fn heads(groups: &[ShardGroup]) -> impl Iterator<Item = (&Head, &Adapters)> {
    groups.last().into_iter().flat_map(|group| &group.members).filter_map(|member| Some((member.head.as_ref()?, &member.adapters)))
}

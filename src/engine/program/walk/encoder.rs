//! Writes the program of a picture encoder: what turns pixels into rows, the tower's layers, and the projector.

use super::super::parts::EncoderProgram;
use super::super::rules::{RowSet, Rule, Within};
use super::super::tensor::Change;
use super::attention::plain;
use super::*;
use model::vision::{ClassRow, Places, Step, VisionSpec};
use model::{Activation, VisionWeights};

/// The most patches per side of a picture whose places a resampler knows.
const MOST_PLACES: usize = 1024;
/// The elements of a head of a resampler.
const RESAMPLER_HEAD: usize = 128;
/// The epsilon of the norms around an encoder-free model's patches, for which files have no key.
const PATCH_NORM_EPS: f32 = 1e-5;

impl<'a> Walk<'a> {
    pub fn of_encoder(vision: &'a VisionWeights, links: &'a LayerLinks, scope: &'a Scope) -> Self {
        let mut walk = Self::new(&vision.weights, links, scope);
        walk.program.buffers.clear();
        walk.buffers.clear();
        walk.vision = Some(&vision.spec);
        walk.rows = RowSet::Tower;
        walk.x = walk.buffer("x", vision.spec.tower.hidden_dim);
        walk
    }

    pub fn encoder_program(mut self, spec: &VisionSpec) -> Result<EncoderProgram, EngineError> {
        self.rows = RowSet::Patches;
        let input = self.buffer("patches", spec.patch_len());
        self.embed_patches(input, spec)?;
        self.rows = RowSet::Tower;
        self.add_places(spec)?;
        if let Some(norm) = self.own_norm(TensorRole::PreNorm, TensorRole::PreNormBias, 0) {
            self.norm_in_place(self.x, norm);
        }
        for layer in 0..spec.tower.num_layers() {
            self.layer = Some(layer);
            self.write_layer(layer)?;
            if let Some(number) = spec.deep_layers.iter().position(|&deep| deep == layer) {
                self.deep_rows(layer, number, spec)?;
            }
        }
        self.layer = None;
        let mut output = self.x;
        for (number, &step) in spec.steps.iter().enumerate() {
            output = self.step(number, step, output, spec)?;
        }
        if !spec.deep_layers.is_empty() {
            let all = self.buffer("rows for all layers", spec.row_width());
            self.map(copy(whole(output), part(all, 0, 0), 1, spec.output_dim));
            output = all;
        }
        Ok(EncoderProgram { program: self.program, input, output })
    }

    /// The rows that a layer's attention covers. None in a language model.
    pub fn within(&self, layer: usize) -> Option<Within> {
        let windows = self.vision?.windows;
        let is_windowed = windows.is_some_and(|windows| !(layer + 1).is_multiple_of(windows.every));
        Some(if is_windowed { Within::Window } else { Within::Picture })
    }

    /// x = the patches' rows, with the class row where there is one
    fn embed_patches(&mut self, input: BufferId, spec: &VisionSpec) -> Result<(), EngineError> {
        use TensorRole::*;
        let (hidden, has_class) = (self.hidden(), spec.family.class_row != ClassRow::None);
        let out = if has_class { self.buffer("embedded patches", hidden) } else { self.x };
        let input = match self.patch_norm_of(PixelNorm, PixelNormBias) {
            Some(norm) => {
                let normed = self.buffer("normed patches", spec.patch_len());
                self.norm_to(input, normed, norm);
                normed
            }
            None => input,
        };
        let first = self.matrix(PatchEmbd, 0)?;
        self.products(input, [(first, out)], false);
        // a still picture is two equal frames
        if self.has(PatchEmbdOfSecondFrame, 0) {
            let second = self.matrix(PatchEmbdOfSecondFrame, 0)?;
            self.products(input, [(second, out)], true);
        }
        self.add_bias(PatchEmbdBias, out);
        self.patch_norm(EmbeddedNorm, EmbeddedNormBias, out);
        if let Some(weight) = self.vector(PatchNorm, 0) {
            let norm = self.rms(Some(weight));
            self.norm_in_place(out, norm);
        }
        if has_class {
            self.mix(MixSource::Rows(out), self.x, Rule::Patches, false);
            let class = self.required_vector(ClassEmbd, 0)?;
            self.mix(MixSource::Table(class), self.x, Rule::Class, true);
        }
        Ok(())
    }

    fn add_places(&mut self, spec: &VisionSpec) -> Result<(), EngineError> {
        let rule = match spec.family.places {
            Places::None => return Ok(()),
            Places::Learned => Rule::Learned(spec.family.class_row),
            Places::Buckets(side) => Rule::Buckets { side },
            Places::Resized(filter) => Rule::Resized { side: spec.num_places.isqrt(), filter },
            Places::Axes => Rule::Axes { count: spec.num_places },
        };
        let table = self.matrix(TensorRole::PatchPositions, 0)?;
        self.mix(MixSource::Table(table), self.x, rule, true);
        self.patch_norm(TensorRole::PlacedNorm, TensorRole::PlacedNormBias, self.x);
        Ok(())
    }

    /// A norm around an encoder-free model's patches, if the model has it.
    fn patch_norm_of(&mut self, weight: TensorRole, bias: TensorRole) -> Option<NormParams> {
        let weight = Some(self.vector(weight, 0)?);
        Some(NormParams { kind: NormKind::Layer, weight, bias: self.vector(bias, 0), eps: PATCH_NORM_EPS })
    }

    fn patch_norm(&mut self, weight: TensorRole, bias: TensorRole, buffer: BufferId) {
        if let Some(norm) = self.patch_norm_of(weight, bias) {
            self.norm_in_place(buffer, norm);
        }
    }

    /// Writes a step of the projector. Returns the buffer of its output.
    fn step(&mut self, number: usize, step: Step, from: BufferId, spec: &VisionSpec) -> Result<BufferId, EngineError> {
        let (width, name) = (self.width(from), format!("projected {number}"));
        match step {
            Step::Norm(kind, weight, bias) => {
                let weight = Some(self.required_vector(weight, 0)?);
                let bias = bias.and_then(|bias| self.vector(bias, 0));
                let eps = self.spec().norm_eps;
                self.norm_in_place(from, NormParams { kind, weight, bias, eps });
            }
            Step::Weightless => {
                let norm = self.rms(None);
                self.norm_in_place(from, norm);
            }
            Step::Join { interleaved } => return Ok(self.join(from, &name, interleaved, spec)),
            Step::Mean => {
                self.rows = RowSet::Cells;
                let out = self.buffer(&name, width);
                self.mix(MixSource::Rows(from), out, Rule::Mean { side: spec.merge }, false);
                return Ok(out);
            }
            Step::Product(matrix, bias) => {
                let matrix = self.matrix(matrix, 0)?;
                let out = self.product(from, matrix, &name);
                bias.iter().for_each(|&bias| self.add_bias(bias, out));
                return Ok(out);
            }
            Step::Transposed(role) => {
                let weight = self.weight(role, 0)?;
                let matrix = self.add(Source::Transposed(role), [weight.cols, weight.rows, 1, 1], role.name(0));
                return Ok(self.product(from, matrix, &name));
            }
            Step::Activate(activation) => {
                self.map(Map { f: Function::Activation(activation), ..copy(whole(from), whole(from), 1, width) });
            }
            Step::Gated { activation, gate, up } => return self.gated(from, &name, activation, [gate, up]),
            Step::RootOfLength => self.map(Map { factor: (width as f32).sqrt(), ..copy(whole(from), whole(from), 1, width) }),
            Step::Standardise { bias, scale } => {
                let bias = self.required_changed(bias, 0, Change::Negated)?;
                let scale = self.required_vector(scale, 0)?;
                self.map(Map { bias: Some(bias), scale: Some((scale, 1)), ..copy(whole(from), whole(from), 1, width) });
            }
            Step::Resample => return self.resample(from),
            Step::Breaks(row) => {
                self.rows = RowSet::Broken;
                let out = self.buffer(&name, width);
                self.mix(MixSource::Rows(from), out, Rule::Cell, false);
                let row = self.required_vector(row, 0)?;
                self.mix(MixSource::Table(row), out, Rule::Break, true);
                return Ok(out);
            }
        }
        Ok(from)
    }

    fn join(&mut self, from: BufferId, name: &str, interleaved: bool, spec: &VisionSpec) -> BufferId {
        let (side, width) = (spec.merge, self.width(from));
        self.rows = RowSet::Cells;
        let to = self.buffer(name, width * side * side);
        let rule = Rule::Cells { side };
        self.op(Op::Mix(Mix { from: MixSource::Rows(from), to, parts: side * side, interleaved, rule, add: false }));
        to
    }

    fn gated(&mut self, from: BufferId, name: &str, activation: Activation, roles: [TensorRole; 2]) -> Result<BufferId, EngineError> {
        let [gate, up] = [self.matrix(roles[0], 0)?, self.matrix(roles[1], 0)?];
        let [gate, up] = [(gate, self.product_buffer(gate, "projector's gate")), (up, self.product_buffer(up, "projector's up"))];
        self.products(from, [gate, up], false);
        let (dim, out) = (self.width(up.1), self.product_buffer(up.0, name));
        self.op(Op::Activate(Activate {
            gate: Some(gate.1),
            up: up.1,
            gate_bias: None,
            up_bias: None,
            activation,
            xielu: [0.0; 4],
            cutoff: None,
            dim,
            out,
        }));
        Ok(out)
    }

    /// The rows that the language model adds behind layer `number`, from those of the tower's `layer`.
    fn deep_rows(&mut self, layer: usize, number: usize, spec: &VisionSpec) -> Result<(), EngineError> {
        use TensorRole::*;
        let joined = self.join(self.x, "deep rows", false, spec);
        let weight = Some(self.required_vector(DeepNorm, layer)?);
        let bias = self.vector(DeepNormBias, layer);
        let eps = self.spec().norm_eps;
        self.norm_in_place(joined, NormParams { kind: NormKind::Layer, weight, bias, eps });
        let first = self.matrix(DeepFc1, layer)?;
        let inner = self.product(joined, first, "deep inner rows");
        let (bias, dim) = (self.vector(DeepFc1Bias, layer), self.width(inner));
        let f = Function::Activation(Activation::GeluErf);
        self.map(Map { bias, f, ..copy(whole(inner), whole(inner), 1, dim) });
        let second = self.matrix(DeepFc2, layer)?;
        let rows = self.product(inner, second, "deep projected rows");
        let all = self.buffer("rows for all layers", spec.row_width());
        let bias = self.vector(DeepFc2Bias, layer);
        self.map(Map { bias, ..copy(whole(rows), part(all, (number + 1) * spec.output_dim, 0), 1, spec.output_dim) });
        self.rows = RowSet::Tower;
        Ok(())
    }

    /// Learned queries attend to the picture's rows, whose keys also hold their places.
    fn resample(&mut self, from: BufferId) -> Result<BufferId, EngineError> {
        use TensorRole::*;
        let norm = |walk: &mut Self, weight, bias| -> Result<NormParams, EngineError> {
            let weight = Some(walk.required_vector(weight, 0)?);
            Ok(NormParams { kind: NormKind::Layer, weight, bias: walk.vector(bias, 0), eps: walk.spec().norm_eps })
        };
        let matrix = self.matrix(ResamplerKv, 0)?;
        let values = self.product(from, matrix, "resampled rows");
        let kv_norm = norm(self, ResamplerKvNorm, ResamplerKvNormBias)?;
        self.norm_in_place(values, kv_norm);
        let dim = self.width(values);
        let keys = self.buffer("resampled rows with places", dim);
        self.map(copy(whole(values), whole(keys), 1, dim));
        let waves = self.add(Source::Waves, [MOST_PLACES, dim / 2, 1, 0], "sines and cosines".into());
        let rule = Rule::Coordinates;
        self.op(Op::Mix(Mix { from: MixSource::Table(waves), to: keys, parts: 2, interleaved: false, rule, add: true }));
        let (wk, wv) = (self.matrix(ResamplerK, 0)?, self.matrix(ResamplerV, 0)?);
        let (k, v) = (self.product(keys, wk, "resampler's k"), self.product(values, wv, "resampler's v"));
        self.rows = RowSet::Queries;
        let (learned, queries) = (self.matrix(Queries, 0)?, self.buffer("queries", dim));
        self.mix(MixSource::Table(learned), queries, Rule::Query, false);
        let q_norm = norm(self, ResamplerQNorm, ResamplerQNormBias)?;
        self.norm_in_place(queries, q_norm);
        let wq = self.matrix(ResamplerQ, 0)?;
        let q = self.product(queries, wq, "resampler's q");
        let out = self.buffer("resampler's attention", dim);
        let mut heads = |buffer, bias| {
            let bias = self.vector(bias, 0);
            Heads { bias, ..plain(part(buffer, 0, RESAMPLER_HEAD), dim / RESAMPLER_HEAD, RESAMPLER_HEAD) }
        };
        let (queries, keys, values) = (heads(q, ResamplerQBias), heads(k, ResamplerKBias), heads(v, ResamplerVBias));
        let scale = 1.0 / (RESAMPLER_HEAD as f32).sqrt();
        self.op(Op::Among(Box::new(Among { queries, keys, values, scale, within: Within::Picture, out: part(out, 0, RESAMPLER_HEAD) })));
        let matrix = self.matrix(ResamplerOut, 0)?;
        let mixed = self.product(out, matrix, "resampler's output");
        self.add_bias(ResamplerOutBias, mixed);
        let post = norm(self, ResamplerPostNorm, ResamplerPostNormBias)?;
        self.norm_in_place(mixed, post);
        let matrix = self.matrix(ResamplerProj, 0)?;
        Ok(self.product(mixed, matrix, "resampler's rows"))
    }

    /// Adds a vector of the file, if the file has it.
    fn add_bias(&mut self, role: TensorRole, to: BufferId) {
        let dim = self.width(to);
        if let Some(bias) = self.vector(role, 0) {
            self.map(Map { bias: Some(bias), ..copy(whole(to), whole(to), 1, dim) });
        }
    }

    fn mix(&mut self, from: MixSource, to: BufferId, rule: Rule, add: bool) {
        self.op(Op::Mix(Mix { from, to, parts: 1, interleaved: false, rule, add }));
    }
}

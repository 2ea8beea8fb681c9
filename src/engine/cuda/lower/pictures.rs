//! Ops of pictures: a picture encoder's program, and what a language model adds of its rows to further layers.

use super::super::sys;
use super::heads::HeadTarget;
use super::lowering::Lowering;
use super::parts::{DeviceProgram, NONE};
use crate::EngineError;
use crate::program::{AddSlice, Among, EncoderProgram, Heads, Mix, MixSource, RowSet};
use model::VisionWeights;

/// Heads begin at multiples of this many elements, which a kernel copies at once.
const HEAD_UNIT: usize = 8;

/// Lowers an encoder's program, which begins with the patches of its pictures.
pub fn lower(vision: &VisionWeights, encoder: &EncoderProgram) -> Result<DeviceProgram, EngineError> {
    let mut out = DeviceProgram::default();
    let mut lowering = Lowering::new(&vision.weights, &encoder.program);
    lowering.lend(&mut out, |lowering| {
        lowering.begin();
        lowering.patches(vision, encoder)?;
        if lowering.run_to_exchange()?.is_some() {
            return Err(lowering.cannot("a picture encoder"));
        }
        lowering.settle();
        lowering.out.output = Some(lowering.buffer(encoder.output));
        Ok(())
    })?;
    Ok(out)
}

impl Lowering<'_> {
    fn patches(&mut self, vision: &VisionWeights, encoder: &EncoderProgram) -> Result<(), EngineError> {
        let (spec, out) = (&vision.spec, self.buffer(encoder.input));
        let ([mean0, mean1, mean2], [deviation0, deviation1, deviation2]) = (spec.pixels.mean, spec.pixels.deviation);
        let size = spec.patch_size as u32;
        self.rows = RowSet::Patches;
        self.op(sys::pen_patches { out, size, mean0, mean1, mean2, deviation0, deviation1, deviation2 });
        Ok(())
    }

    pub fn add_slice(&mut self, op: &AddSlice) -> Result<(), EngineError> {
        if self.from.scope.layers.start > 0 {
            return Err(self.cannot("slices of rows that do not begin with the first layer"));
        }
        let out = self.buffer(op.to);
        self.op(sys::pen_add_slice { slice: op.slice as u32, out });
        Ok(())
    }

    pub fn mix(&mut self, op: &Mix) -> Result<(), EngineError> {
        let list = number_of(&mut self.out.mixes, op.rule);
        let (from, table) = match op.from {
            MixSource::Rows(from) => (self.buffer(from), NONE),
            MixSource::Table(table) => (NONE, self.vector(table)),
        };
        let (out, parts) = (self.buffer(op.to), op.parts as u32);
        let (interleaved, add) = (u32::from(op.interleaved), u32::from(op.add));
        self.op(sys::pen_mix { r#in: from, table, out, parts, interleaved, add, list });
        Ok(())
    }

    pub fn among(&mut self, op: &Among) -> Result<(), EngineError> {
        let (queries, out) = (self.rows, op.out);
        if !self.is_half[out.buffer.0] || out.first != 0 || out.stride != op.values.dim {
            return Err(self.cannot("heads that no matrix multiplies"));
        }
        let list = number_of(&mut self.out.spans, (op.within, queries));
        let v = self.head_rows(&op.values, "values among rows")?;
        let k = self.head_rows(&op.keys, "keys among rows")?;
        let q = self.head_rows(&op.queries, "queries among rows")?;
        self.rows = queries;
        let out = self.buffer(out.buffer);
        let stride = |heads: &Heads| heads.dim.next_multiple_of(HEAD_UNIT) as u32;
        self.op(sys::pen_among {
            q,
            k,
            v,
            out,
            heads: op.queries.count as u32,
            kv_heads: op.keys.count as u32,
            dim: op.keys.dim as u32,
            value_dim: op.values.dim as u32,
            stride: stride(&op.keys),
            value_stride: stride(&op.values),
            list,
            scale: op.scale,
        });
        Ok(())
    }

    /// Finishes heads into float16 rows of their own. Returns their buffer.
    fn head_rows(&mut self, heads: &Heads, name: &'static str) -> Result<u32, EngineError> {
        self.rows = self.from.buffer(heads.from.buffer).rows;
        let stride = heads.dim.next_multiple_of(HEAD_UNIT);
        let buffer = self.shared_halves(name, heads.count * stride);
        self.finish(heads, HeadTarget::Rows(sys::pen_part { buffer, first: 0, stride: stride as u32 }))?;
        Ok(buffer)
    }
}

/// The number of an item in a list, which it enters if it is new.
fn number_of<T: PartialEq>(list: &mut Vec<T>, item: T) -> u32 {
    let known = list.iter().position(|other| *other == item);
    known.unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    }) as u32
}

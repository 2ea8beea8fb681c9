//! [`KvCache`]: the paged cache of keys and values.
//!
//! A block holds some tokens of all layers of one cache group, layer after layer, with each layer's keys before its values. All blocks have
//! the size that the largest group needs. Positions are the innermost dimension of keys, so that a kernel's lanes are positions:
//!
//! | part of a layer | shape | floats of 32 bits | of 16 | q8 |
//! |---|---|---|---|---|
//! | keys | [kv_head, key_dim, block_size] | f32 | f16 | i8 |
//! | their scales | [kv_head, ⌈key_dim / 32⌉, block_size] | | | f16 |
//! | values | [kv_head, block_size, value_dim] | f32 | f16 | i8 |
//! | their scales | [kv_head, block_size, ⌈value_dim / 32⌉] | | | f16 |
//!
//! With q8, keys are stored less their bias ([`StoredBias`]), and keys and values are rotated ([`rotate`](super::packing::rotate)); whoever
//! writes them has done so. What a bias has become at a position depends on the rotation there, so behind all layers a block has each
//! rotation that biases went through: [cosines and sines of all pairs, block_size] in float32.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::LANES;
use super::packing::{SHARED, quantise, scales};
use super::pool::{Disjoint, ThreadPool};
use super::rows::Rows;
use super::zeroed::Zeroed;
use crate::CacheType;
use crate::check::Places;

/// The bias that a layer's stored keys lack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredBias {
    /// The index of the rotation that the bias went through.
    pub rope: usize,
    /// The rotated pairs of a head. 0 without a rotation.
    pub pairs: usize,
    /// Whether a head has elements that are not rotated.
    pub has_rest: bool,
}

/// The data per token that a layer keeps in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheLayer {
    pub num_kv_heads: usize,
    /// Elements per key, padded with zeros to a multiple of 16.
    pub key_dim: usize,
    /// Elements per value, padded likewise.
    pub value_dim: usize,
    /// The layer's cache group.
    pub group: usize,
    pub kept: CacheType,
    /// What keys lack. Empty if they are whole.
    pub bias: StoredBias,
    /// Whether the layer writes the rotations that it shares with later layers of the group.
    pub writes_rotations: bool,
    /// Bytes per token of the earlier layers of the group.
    before: usize,
    /// Bytes per token before the rotations.
    before_rotations: usize,
}

/// The starts of a head's data in a block [bytes].
#[derive(Clone, Copy)]
pub struct Starts {
    pub keys: usize,
    pub key_scales: usize,
    pub values: usize,
    pub value_scales: usize,
}

impl CacheLayer {
    /// A layer that keeps `num_kv_heads` keys and values of these lengths in float32.
    pub fn new(num_kv_heads: usize, key_dim: usize, value_dim: usize) -> Self {
        let [key_dim, value_dim] = [key_dim, value_dim].map(|dim| dim.next_multiple_of(LANES));
        Self { num_kv_heads, key_dim, value_dim, ..Self::default() }
    }

    /// The layer with keys and values of another type. `bias` is what stored keys lack.
    #[must_use]
    pub fn keep(self, kept: CacheType, bias: StoredBias) -> Self {
        Self { kept, bias, ..self }
    }

    /// Whether the other layer keeps keys and values of the same shape.
    pub fn has_shape_of(&self, other: &Self) -> bool {
        let shape = |layer: &Self| [layer.num_kv_heads, layer.key_dim, layer.value_dim];
        shape(self) == shape(other)
    }

    /// Bytes per element, and per scale.
    const fn sizes(&self) -> [usize; 2] {
        match self.kept {
            CacheType::F32 => [4, 0],
            CacheType::F16 => [2, 0],
            CacheType::Q8 => [1, 2],
        }
    }

    /// Bytes per token of all heads: keys, their scales, values, their scales.
    fn widths(&self) -> [usize; 4] {
        let [element, scale] = self.sizes();
        let of = |dim: usize| [dim * element, scales(dim) * scale];
        let [[keys, key_scales], [values, value_scales]] = [self.key_dim, self.value_dim].map(of);
        [keys, key_scales, values, value_scales].map(|bytes| bytes * self.num_kv_heads)
    }

    /// The starts of a head's data in a block.
    pub fn starts(&self, head: usize, block_size: usize) -> Starts {
        let widths = self.widths();
        let start = |part: usize| {
            let own = widths[part] / self.num_kv_heads.max(1) * head;
            (self.before + widths[..part].iter().sum::<usize>() + own) * block_size
        };
        Starts { keys: start(0), key_scales: start(1), values: start(2), value_scales: start(3) }
    }

    /// The start of the rotations in a block [bytes].
    pub const fn rotations(&self, block_size: usize) -> usize {
        self.before_rotations * block_size
    }
}

/// The data that each layer of a model keeps in the cache, and its place. `groups` holds the layers of each cache group.
#[derive(Clone, Debug)]
pub struct CacheLayout {
    pub layers: Vec<CacheLayer>,
    /// Bytes per token of a block.
    width: usize,
}

impl CacheLayout {
    pub fn new<'a>(mut layers: Vec<CacheLayer>, groups: impl Iterator<Item = &'a [usize]>) -> Self {
        let mut width = 0;
        for (group, members) in groups.enumerate() {
            let mut before = 0;
            for &layer in members {
                (layers[layer].group, layers[layer].before) = (group, before);
                before += layers[layer].widths().iter().sum::<usize>();
            }
            let mut known: Vec<(usize, usize)> = Vec::new();
            for &layer in members {
                let StoredBias { rope, pairs, .. } = layers[layer].bias;
                let found = known.iter().find(|(other, _)| *other == rope).map(|(_, at)| *at);
                layers[layer].writes_rotations = pairs > 0 && found.is_none();
                layers[layer].before_rotations = found.unwrap_or(before);
                if layers[layer].writes_rotations {
                    known.push((rope, before));
                    before += 2 * pairs * size_of::<f32>();
                }
            }
            width = width.max(before);
        }
        Self { layers, width }
    }

    /// The size of `num_blocks` blocks, in bytes. None if the product overflows.
    pub fn bytes(&self, num_blocks: usize, block_size: usize) -> Option<u64> {
        let bytes = self.width.checked_mul(block_size)?.checked_mul(num_blocks)?;
        Some(bytes as u64)
    }
}

/// The paged KV cache of all layers. Its layout is the module's.
pub struct KvCache {
    floats: Zeroed, // [num_blocks, stride / 4]
    pub num_blocks: usize,
    /// A multiple of 32.
    pub block_size: usize,
    layout: CacheLayout,
}

impl KvCache {
    /// Makes a cache. None if the system lacks memory or addresses.
    pub fn new(layout: CacheLayout, num_blocks: usize, block_size: usize) -> Option<Self> {
        let bytes = usize::try_from(layout.bytes(num_blocks, block_size)?).ok()?;
        Some(Self { floats: Zeroed::new(bytes / size_of::<f32>())?, num_blocks, block_size, layout })
    }

    /// Gives the memory of block `block` and all later blocks back to the system.
    pub fn give_back_from(&mut self, block: usize) {
        let floats = self.stride() / size_of::<f32>() * block;
        self.floats.give_back_from(floats);
    }

    pub fn layer(&self, layer: usize) -> &CacheLayer {
        &self.layout.layers[layer]
    }

    /// Bytes per block: a multiple of 64.
    pub fn stride(&self) -> usize {
        self.layout.width * self.block_size
    }

    pub fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.floats)
    }

    /// The value at a place of the cache, of a layer with one head in float32.
    pub fn value(&self, layer: usize, place: usize) -> &[f32] {
        let (size, kept) = (self.block_size, self.layer(layer));
        let start = place / size * self.stride() + kept.starts(0, size).values;
        &self.floats[start / size_of::<f32>() + place % size * kept.value_dim..][..kept.value_dim]
    }

    /// The bytes of a block.
    pub fn block(&self, block: u32) -> Option<&[u8]> {
        let start = block as usize * self.stride();
        self.bytes().get(start..start + self.stride())
    }

    /// The bytes of a block, to write to.
    pub fn block_mut(&mut self, block: u32) -> Option<&mut [u8]> {
        let (start, stride) = (block as usize * self.stride(), self.stride());
        bytemuck::cast_slice_mut(&mut self.floats).get_mut(start..start + stride)
    }

    pub fn copy_block(&mut self, from: u32, to: u32) {
        let floats = self.stride() / size_of::<f32>();
        let [from, to] = [from, to].map(|block| block as usize * floats);
        self.floats.copy_within(from..from + floats, to);
    }

    /// Writes each row's K and V to its place in the cache, and zeros to the cache's padding [num_kv_heads, length].
    pub fn write(&mut self, pool: &mut ThreadPool, layer: usize, places: Places, (k, v): (&Rows, &Rows), dims: [usize; 2]) {
        let (size, stride, layer) = (self.block_size, self.stride(), *self.layer(layer));
        assert!(places.iter().all(|&at| (at as usize) < self.num_blocks * size), "places exist");
        assert!(dims[0] <= layer.key_dim && dims[1] <= layer.value_dim, "shapes match");
        let bytes = Disjoint::new(bytemuck::cast_slice_mut::<f32, u8>(&mut self.floats));
        pool.run(places.len(), &|t, _| {
            let (block, offset) = (places[t] as usize / size, places[t] as usize % size);
            for h in 0..layer.num_kv_heads {
                let (k, v) = (&k.row(t)[h * dims[0]..][..dims[0]], &v.row(t)[h * dims[1]..][..dims[1]]);
                let mut to = HeadWriter { bytes, block: block * stride, starts: layer.starts(h, size), size, offset, layer: &layer };
                // SAFETY: `Places` are distinct and exist (asserted above), and a task touches its own place alone.
                unsafe {
                    match layer.kept {
                        CacheType::F32 => to.floats(k, v),
                        CacheType::F16 => to.halves(k, v),
                        CacheType::Q8 => to.codes(k, v),
                    }
                }
            }
        });
    }

    /// Writes each row's rotation to its place: cosines, then sines.
    pub fn write_rotations(&mut self, pool: &mut ThreadPool, layer: usize, places: Places, rotations: &Rows) {
        let (size, stride, layer) = (self.block_size, self.stride(), *self.layer(layer));
        assert!(places.iter().all(|&at| (at as usize) < self.num_blocks * size), "places exist");
        assert!(layer.writes_rotations && rotations.width() == 2 * layer.bias.pairs, "shapes match");
        let bytes = Disjoint::new(bytemuck::cast_slice_mut::<f32, u8>(&mut self.floats));
        pool.run(places.len(), &|t, _| {
            let (block, offset) = (places[t] as usize / size, places[t] as usize % size);
            // SAFETY: as in `write`.
            unsafe { put(bytes.at(block * stride + layer.rotations(size)).cast::<f32>(), (size, offset), rotations.row(t).iter().copied()) }
        });
    }
}

/// Writes column `offset` of a matrix whose rows have `size` elements.
///
/// # Safety
/// The column is valid for writes and nobody else touches it.
#[inline]
unsafe fn put<T>(to: *mut T, (size, offset): (usize, usize), column: impl Iterator<Item = T>) {
    for (row, element) in column.enumerate() {
        // SAFETY: the caller keeps the conditions above.
        unsafe { to.add(row * size + offset).write(element) };
    }
}

/// The place of one head of one token. Its functions write the head's key and value.
///
/// # Safety
/// The place is within the cache, and nobody else touches it.
struct HeadWriter<'a> {
    bytes: Disjoint<u8>,
    /// The start of the block.
    block: usize,
    starts: Starts,
    size: usize,
    offset: usize,
    layer: &'a CacheLayer,
}

impl HeadWriter<'_> {
    /// # Safety
    /// The type's.
    unsafe fn at<T>(&self, start: usize) -> *mut T {
        // SAFETY: the caller keeps the conditions above; starts are multiples of 64 in memory that starts on a page.
        unsafe { self.bytes.at(self.block + start).cast() }
    }

    /// The place of a value of `len` elements.
    ///
    /// # Safety
    /// The type's.
    unsafe fn value<T>(&mut self, start: usize, len: usize) -> &mut [T] {
        // SAFETY: the caller keeps the conditions above.
        unsafe { std::slice::from_raw_parts_mut(self.at::<T>(start).add(self.offset * len), len) }
    }

    /// # Safety
    /// The type's.
    unsafe fn floats(&mut self, k: &[f32], v: &[f32]) {
        let (size, offset, padded) = (self.size, self.offset, self.layer.key_dim);
        // SAFETY: the caller keeps the conditions above.
        unsafe {
            let (value, padding) = self.value::<f32>(self.starts.values, self.layer.value_dim).split_at_mut(v.len());
            value.copy_from_slice(v);
            padding.fill(0.0);
            put(self.at::<f32>(self.starts.keys), (size, offset), (0..padded).map(|d| k.get(d).copied().unwrap_or(0.0)));
        }
    }

    /// # Safety
    /// The type's.
    unsafe fn halves(&mut self, k: &[f32], v: &[f32]) {
        let (place, to) = ((self.size, self.offset), self.starts);
        let mut rounded = [f16::ZERO; SHARED];
        // SAFETY: the caller keeps the conditions above.
        unsafe {
            let (value, padding) = self.value::<f16>(to.values, self.layer.value_dim).split_at_mut(v.len());
            value.convert_from_f32_slice(v);
            padding.fill(f16::ZERO);
            for first in (0..self.layer.key_dim).step_by(SHARED) {
                let some = k.get(first..).unwrap_or_default();
                let (some, len) = (&some[..some.len().min(SHARED)], (self.layer.key_dim - first).min(SHARED));
                rounded.fill(f16::ZERO);
                rounded[..some.len()].convert_from_f32_slice(some);
                put(self.at::<f16>(to.keys).add(first * self.size), place, rounded[..len].iter().copied());
            }
        }
    }

    /// # Safety
    /// The type's.
    unsafe fn codes(&mut self, k: &[f32], v: &[f32]) {
        let (place, to) = ((self.size, self.offset), self.starts);
        let part = |x: &[f32], first: usize, codes: &mut [i8; SHARED]| {
            let some = x.get(first..).unwrap_or_default();
            quantise(&some[..some.len().min(SHARED)], codes)
        };
        let (key_dim, value_dim) = (self.layer.key_dim, self.layer.value_dim);
        let mut codes = [0; SHARED];
        // SAFETY: the caller keeps the conditions above.
        unsafe {
            for (i, first) in (0..key_dim).step_by(SHARED).enumerate() {
                let scale = part(k, first, &mut codes);
                put(self.at::<u16>(to.key_scales).add(i * self.size), place, std::iter::once(scale));
                put(self.at::<i8>(to.keys).add(first * self.size), place, codes[..SHARED.min(key_dim - first)].iter().copied());
            }
            for (i, first) in (0..value_dim).step_by(SHARED).enumerate() {
                let scale = part(v, first, &mut codes);
                self.value::<u16>(to.value_scales, scales(value_dim))[i] = scale;
                let len = SHARED.min(value_dim - first);
                self.value::<i8>(to.values, value_dim)[first..][..len].copy_from_slice(&codes[..len]);
            }
        }
    }
}

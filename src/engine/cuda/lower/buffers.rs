//! Places the buffers of a program on the device.

use super::super::sys;
use super::lowering::{Lowering, Place};
use super::parts::{copy, row_set};
use super::rounding::is_plain;
use crate::program::{BufferId, Op, Part, RowSet};

/// The length of a float16 row is a multiple of this.
const ROW_UNIT: usize = 64;

impl Lowering<'_> {
    /// Finds the buffers whose heads attention reads as they are: the device pads their heads as it pads keys.
    pub fn find_query_strides(&mut self) {
        for step in &self.from.ops {
            if let Op::Attention(op) = &step.op
                && is_plain(&op.queries)
                && self.is_half[op.queries.from.buffer.0]
            {
                let padded = self.out.caches[self.cache(op.cache)].key_dim as usize;
                self.query_strides.insert(op.queries.from.buffer, (op.queries.dim, padded));
            }
        }
    }

    fn new_buffer(&mut self, r#type: u32, width: usize, per_token: usize, rows: RowSet) -> u32 {
        self.out.buffers.push(sys::pen_buffer { r#type, width: width as u32, per_token: per_token as u32, rows: row_set(rows) });
        self.out.buffers.len() as u32 - 1
    }

    /// A float32 buffer that layers share, of this name and width.
    pub fn shared_floats(&mut self, name: &'static str, width: usize) -> u32 {
        self.shared_buffer(name, sys::PEN_F32, width)
    }

    /// A float16 buffer that layers share.
    pub fn shared_halves(&mut self, name: &'static str, width: usize) -> u32 {
        self.shared_buffer(name, sys::PEN_F16, width)
    }

    fn shared_buffer(&mut self, name: &'static str, r#type: u32, width: usize) -> u32 {
        let key = (name, width, self.rows);
        if let Some(&buffer) = self.shared.get(&key) {
            return buffer;
        }
        let buffer = self.new_buffer(r#type, width, 1, self.rows);
        self.shared.insert(key, buffer);
        buffer
    }

    /// The place of a buffer. It gets one if it has none.
    pub fn place(&mut self, id: BufferId) -> Place {
        if let Some(place) = self.places[id.0] {
            return place;
        }
        let of = self.from.buffer(id);
        let r#type = if self.is_half[id.0] { sys::PEN_F16 } else { sys::PEN_F32 };
        let width = match self.query_strides.get(&id) {
            Some((dim, padded)) => of.width / dim * padded,
            None => of.width,
        };
        let place = Place { buffer: self.new_buffer(r#type, width, of.per_row, of.rows), first: 0 };
        self.places[id.0] = Some(place);
        place
    }

    /// Says that a buffer's elements now lie in another buffer of the device.
    pub fn move_to(&mut self, id: BufferId, buffer: u32, first: usize) {
        self.places[id.0] = Some(Place { buffer, first });
    }

    /// The device's buffer of a whole buffer.
    pub fn buffer(&mut self, id: BufferId) -> u32 {
        self.place(id).buffer
    }

    /// The device's part of a part of a buffer.
    pub fn part(&mut self, part: Part) -> sys::pen_part {
        let place = self.place(part.buffer);
        let of = self.from.buffer(part.buffer);
        let stride = match self.query_strides.get(&part.buffer) {
            Some((dim, padded)) if part.stride == *dim => *padded,
            _ if of.per_row == 1 => part.stride,
            _ if self.is_half[part.buffer.0] => of.width.next_multiple_of(ROW_UNIT),
            _ => of.width,
        };
        sys::pen_part { buffer: place.buffer, first: (place.first + part.first) as u32, stride: stride as u32 }
    }

    /// The float16 rows of a buffer that matrices multiply. They are rounded if the buffer is float32.
    pub fn factor(&mut self, id: BufferId) -> u32 {
        if self.is_half[id.0] {
            return self.buffer(id);
        }
        if let Some(&rows) = self.rounded.get(&id) {
            return rows;
        }
        let (width, per_row) = (self.from.buffer(id).width, self.from.buffer(id).per_row);
        let rows = match self.copies.get(&id) {
            Some(&rows) => rows,
            None => self.new_buffer(sys::PEN_F16, width, per_row, self.from.buffer(id).rows),
        };
        self.copies.insert(id, rows);
        let from = self.part(Part { buffer: id, first: 0, stride: 0 });
        let stride = if per_row == 1 { 0 } else { width.next_multiple_of(ROW_UNIT) as u32 };
        self.op(copy(from, sys::pen_part { buffer: rows, first: 0, stride }, per_row, width));
        self.rounded.insert(id, rows);
        rows
    }

    /// Forgets the rounded copies of what an op has written.
    pub fn forget_copies(&mut self, op: &Op) {
        let from = self.from;
        for used in op.uses(&|id| from.buffer(id).width) {
            if used.kind.writes() {
                self.rounded.remove(&used.part.buffer);
            }
        }
    }
}

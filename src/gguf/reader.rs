//! Reads values from a file's bytes. Every read is checked against the remaining bytes before memory is reserved for it.

use crate::value::{Array, Value};

/// A fault and its byte offset. The caller adds the file's name.
#[derive(Debug)]
pub(super) struct ReadFault {
    pub offset: u64,
    pub text: String,
}

pub(super) type Read<T> = Result<T, ReadFault>;

/// The deepest nesting of arrays. The format sets no limit, and real files do not nest arrays.
const MAX_DEPTH: usize = 8;
/// The most strings in all arrays of one file. An empty string takes 8 bytes in the file and several times that in memory. The largest real
/// vocabularies have about a million tokens and merges.
const MAX_STRINGS: u64 = 1 << 22;
/// The number of strings that a nested array counts as.
const NESTED_COST: u64 = 64;

pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    pos: usize,
    strings_left: u64,
}

macro_rules! integer {
    ($name:ident, $type:ty) => {
        pub fn $name(&mut self, what: &str) -> Read<$type> {
            let bytes = self.take(size_of::<$type>() as u64, what)?;
            Ok(<$type>::from_le_bytes(bytes.try_into().unwrap_or_default()))
        }
    };
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, pos: 0, strings_left: MAX_STRINGS }
    }

    pub fn pos(&self) -> u64 {
        self.pos as u64
    }

    pub fn left(&self) -> u64 {
        (self.bytes.len() - self.pos) as u64
    }

    /// Fails with a fault at `offset`.
    pub fn fault<T>(offset: u64, text: impl Into<String>) -> Read<T> {
        Err(ReadFault { offset, text: text.into() })
    }

    /// Fails with a fault at `offset` that a file has if its end is missing.
    pub fn cut<T>(offset: u64, text: impl std::fmt::Display) -> Read<T> {
        Self::fault(offset, format!("{text}: the file is incomplete: fetch it again"))
    }

    /// Takes the next `count` bytes. `what` names them in an error message.
    pub fn take(&mut self, count: u64, what: &str) -> Read<&'a [u8]> {
        if count > self.left() {
            return Self::cut(self.pos(), format!("{what} needs {count} bytes, but {} are left", self.left()));
        }
        let start = self.pos;
        self.pos += count as usize;
        Ok(&self.bytes[start..self.pos])
    }

    integer!(u8, u8);
    integer!(u16, u16);
    integer!(u32, u32);
    integer!(u64, u64);

    /// Reads a string: its length, then its bytes, which must be UTF-8.
    pub fn str(&mut self, what: &str) -> Read<&'a str> {
        let start = self.pos();
        let len = self.u64(what)?;
        if len > self.left() {
            return Self::cut(start, format!("{what} is {len} bytes long, but {} are left", self.left()));
        }
        let bytes = self.take(len, what)?;
        std::str::from_utf8(bytes).or_else(|error| {
            let at = start + 8 + error.valid_up_to() as u64;
            Self::fault(at, format!("{what} is not UTF-8"))
        })
    }

    /// Reads a metadata value. `type_id` is GGUF's id of the value's type.
    pub fn value(&mut self, type_id: u32, type_at: u64, key: &str) -> Read<Value> {
        Ok(match type_id {
            0 => Value::U8(self.u8(key)?),
            1 => Value::I8(self.u8(key)? as i8),
            2 => Value::U16(self.u16(key)?),
            3 => Value::I16(self.u16(key)? as i16),
            4 => Value::U32(self.u32(key)?),
            5 => Value::I32(self.u32(key)? as i32),
            6 => Value::F32(f32::from_bits(self.u32(key)?)),
            7 => Value::Bool(self.bools(1, key)?[0]),
            8 => Value::String(self.str(key)?.to_owned()),
            9 => Value::Array(self.array(key, 0)?),
            10 => Value::U64(self.u64(key)?),
            11 => Value::I64(self.u64(key)? as i64),
            12 => Value::F64(f64::from_bits(self.u64(key)?)),
            _ => return Self::fault(type_at, format!("key {key:?} has unknown value type {type_id}, expected 0 to 12")),
        })
    }

    fn array(&mut self, key: &str, depth: usize) -> Read<Array> {
        let at = self.pos();
        if depth == MAX_DEPTH {
            return Self::fault(at, format!("key {key:?} nests arrays deeper than {MAX_DEPTH}"));
        }
        let type_id = self.u32(key)?;
        let len_at = self.pos();
        let len = self.u64(key)?;
        // The smallest element: for a string, its length; for an array, its type and length [bytes].
        let min_bytes: u64 = match type_id {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            9 => 12,
            _ => return Self::fault(at, format!("key {key:?} is an array of unknown type {type_id}, expected 0 to 12")),
        };
        if len > self.left() / min_bytes {
            let left = self.left();
            let text = format!("key {key:?} is an array of {len} elements of {min_bytes} bytes or more, but {left} bytes are left");
            return Self::cut(len_at, text);
        }
        let cost = match type_id {
            8 => len,
            9 => len.saturating_mul(NESTED_COST),
            _ => 0,
        };
        self.strings_left = match self.strings_left.checked_sub(cost) {
            Some(left) => left,
            None => return Self::fault(len_at, format!("key {key:?}: the file's arrays hold more than {MAX_STRINGS} strings")),
        };
        Ok(match type_id {
            0 => Array::U8(self.take(len, key)?.to_vec()),
            1 => Array::I8(self.numbers(len, key, i8::from_le_bytes)?),
            2 => Array::U16(self.numbers(len, key, u16::from_le_bytes)?),
            3 => Array::I16(self.numbers(len, key, i16::from_le_bytes)?),
            4 => Array::U32(self.numbers(len, key, u32::from_le_bytes)?),
            5 => Array::I32(self.numbers(len, key, i32::from_le_bytes)?),
            6 => Array::F32(self.numbers(len, key, f32::from_le_bytes)?),
            7 => Array::Bool(self.bools(len, key)?),
            8 => Array::Strings(self.strings(len, key)?),
            10 => Array::U64(self.numbers(len, key, u64::from_le_bytes)?),
            11 => Array::I64(self.numbers(len, key, i64::from_le_bytes)?),
            12 => Array::F64(self.numbers(len, key, f64::from_le_bytes)?),
            _ => {
                let mut items = Vec::new();
                for _ in 0..len {
                    items.push(self.array(key, depth + 1)?);
                }
                Array::Nested(items)
            }
        })
    }

    fn numbers<const N: usize, T>(&mut self, len: u64, key: &str, read: impl Fn([u8; N]) -> T) -> Read<Vec<T>> {
        let bytes = self.take(len * N as u64, key)?;
        Ok(bytes.as_chunks::<N>().0.iter().map(|&chunk| read(chunk)).collect())
    }

    fn bools(&mut self, len: u64, key: &str) -> Read<Vec<bool>> {
        let start = self.pos();
        let bytes = self.take(len, key)?;
        if let Some(at) = bytes.iter().position(|&byte| byte > 1) {
            return Self::fault(start + at as u64, format!("key {key:?} holds {} for a bool, expected 0 or 1", bytes[at]));
        }
        Ok(bytes.iter().map(|&byte| byte == 1).collect())
    }

    /// Reads `len` strings. Walks all of them once before reserving memory, so that a truncated file is refused at no cost.
    fn strings(&mut self, len: u64, key: &str) -> Read<Vec<String>> {
        let start = self.pos;
        for _ in 0..len {
            self.str(key)?;
        }
        self.pos = start;
        let mut items = Vec::with_capacity(len as usize);
        for _ in 0..len {
            items.push(self.str(key)?.to_owned());
        }
        Ok(items)
    }
}

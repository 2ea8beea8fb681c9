//! Metadata values and arrays, with conversions between their types.

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    U64(u64),
    I64(i64),
    F64(f64),
    Array(Array),
}

/// An array, as one vector of its element type.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    Strings(Vec<String>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
    Nested(Vec<Array>),
}

/// Matches a [`Value`] or an [`Array`]: one expression for what a variant of any integer type holds, then the arms of the other variants.
macro_rules! with_ints {
    ($of:ident, $value:expr, $held:ident => $body:expr, $($others:tt)+) => {
        match $value {
            $of::U8($held) => $body,
            $of::I8($held) => $body,
            $of::U16($held) => $body,
            $of::I16($held) => $body,
            $of::U32($held) => $body,
            $of::I32($held) => $body,
            $of::U64($held) => $body,
            $of::I64($held) => $body,
            $($others)+
        }
    };
}
pub(crate) use with_ints;

impl Value {
    pub fn as_str(&self) -> Option<&str> {
        if let Value::String(text) = self { Some(text) } else { None }
    }

    pub fn as_bool(&self) -> Option<bool> {
        if let Value::Bool(flag) = self { Some(*flag) } else { None }
    }

    /// The value, if it has an integer type.
    pub fn as_int(&self) -> Option<i128> {
        with_ints!(Value, *self, n => Some(n.into()), _ => None)
    }

    pub fn as_array(&self) -> Option<&Array> {
        if let Value::Array(array) = self { Some(array) } else { None }
    }

    /// The name of the value's type in GGUF.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::U8(_) => "u8",
            Value::I8(_) => "i8",
            Value::U16(_) => "u16",
            Value::I16(_) => "i16",
            Value::U32(_) => "u32",
            Value::I32(_) => "i32",
            Value::F32(_) => "f32",
            Value::Bool(_) => "bool",
            Value::String(_) => "string",
            Value::U64(_) => "u64",
            Value::I64(_) => "i64",
            Value::F64(_) => "f64",
            Value::Array(_) => "array",
        }
    }
}

impl Array {
    pub fn len(&self) -> usize {
        with_ints!(Array, self, items => items.len(),
            Array::F32(items) => items.len(),
            Array::Bool(items) => items.len(),
            Array::Strings(items) => items.len(),
            Array::F64(items) => items.len(),
            Array::Nested(items) => items.len(),
        )
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of the elements' type in GGUF.
    pub fn type_name(&self) -> &'static str {
        match self {
            Array::U8(_) => "u8",
            Array::I8(_) => "i8",
            Array::U16(_) => "u16",
            Array::I16(_) => "i16",
            Array::U32(_) => "u32",
            Array::I32(_) => "i32",
            Array::F32(_) => "f32",
            Array::Bool(_) => "bool",
            Array::Strings(_) => "string",
            Array::U64(_) => "u64",
            Array::I64(_) => "i64",
            Array::F64(_) => "f64",
            Array::Nested(_) => "array",
        }
    }

    /// The first `count` elements as values.
    pub fn first(&self, count: usize) -> Vec<Value> {
        macro_rules! wrap {
            ($variant:ident, $items:expr) => {
                $items.iter().take(count).cloned().map(Value::$variant).collect()
            };
        }
        match self {
            Array::U8(items) => wrap!(U8, items),
            Array::I8(items) => wrap!(I8, items),
            Array::U16(items) => wrap!(U16, items),
            Array::I16(items) => wrap!(I16, items),
            Array::U32(items) => wrap!(U32, items),
            Array::I32(items) => wrap!(I32, items),
            Array::F32(items) => wrap!(F32, items),
            Array::Bool(items) => wrap!(Bool, items),
            Array::Strings(items) => wrap!(String, items),
            Array::U64(items) => wrap!(U64, items),
            Array::I64(items) => wrap!(I64, items),
            Array::F64(items) => wrap!(F64, items),
            Array::Nested(items) => wrap!(Array, items),
        }
    }

    /// The elements of an array of any integer type. None if the elements are not integers or one does not fit.
    pub fn ints(&self) -> Option<Vec<i64>> {
        with_ints!(Array, self, items => items.iter().map(|&n| i64::try_from(i128::from(n)).ok()).collect(), _ => None)
    }
}

macro_rules! from {
    ($($from:ty => |$value:ident| $into:expr),* $(,)?) => {
        $(impl From<$from> for Value {
            fn from($value: $from) -> Self {
                $into
            }
        })*
    };
}

from! {
    u8 => |n| Value::U8(n),
    i8 => |n| Value::I8(n),
    u16 => |n| Value::U16(n),
    i16 => |n| Value::I16(n),
    u32 => |n| Value::U32(n),
    i32 => |n| Value::I32(n),
    f32 => |x| Value::F32(x),
    bool => |flag| Value::Bool(flag),
    &str => |text| Value::String(text.to_owned()),
    String => |text| Value::String(text),
    u64 => |n| Value::U64(n),
    i64 => |n| Value::I64(n),
    f64 => |x| Value::F64(x),
    Array => |array| Value::Array(array),
    Vec<String> => |items| Value::Array(Array::Strings(items)),
    Vec<f32> => |items| Value::Array(Array::F32(items)),
    Vec<i32> => |items| Value::Array(Array::I32(items)),
    Vec<u32> => |items| Value::Array(Array::U32(items)),
}

//! Converts metadata numbers between types without loss. A value that the target type cannot hold is reported by value and index.

use std::borrow::Cow;

use crate::value::{Array, Value, with_ints};

/// Converts an integer to a float. None if a 32-bit float cannot hold it exactly.
fn float_of_int(number: i128) -> Option<f32> {
    let float = number as f32;
    (float as i128 == number).then_some(float)
}

/// Converts a double to a float. None if a 32-bit float cannot hold it exactly. NaN stays NaN.
fn float_of_double(number: f64) -> Option<f32> {
    let float = number as f32;
    (f64::from(float) == number || number.is_nan()).then_some(float)
}

/// Converts each item. The error names the first item that cannot be converted, and its index.
fn each<T: Copy + std::fmt::Display, U: Clone>(
    items: &[T],
    holder: &str,
    convert: impl Fn(T) -> Option<U>,
) -> Result<Cow<'static, [U]>, String> {
    let all: Result<Vec<U>, String> = items
        .iter()
        .enumerate()
        .map(|(at, &item)| convert(item).ok_or_else(|| format!("an array with {item} at index {at}, which {holder} cannot hold")))
        .collect();
    all.map(Cow::Owned)
}

impl Value {
    /// The value of any numeric type as a float. Rounds a double. None for an integer that a 32-bit float cannot hold.
    pub fn as_f32(&self) -> Option<f32> {
        match *self {
            Value::F32(x) => Some(x),
            Value::F64(x) => Some(x as f32),
            _ => float_of_int(self.as_int()?),
        }
    }

    /// The items of an array of numbers, as floats.
    ///
    /// # Errors
    /// Says what the value is instead.
    pub fn floats(&self) -> Result<Cow<'_, [f32]>, String> {
        const HOLDER: &str = "a 32-bit float";
        match self {
            Value::Array(Array::F32(items)) => Ok(Cow::Borrowed(items)),
            Value::Array(Array::F64(items)) => each(items, HOLDER, float_of_double),
            Value::Array(array) => with_ints!(Array, array, items => each(items, HOLDER, |item| float_of_int(item.into())),
                other => Err(format!("an array of {}", other.type_name()))),
            other => Err(format!("of type {}", other.type_name())),
        }
    }

    /// The items of an array of integers, as bytes. Signed bytes keep their bits.
    ///
    /// # Errors
    /// Says what the value is instead.
    pub fn bytes(&self) -> Result<Cow<'_, [u8]>, String> {
        match self {
            Value::Array(Array::U8(items)) => Ok(Cow::Borrowed(items)),
            Value::Array(Array::I8(items)) => Ok(items.iter().map(|&item| item as u8).collect()),
            Value::Array(array) => with_ints!(Array, array, items => each(items, "a byte", |item| u8::try_from(i128::from(item)).ok()),
                other => Err(format!("an array of {}", other.type_name()))),
            other => Err(format!("of type {}", other.type_name())),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn arrays(numbers: &[i8]) -> Vec<Array> {
        macro_rules! of {
            ($($variant:ident),*) => {
                vec![$(Array::$variant(numbers.iter().map(|&n| n as _).collect())),*]
            };
        }
        of![I8, I16, I32, I64, F32, F64]
    }

    proptest! {
        #[test]
        fn whole_numbers_are_the_same_floats_in_an_array_of_any_type(numbers in prop::collection::vec(any::<i8>(), 0..20)) {
            let expected: Vec<f32> = numbers.iter().map(|&n| n.into()).collect();
            for array in arrays(&numbers) {
                prop_assert_eq!(Value::Array(array).floats().unwrap().into_owned(), expected.clone());
            }
        }

        #[test]
        fn an_integer_is_read_as_a_float_exactly_or_not_at_all(number in any::<i64>(), shift in 0..63u32) {
            let number = number >> shift;
            let exact = (number as f32) as i128 == i128::from(number);
            prop_assert_eq!(Value::I64(number).as_f32(), exact.then_some(number as f32));
            let read = Value::Array(Array::I64(vec![0, number])).floats().map(Cow::into_owned);
            let refusal = || format!("an array with {number} at index 1, which a 32-bit float cannot hold");
            prop_assert_eq!(read, if exact { Ok(vec![0.0, number as f32]) } else { Err(refusal()) });
        }
    }

    #[test]
    fn bytes_come_from_arrays_of_any_integer_type() {
        let all: Vec<u8> = (0..=255).collect();
        let of = |array: Array| Value::Array(array).bytes().map(Cow::into_owned);
        let arrays = [
            Array::U8(all.clone()),
            Array::I8(all.iter().map(|&n| n as i8).collect()),
            Array::U16(all.iter().map(|&n| n.into()).collect()),
            Array::I16(all.iter().map(|&n| n.into()).collect()),
            Array::U32(all.iter().map(|&n| n.into()).collect()),
            Array::I32(all.iter().map(|&n| n.into()).collect()),
            Array::U64(all.iter().map(|&n| n.into()).collect()),
            Array::I64(all.iter().map(|&n| n.into()).collect()),
        ];
        for array in arrays {
            assert_eq!(of(array), Ok(all.clone()));
        }
        assert_eq!(of(Array::I32(vec![1, 256])), Err("an array with 256 at index 1, which a byte cannot hold".into()));
        assert_eq!(of(Array::I32(vec![-1])), Err("an array with -1 at index 0, which a byte cannot hold".into()));
    }

    #[test]
    fn other_values_are_refused_by_type() {
        let refused = |value: Value| value.floats().unwrap_err();
        assert_eq!(refused(Value::F32(1.0)), "of type f32");
        assert_eq!(refused(Value::from(vec![String::new()])), "an array of string");
        assert_eq!(refused(Value::Array(Array::F64(vec![0.1]))), "an array with 0.1 at index 0, which a 32-bit float cannot hold");
        assert_eq!(Value::Array(Array::F64(vec![0.5])).floats().unwrap()[0], 0.5);
        let (largest, beyond) = (Value::U64(1 << 24), Value::U64((1 << 24) + 1));
        assert_eq!((largest.as_f32(), beyond.as_f32(), Value::Bool(true).as_f32()), (Some(16_777_216.0), None, None));
        assert_eq!(Value::Array(Array::F32(vec![1.0])).bytes().unwrap_err(), "an array of f32");
    }
}

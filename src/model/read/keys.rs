//! Reads the metadata of one architecture with type checks. Each value is checked before it is used as a size.

use crate::arch::Arch;
use crate::error::ModelFault;
use gguf::{Array, GgufFile, Value};

/// Far above any real dimension. The product of two dimensions must fit into 64 bits.
pub const MAX_DIM: usize = (1 << 31) - 1;

pub type Fallible<T> = Result<T, ModelFault>;

pub struct Keys<'a> {
    pub file: &'a GgufFile,
    pub arch: &'static Arch,
}

/// An error about a key's value.
pub fn metadata<T>(key: impl Into<String>, found: impl Into<String>, expected: impl Into<String>) -> Fallible<T> {
    Err(ModelFault::Metadata { key: key.into(), found: found.into(), expected: expected.into() })
}

/// Formats a value for error messages.
pub fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{:?}", text.chars().take(80).collect::<String>()),
        Value::Array(array) => format!("an array of {} {}", array.len(), array.type_name()),
        Value::F32(x) => x.to_string(),
        Value::F64(x) => x.to_string(),
        Value::Bool(flag) => flag.to_string(),
        other => other.as_int().map_or_else(|| other.type_name().to_owned(), |n| n.to_string()),
    }
}

impl Keys<'_> {
    pub fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.arch.name)
    }

    pub fn value(&self, suffix: &str) -> Option<&Value> {
        self.file.get(&self.key(suffix))
    }

    /// An error about the value of `suffix`.
    pub fn wrong<T>(&self, suffix: &str, expected: impl Into<String>) -> Fallible<T> {
        metadata(self.key(suffix), self.value(suffix).map_or_else(|| "missing".to_owned(), shown), expected)
    }

    /// An integer from `min` to `max`. None if the file does not have the key. The entries of an array (one per layer) must be equal.
    fn integer(&self, suffix: &str, min: usize, max: usize) -> Fallible<Option<usize>> {
        let Some(value) = self.value(suffix) else { return Ok(None) };
        let number = match value {
            Value::Array(array) => {
                array.ints().filter(|ints| ints.windows(2).all(|w| w[0] == w[1])).and_then(|ints| Some((*ints.first()?).into()))
            }
            other => other.as_int(),
        };
        match number.and_then(|n| usize::try_from(n).ok()) {
            Some(n) if (min..=max).contains(&n) => Ok(Some(n)),
            _ => self.wrong(suffix, format!("an integer from {min} to {max}")),
        }
    }

    /// An integer from 1 to `max`. None if the file does not have the key.
    pub fn count(&self, suffix: &str, max: usize) -> Fallible<Option<usize>> {
        self.integer(suffix, 1, max)
    }

    /// Like `count`, for keys whose value 0 means none.
    pub fn count_or_none(&self, suffix: &str, max: usize) -> Fallible<Option<usize>> {
        Ok(self.integer(suffix, 0, max)?.filter(|&n| n > 0))
    }

    /// Like `count`, for a key that every file must have.
    pub fn required(&self, suffix: &str, max: usize) -> Fallible<usize> {
        match self.count(suffix, max)? {
            Some(n) => Ok(n),
            None => self.wrong(suffix, format!("an integer from 1 to {max}")),
        }
    }

    /// One integer up to `MAX_DIM` per layer. The value is an array with at least one entry per layer, or one number for all layers. None
    /// if the file does not have the key.
    pub fn per_layer(&self, suffix: &str, num_layers: usize) -> Fallible<Option<Vec<usize>>> {
        let Some(Value::Array(array)) = self.value(suffix) else {
            return Ok(self.integer(suffix, 0, MAX_DIM)?.map(|n| vec![n; num_layers]));
        };
        let all =
            array.ints().map(|ints| ints.iter().map(|&n| usize::try_from(n).ok().filter(|&n| n <= MAX_DIM)).collect::<Option<Vec<_>>>());
        match all.flatten() {
            Some(mut all) if all.len() >= num_layers => {
                all.truncate(num_layers);
                Ok(Some(all))
            }
            _ => self.wrong(suffix, format!("one entry from 0 to {MAX_DIM} per layer ({num_layers})")),
        }
    }

    /// One flag per layer. None if the file does not have the key or its value is not an array.
    pub fn flags(&self, suffix: &str, num_layers: usize) -> Fallible<Option<Vec<bool>>> {
        let flags = match self.value(suffix) {
            Some(Value::Array(Array::Bool(flags))) => flags.clone(),
            Some(Value::Array(array)) => match array.ints() {
                Some(ints) if ints.iter().all(|&n| n == 0 || n == 1) => ints.iter().map(|&n| n == 1).collect(),
                _ => return self.wrong(suffix, "an array of booleans"),
            },
            _ => return Ok(None),
        };
        if flags.len() < num_layers {
            return self.wrong(suffix, format!("one entry per layer ({num_layers})"));
        }
        Ok(Some(flags[..num_layers].to_vec()))
    }

    /// A positive finite float. None if the file does not have the key.
    pub fn positive(&self, suffix: &str) -> Fallible<Option<f32>> {
        let Some(value) = self.value(suffix) else { return Ok(None) };
        match value.as_f32() {
            Some(x) if x.is_finite() && x > 0.0 => Ok(Some(x)),
            _ => self.wrong(suffix, "a positive number"),
        }
    }

    /// Like `positive`, for keys whose value 0 means none.
    pub fn positive_or_none(&self, suffix: &str) -> Fallible<Option<f32>> {
        let zero = self.value(suffix).and_then(Value::as_f32) == Some(0.0);
        if zero { Ok(None) } else { self.positive(suffix) }
    }

    /// One finite float per layer. The key does not contain the architecture's name.
    pub fn floats(&self, key: &str, num_layers: usize) -> Fallible<Vec<f32>> {
        let value = self.file.get(key);
        let expected = || format!("one finite number per layer ({num_layers})");
        let all = match value {
            Some(array @ Value::Array(_)) => array.floats().or_else(|found| metadata(key, found, expected()))?.into_owned(),
            Some(other) => other.as_f32().map(|x| vec![x; num_layers]).unwrap_or_default(),
            None => Vec::new(),
        };
        if all.len() < num_layers || all.iter().any(|x| !x.is_finite()) {
            let found = value.map_or_else(|| "missing".to_owned(), shown);
            return metadata(key, found, expected());
        }
        Ok(all[..num_layers].to_vec())
    }

    pub fn flag(&self, suffix: &str) -> Fallible<Option<bool>> {
        match self.value(suffix) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => self.wrong(suffix, "a boolean"),
        }
    }

    /// Refuses a feature that no engine computes. The values 0 and `none` mean that the model does not use the feature.
    pub fn absent(&self, suffix: &str, none: f32) -> Fallible<()> {
        match self.value(suffix) {
            Some(value) if ![Some(0.0), Some(none)].contains(&value.as_f32()) => self.wrong(suffix, "0 or no such key (not supported)"),
            _ => Ok(()),
        }
    }

    /// The dimensions of a tensor, innermost first. None if the file does not have it.
    pub fn dims_of(&self, tensor: &str) -> Option<&[u64]> {
        let index = self.file.tensor_index(tensor)?;
        Some(&self.file.tensors()[index].dims)
    }
}

//! [`Config`]: typed access to `config.json`. Each value is checked before it is used.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{ConvertError, Fallible, fault};
use crate::json;

/// Far above any real dimension.
const MAX_COUNT: u64 = (1 << 31) - 1;

/// A `config.json`, or a section of it.
pub struct Config {
    path: PathBuf,
    values: Value,
}

/// Names that one setting has in the configurations of different families. The first name with a value is used.
pub type Names<'a> = &'a [&'a str];

impl Config {
    pub fn open(dir: &Path) -> Fallible<Self> {
        let path = dir.join("config.json");
        match Self::read(&path, json::MAX_BYTES)? {
            Some(config) => Ok(config),
            None => fault(&path, "does not exist: expected the folder of a Hugging Face checkpoint"),
        }
    }

    /// Reads a file of at most `most` bytes. None if there is no such file.
    ///
    /// # Errors
    /// If the file is longer, or is not a JSON object.
    pub fn read(path: &Path, most: u64) -> Fallible<Option<Self>> {
        match json::read_bounded(path, most)? {
            Some(values @ Value::Object(_)) => Ok(Some(Self { path: path.to_owned(), values })),
            Some(_) => fault(path, "is not a JSON object"),
            None => Ok(None),
        }
    }

    /// The names and values of all settings, in the order of the file.
    pub fn all(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.values.as_object().into_iter().flatten()
    }

    /// The section `name`. None if the file does not have it. `defaults`, a JSON object, supplies values that the section lacks.
    pub fn section(&self, name: &str, defaults: &str) -> Fallible<Option<Config>> {
        let Some(section) = self.values.get(name) else { return Ok(None) };
        let (Ok(Value::Object(mut values)), Some(section)) = (serde_json::from_str(defaults), section.as_object()) else {
            return self.fault(name, "an object");
        };
        values.extend(section.iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.clone(), value.clone())));
        Ok(Some(Config { path: self.path.clone(), values: Value::Object(values) }))
    }

    /// The first name whose value is not null, with that value.
    pub fn get(&self, names: Names) -> Option<(String, &Value)> {
        names.iter().find_map(|name| {
            let value = name.split('.').try_fold(&self.values, |value, part| value.get(part))?;
            (!value.is_null()).then(|| ((*name).to_owned(), value))
        })
    }

    /// An error about the value of `name`.
    pub fn fault<T>(&self, name: &str, expected: impl std::fmt::Display) -> Fallible<T> {
        let found = self.get(&[name]).map_or_else(|| "missing".to_owned(), |(_, value)| shown(value));
        fault(&self.path, format!("{name} is {found}, expected {expected}"))
    }

    /// An integer from 1 to 2^31 - 1.
    pub fn count(&self, names: Names) -> Fallible<Option<u32>> {
        Ok(self.count_or_zero(names)?.filter(|&n| n > 0))
    }

    /// An integer from 0 to 2^31 - 1.
    pub fn count_or_zero(&self, names: Names) -> Fallible<Option<u32>> {
        let Some((name, value)) = self.get(names) else { return Ok(None) };
        // Some files write whole numbers as floats.
        let whole = value.as_f64().filter(|x| x.fract() == 0.0 && (0.0..=MAX_COUNT as f64).contains(x)).map(|x| x as u64);
        match value.as_u64().or(whole) {
            Some(n) if n <= MAX_COUNT => Ok(Some(n as u32)),
            _ => self.fault(&name, format!("an integer from 0 to {MAX_COUNT}")),
        }
    }

    pub fn need_count(&self, names: Names) -> Fallible<u32> {
        match self.count(names)? {
            Some(n) => Ok(n),
            None => self.fault(names[0], format!("an integer from 1 to {MAX_COUNT}")),
        }
    }

    /// A finite number.
    pub fn number(&self, names: Names) -> Fallible<Option<f64>> {
        let Some((name, value)) = self.get(names) else { return Ok(None) };
        match value.as_f64() {
            Some(x) if x.is_finite() => Ok(Some(x)),
            _ => self.fault(&name, "a number"),
        }
    }

    pub fn flag(&self, names: Names) -> Fallible<Option<bool>> {
        let Some((name, value)) = self.get(names) else { return Ok(None) };
        match value.as_bool() {
            Some(flag) => Ok(Some(flag)),
            None => self.fault(&name, "true or false"),
        }
    }

    pub fn text(&self, names: Names) -> Fallible<Option<&str>> {
        let Some((name, value)) = self.get(names) else { return Ok(None) };
        match value.as_str() {
            Some(text) => Ok(Some(text)),
            None => self.fault(&name, "a string"),
        }
    }

    /// A list of positive numbers with `len` entries.
    pub fn positives(&self, name: &str, len: usize) -> Fallible<Vec<f32>> {
        let list = self.get(&[name]).and_then(|(_, value)| value.as_array().cloned()).unwrap_or_default();
        let all: Vec<f32> = list.iter().filter_map(|x| Some(x.as_f64()? as f32)).filter(|x| x.is_finite() && *x > 0.0).collect();
        if all.len() != len || list.len() != len {
            return self.fault(name, format!("a list of {len} positive numbers"));
        }
        Ok(all)
    }

    /// The names of the model's classes.
    pub fn classes(&self) -> Vec<&str> {
        let list = self.values.get("architectures").and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    pub fn error(&self, text: impl Into<String>) -> ConvertError {
        ConvertError::File { path: self.path.clone(), fault: text.into() }
    }
}

/// Formats a value for error messages.
fn shown(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("a list of {} entries", items.len()),
        Value::Object(_) => "an object".to_owned(),
        other => other.to_string().chars().take(80).collect(),
    }
}

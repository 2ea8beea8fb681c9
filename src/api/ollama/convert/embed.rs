//! `/api/embed` and `/api/embeddings`: the requests.

use serde_json::Value;

use super::keep_alive::keep_alive;
use super::options::{Settings, settings};
use config::Limits;
use http::error::ApiError;
use http::fields::{Fields, wrong_type};
use registry::Keep;

/// They join the queue together.
const MAX_INPUTS: usize = 2048;

/// A request whose fields are valid by themselves.
#[derive(Debug)]
pub struct Embed {
    pub model: String,
    /// Empty: the model is loaded.
    pub inputs: Vec<String>,
    /// Whether texts that are longer than the context are cut.
    pub truncate: bool,
    /// At least 1. The handler checks whether the model has so many.
    pub dimensions: Option<usize>,
    /// Only the context counts.
    pub settings: Settings,
    pub keep: Option<Keep>,
}

pub fn embed(body: &Value, limits: &Limits) -> Result<Embed, ApiError> {
    let fields = Fields::root(body)?;
    let wrong = |value: &Value| wrong_type("input", "a string or a list of strings", value);
    let inputs = match fields.required("input", fields.get("input"))? {
        Value::String(text) if text.is_empty() => Vec::new(),
        Value::String(text) => vec![text.clone()],
        Value::Array(items) if items.len() > MAX_INPUTS => {
            return Err(fields.invalid("input", format_args!("holds {} texts, and {MAX_INPUTS} are allowed", items.len())));
        }
        Value::Array(items) => {
            items.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(|| wrong(item))).collect::<Result<_, _>>()?
        }
        other => return Err(wrong(other)),
    };
    let truncate = fields.bool("truncate")?.unwrap_or(true);
    // 0 stands for all in Go.
    let dimensions = fields.count("dimensions", 0)?.filter(|&count| count > 0).map(|count| count as usize);
    Ok(Embed { truncate, dimensions, inputs, ..of_model(&fields, limits)? })
}

pub fn embeddings(body: &Value, limits: &Limits) -> Result<Embed, ApiError> {
    let fields = Fields::root(body)?;
    let text = fields.string("prompt")?.filter(|text| !text.is_empty());
    Ok(Embed { inputs: text.into_iter().map(str::to_owned).collect(), ..of_model(&fields, limits)? })
}

fn of_model(fields: &Fields, limits: &Limits) -> Result<Embed, ApiError> {
    Ok(Embed {
        model: super::model::model(fields)?,
        inputs: Vec::new(),
        truncate: true,
        dimensions: None,
        settings: settings(fields, limits)?,
        keep: keep_alive(fields)?,
    })
}

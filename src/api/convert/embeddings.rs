//! `/v1/embeddings`: the request.

use serde_json::Value;

use super::super::error::{ApiError, quoted};
use super::super::fields::Fields;
use super::{generation, prompts, refuse};
use crate::serving::Prompt;

/// As many as OpenAI takes; clients send them by the thousand. They join the queue a few at a time.
const MAX_INPUTS: usize = 2048;

/// How a vector goes over the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Float,
    /// Little-endian float32.
    Base64,
}

/// A request whose fields are all right by themselves.
#[derive(Debug)]
pub struct Embeddings {
    pub model: String,
    pub inputs: Vec<Prompt>,
    pub encoding: Encoding,
    /// At least 1; whether the model has so many is known later.
    pub dimensions: Option<usize>,
    pub tenant: u64,
}

pub fn parse(body: &Value) -> Result<Embeddings, ApiError> {
    let fields = Fields::root(body)?;
    let model = super::model(&fields)?;
    refuse::embeddings(&fields)?;
    let encoding = match fields.string("encoding_format")? {
        None | Some("float") => Encoding::Float,
        Some("base64") => Encoding::Base64,
        Some(other) => return Err(fields.invalid("encoding_format", format_args!("must be float or base64, not `{}`", quoted(other)))),
    };
    let dimensions = fields.count("dimensions", 1)?.map(|count| count as usize);
    let inputs = prompts::read(&fields, "input", MAX_INPUTS)?;
    prompts::check(&fields, "input", &inputs)?;
    Ok(Embeddings { model, inputs, encoding, dimensions, tenant: generation::tenant(&fields)? })
}

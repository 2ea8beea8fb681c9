//! `/v1/embeddings`: the request.

use serde_json::Value;

use super::{generation, prompts};
use http::error::{ApiError, quoted};
use http::fields::Fields;
use serving::{Prompt, Truncate};

/// As many as OpenAI takes. They join the queue a few at a time.
const MAX_INPUTS: usize = 2048;

/// The form of a vector on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Float,
    /// Little-endian float32.
    Base64,
}

/// A request whose fields are valid by themselves.
#[derive(Debug)]
pub struct Embeddings {
    pub model: String,
    pub inputs: Vec<Prompt>,
    pub encoding: Encoding,
    /// At least 1. The handler checks whether the model has so many.
    pub dimensions: Option<usize>,
    /// The end of a longer text is left out.
    pub most_tokens: Option<usize>,
    /// The number of the `user`.
    pub user: u64,
}

pub fn parse(body: &Value) -> Result<Embeddings, ApiError> {
    let fields = Fields::root(body)?;
    let model = super::model(&fields)?;
    let encoding = match fields.string("encoding_format")? {
        None | Some("float") => Encoding::Float,
        Some("base64") => Encoding::Base64,
        Some(other) => return Err(fields.invalid("encoding_format", format_args!("must be float or base64, not `{}`", quoted(other)))),
    };
    let dimensions = fields.count("dimensions", 1)?.map(|count| count as usize);
    let inputs = prompts::read(&fields, "input", MAX_INPUTS)?;
    prompts::check(&fields, "input", &inputs)?;
    let most_tokens = generation::truncate(&fields)?.map(Truncate::most);
    Ok(Embeddings { model, inputs, encoding, dimensions, most_tokens, user: generation::user(&fields)? })
}

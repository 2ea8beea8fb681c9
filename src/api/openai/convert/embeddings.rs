//! Conversion of requests to `/v1/embeddings`.

use serde_json::Value;

use super::{generation, prompts};
use http::error::{ApiError, quoted};
use http::fields::Fields;
use serving::{Prompt, Truncate};

/// The most inputs of a request, as in OpenAI's API. They join the queue a few at a time.
const MAX_INPUTS: usize = 2048;

/// The form of a vector on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Float,
    /// Base64 of little-endian float32.
    Base64,
}

/// An embedding request whose fields are each valid.
#[derive(Debug)]
pub struct Embeddings {
    pub model: String,
    pub inputs: Vec<Prompt>,
    pub encoding: Encoding,
    /// The number of elements to keep, at least 1. The handler checks that the model has so many.
    pub dimensions: Option<usize>,
    /// The most tokens of an input. The end of a longer text is cut.
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

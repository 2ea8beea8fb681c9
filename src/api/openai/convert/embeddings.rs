//! Conversion of requests to `/v1/embeddings`.

use serde_json::Value;

use super::{chat, generation, prompts};
use ::chat::{Conversation, Ending};
use http::error::{ApiError, quoted};
use http::fields::Fields;
use serving::{Prompt, Truncate};

/// The most inputs of a request, as in OpenAI's API. They join the queue a few at a time.
pub const MAX_INPUTS: usize = 2048;

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
    /// Whether vectors are scaled to length 1.
    pub normalize: bool,
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
    let normalize = fields.bool("normalize")?.unwrap_or(true);
    let most_tokens = generation::truncate(&fields)?.map(Truncate::most);
    let inputs = inputs(&fields)?;
    Ok(Embeddings { model, inputs, encoding, dimensions, normalize, most_tokens, user: generation::user(&fields)? })
}

/// Reads `input`, or `messages`, which the model's chat template makes one text of.
fn inputs(fields: &Fields) -> Result<Vec<Prompt>, ApiError> {
    if fields.get("messages").is_none() {
        let inputs = prompts::read(fields, "input", MAX_INPUTS)?;
        prompts::check(fields, "input", &inputs)?;
        return Ok(inputs);
    }
    for other in ["input", "truncate_prompt_tokens"] {
        if fields.get(other).is_some() {
            return Err(fields.invalid(other, "is not allowed with `messages`"));
        }
    }
    // A vector describes what was said, not the beginning of an answer.
    Ok(vec![Prompt::Chat(Conversation { ending: Ending::ClosedTurn, ..chat::conversation(fields)? })])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_input_is_a_text_or_a_conversation_and_not_both() {
        let read = |body: Value| parse(&body).map_err(|error| error.param.unwrap_or_default());
        let messages = json!([{"role": "user", "content": "Hi"}]);
        let chat = read(json!({"model": "m", "messages": messages})).unwrap();
        assert!(chat.normalize && matches!(&chat.inputs[..], [Prompt::Chat(chat)] if chat.ending == Ending::ClosedTurn));
        assert!(!read(json!({"model": "m", "input": "a", "normalize": false})).unwrap().normalize);
        for (body, field) in [
            (json!({"model": "m"}), "input"),
            (json!({"model": "m", "messages": []}), "messages"),
            (json!({"model": "m", "messages": messages, "input": "a"}), "input"),
            (json!({"model": "m", "messages": messages, "truncate_prompt_tokens": 4}), "truncate_prompt_tokens"),
            (json!({"model": "m", "input": "a", "normalize": 1}), "normalize"),
        ] {
            assert_eq!(read(body).map(|_| ()), Err(field.to_owned()));
        }
    }
}

//! Conversion of requests to llama.cpp's own endpoints.

use serde_json::Value;

use super::embeddings::{Embeddings, Encoding};
use super::{generation, names, prompts, structured};
use config::Limits;
use http::error::ApiError;
use http::fields::{Fields, wrong_type};
use http::subject::FieldNames;
use logits::MAX_LOGPROBS;
use registry::AdapterAsk;
use serving::{Budget, Options, Prompt};

/// The most paths of `response_fields`.
const MAX_MEMBERS: usize = 64;

/// A request to `/completion` or `/infill` whose fields are each valid.
#[derive(Debug)]
pub struct NativeGeneration {
    /// The model. `None` means the first one that is served.
    pub model: Option<String>,
    /// At least one prompt. Each has a text of its own.
    pub prompts: Vec<Prompt>,
    pub options: Options,
    /// The adapters of the request instead of those of its model's name.
    pub lora: Option<Vec<AdapterAsk>>,
    pub names: FieldNames,
    pub stream: bool,
    /// The paths of the members to return. `None` means all.
    pub members: Option<Vec<String>>,
}

pub fn parse(body: &Value, limits: &Limits) -> Result<NativeGeneration, ApiError> {
    let fields = Fields::root(body)?;
    // The engine can never take more prompts than the queue holds.
    let prompts = prompts::read(&fields, "prompt", limits.max_prompts.min(limits.max_queue))?;
    prompts::check(&fields, "prompt", &prompts)?;
    generation(&fields, limits, prompts, names::COMPLETIONS)
}

/// Reads the fields of both endpoints.
pub fn generation(fields: &Fields, limits: &Limits, prompts: Vec<Prompt>, names: FieldNames) -> Result<NativeGeneration, ApiError> {
    let stream = fields.bool("stream")?.unwrap_or(false);
    let structure = structured::structure(fields)?;
    let names = FieldNames { format: structured::field_of(structure.as_ref(), names), ..names };
    let mut options = generation::options(fields, limits, budget(fields, limits)?, structure)?;
    let penalty = generation::positive(fields, "repeat_penalty", 10.0)?;
    if let Some(chosen) = &mut options.chosen {
        chosen.repetition_penalty = penalty.or(chosen.repetition_penalty);
        // The penalties see the whole text, or nothing.
        if fields.integer("repeat_last_n", -1..=i64::from(u32::MAX))? == Some(0) {
            *chosen = chosen.without_penalties();
        }
    }
    let num_probs = fields.integer("n_probs", 0..=MAX_LOGPROBS as i64)?.unwrap_or(0);
    options.logprobs = (num_probs > 0).then_some(num_probs as u8);
    options.return_ids = fields.bool("return_tokens")?.unwrap_or(false) || stream;
    let (model, lora) = (fields.string("model")?.map(str::to_owned), generation::lora(fields)?);
    Ok(NativeGeneration { model, prompts, options, lora, names, stream, members: members(fields)? })
}

/// Reads `response_fields`. An empty list asks for nothing.
fn members(fields: &Fields) -> Result<Option<Vec<String>>, ApiError> {
    let Some(list) = fields.array("response_fields")?.filter(|list| !list.is_empty()) else { return Ok(None) };
    if list.len() > MAX_MEMBERS {
        return Err(fields.invalid("response_fields", format_args!("holds more than {MAX_MEMBERS} paths")));
    }
    let path = |path: &Value| path.as_str().map(str::to_owned).ok_or_else(|| wrong_type("response_fields", "a list of strings", path));
    list.iter().map(path).collect::<Result<_, _>>().map(Some)
}

/// Reads `n_predict`, or `max_tokens`, its other name.
fn budget(fields: &Fields, limits: &Limits) -> Result<Budget, ApiError> {
    let name = if fields.get("n_predict").is_some() { "n_predict" } else { "max_tokens" };
    match fields.get(name).and_then(Value::as_i64) {
        Some(-1) => Ok(Budget::Rest),
        _ => Ok(fields.count(name, 0)?.map_or(Budget::Rest, |count| generation::budget(count, limits))),
    }
}

/// Reads a request to `/embedding`. The model may be left out.
pub fn embedding(body: &Value) -> Result<(Option<String>, Embeddings), ApiError> {
    let fields = Fields::root(body)?;
    let name = if fields.get("content").is_none() && fields.get("input").is_some() { "input" } else { "content" };
    let inputs = prompts::read(&fields, name, super::embeddings::MAX_INPUTS)?;
    prompts::check(&fields, name, &inputs)?;
    let normalize = match fields.integer("embd_normalize", i64::MIN..=i64::MAX)? {
        None | Some(2) => true,
        Some(-1) => false,
        Some(other) => return Err(fields.invalid("embd_normalize", format_args!("must be 2 (length 1) or -1 (as it is), not {other}"))),
    };
    let model = fields.string("model")?.map(str::to_owned);
    let (encoding, user) = (Encoding::Float, generation::user(&fields)?);
    Ok((model, Embeddings { model: String::new(), inputs, encoding, dimensions: None, normalize, most_tokens: None, user }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::tests::limits;
    use super::*;

    #[test]
    fn fields_have_llamacpps_names() {
        let body =
            json!({"prompt": ["a", [1, 2]], "n_predict": -1, "repeat_penalty": 1.5, "n_probs": 3, "logit_bias": [[5, -2.5], [6, false]]});
        let NativeGeneration { model, prompts, options, stream, .. } = parse(&body, &limits()).unwrap();
        assert_eq!((prompts.len(), options.budget, options.logprobs, stream, model), (2, Budget::Rest, Some(3), false, None));
        assert_eq!(options.chosen.unwrap().repetition_penalty, Some(1.5));
        assert_eq!(options.sampling.logit_bias, [(5, -2.5), (6, -100.0)]);
        let off = parse(&json!({"prompt": "a", "repeat_penalty": 1.5, "repeat_last_n": 0}), &limits()).unwrap().options;
        assert_eq!(off.chosen.unwrap().repetition_penalty, Some(1.0));
        let of = |body: Value| parse(&body, &limits()).unwrap().options;
        assert_eq!(of(json!({"prompt": "a", "max_tokens": 7})).budget.asked(), Some(7));
        assert!(of(json!({"prompt": "a", "stream": true})).return_ids && !of(json!({"prompt": "a", "n_probs": 0})).return_ids);
    }

    #[test]
    fn wrong_fields_are_named() {
        for (fields, named) in [
            (json!({"prompt": ""}), "prompt"),
            (json!({"prompt": [1, "a"]}), "prompt"),
            (json!({"prompt": "a", "n_predict": -3}), "n_predict"),
            (json!({"prompt": "a", "repeat_penalty": 0}), "repeat_penalty"),
            (json!({"prompt": "a", "n_probs": 21}), "n_probs"),
            (json!({"prompt": "a", "response_fields": [1]}), "response_fields"),
            (json!({"prompt": "a", "logit_bias": [["Hello", 1]]}), "logit_bias"),
            (json!({"prompt": "a", "logit_bias": [[1, true]]}), "logit_bias"),
        ] {
            assert_eq!(parse(&fields, &limits()).unwrap_err().param.as_deref(), Some(named), "{fields}");
        }
        assert_eq!(embedding(&json!({"content": "a", "embd_normalize": 0})).unwrap_err().param.as_deref(), Some("embd_normalize"));
        let (model, asked) = embedding(&json!({"input": ["a", "b"], "embd_normalize": -1})).unwrap();
        assert_eq!((model, asked.inputs.len(), asked.normalize), (None, 2, false));
    }
}

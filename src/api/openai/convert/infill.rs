//! Conversion of requests to `/infill`.

use serde_json::Value;

use super::{generation, names, structured};
use config::Limits;
use http::error::ApiError;
use http::fields::Fields;
use http::subject::FieldNames;
use registry::AdapterAsk;
use serving::{Around, Budget, Options, Prompt};

/// The most other files of a request.
const MAX_FILES: usize = 256;

/// A request to fill in a gap whose fields are each valid.
#[derive(Debug)]
pub struct Infill {
    /// The model. `None` means the first one that is served.
    pub model: Option<String>,
    pub prompt: Prompt,
    pub options: Options,
    /// The adapters of the request instead of those of its model's name.
    pub lora: Option<Vec<AdapterAsk>>,
    pub names: FieldNames,
    pub stream: bool,
}

pub fn parse(body: &Value, limits: &Limits) -> Result<Infill, ApiError> {
    let fields = Fields::root(body)?;
    let model = fields.string("model")?.map(str::to_owned);
    let text = |name: &str| Ok::<_, ApiError>(fields.string(name)?.unwrap_or_default().to_owned());
    let (prefix, suffix, begun) = (text("input_prefix")?, text("input_suffix")?, text("prompt")?);
    if prefix.is_empty() && suffix.is_empty() && begun.is_empty() {
        return Err(fields.invalid("input_prefix", "is required, unless there is an `input_suffix` or a `prompt`"));
    }
    let budget = match fields.get("n_predict").and_then(Value::as_i64) {
        Some(-1) => Budget::Rest,
        _ => fields.count("n_predict", 0)?.map_or(Budget::Rest, |count| generation::budget(count, limits)),
    };
    let structure = structured::structure(&fields)?;
    let names = FieldNames { format: structured::field_of(structure.as_ref(), names::INFILL), ..names::INFILL };
    let options = generation::options(&fields, limits, budget, structure)?;
    let around = Around { files: files(&fields)?.into(), begun };
    let prompt = Prompt::Infill { prefix, suffix: suffix.into(), around };
    let lora = generation::lora(&fields)?;
    Ok(Infill { model, prompt, options, lora, names, stream: fields.bool("stream")?.unwrap_or(false) })
}

/// Reads `input_extra`: the names and texts of other files.
fn files(fields: &Fields) -> Result<Vec<(String, String)>, ApiError> {
    let list = fields.array("input_extra")?.unwrap_or_default();
    if list.len() > MAX_FILES {
        return Err(fields.invalid("input_extra", format_args!("holds {} files, and {MAX_FILES} are allowed", list.len())));
    }
    let file = |(i, value): (usize, &Value)| {
        let file = Fields::at(value, &format!("input_extra[{i}]"))?;
        let text = file.required("text", file.string("text")?)?;
        Ok((file.string("filename")?.unwrap_or_default().to_owned(), text.to_owned()))
    };
    list.iter().enumerate().map(file).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::tests::limits;
    use super::*;

    #[test]
    fn a_gap_has_texts_around_it() {
        let files = json!([{"filename": "f", "text": "t"}, {"text": "u"}]);
        let body = json!({"input_prefix": "a", "input_suffix": "b", "prompt": "c", "input_extra": files, "n_predict": 0, "stream": true});
        let Infill { prompt, options, stream, model, .. } = parse(&body, &limits()).unwrap();
        let Prompt::Infill { prefix, suffix, around } = prompt else { panic!("{prompt:?}") };
        assert_eq!((prefix.as_str(), &*suffix, around.begun.as_str()), ("a", "b", "c"));
        assert_eq!(around.files[..], [("f".to_owned(), "t".to_owned()), (String::new(), "u".to_owned())]);
        assert_eq!((options.budget, stream, model), (Budget::Explicit(0), true, None));
    }

    #[test]
    fn wrong_fields_are_named() {
        let many = vec![json!({"text": ""}); MAX_FILES + 1];
        for (body, field) in [
            (json!({}), "input_prefix"),
            (json!({"input_prefix": 5}), "input_prefix"),
            (json!({"input_prefix": "a", "n_predict": -2}), "n_predict"),
            (json!({"input_prefix": "a", "input_extra": [{"filename": "f"}]}), "input_extra[0].text"),
            (json!({"input_prefix": "a", "input_extra": many}), "input_extra"),
        ] {
            assert_eq!(parse(&body, &limits()).unwrap_err().param.as_deref(), Some(field), "{body}");
        }
        assert_eq!(parse(&json!({"input_suffix": "b"}), &limits()).unwrap().options.budget, Budget::Rest);
    }
}

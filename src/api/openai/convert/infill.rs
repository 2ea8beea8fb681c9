//! Conversion of requests to `/infill`.

use serde_json::Value;

use super::names;
use super::native::{self, NativeGeneration};
use config::Limits;
use http::error::ApiError;
use http::fields::Fields;
use serving::{Around, Prompt};

/// The most other files of a request.
const MAX_FILES: usize = 256;

pub fn parse(body: &Value, limits: &Limits) -> Result<NativeGeneration, ApiError> {
    let fields = Fields::root(body)?;
    let text = |name: &str| Ok::<_, ApiError>(fields.string(name)?.unwrap_or_default().to_owned());
    let (prefix, suffix, begun) = (text("input_prefix")?, text("input_suffix")?, text("prompt")?);
    if prefix.is_empty() && suffix.is_empty() && begun.is_empty() {
        return Err(fields.invalid("input_prefix", "is required, unless there is an `input_suffix` or a `prompt`"));
    }
    let around = Around { files: files(&fields)?.into(), begun };
    let prompt = Prompt::Infill { prefix, suffix: suffix.into(), around };
    native::generation(&fields, limits, vec![prompt], names::INFILL)
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
    use serving::Budget;

    #[test]
    fn a_gap_has_texts_around_it() {
        let files = json!([{"filename": "f", "text": "t"}, {"text": "u"}]);
        let body = json!({"input_prefix": "a", "input_suffix": "b", "prompt": "c", "input_extra": files, "n_predict": 0, "stream": true});
        let NativeGeneration { prompts, options, stream, model, .. } = parse(&body, &limits()).unwrap();
        let [Prompt::Infill { prefix, suffix, around }] = &prompts[..] else { panic!("{prompts:?}") };
        assert_eq!((prefix.as_str(), &**suffix, around.begun.as_str()), ("a", "b", "c"));
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

//! Reading of what a request says about drafts: `prediction`, and llama.cpp's `speculative.*`. None of it changes an answer.

use serde_json::Value;

use http::error::{ApiError, quoted};
use http::fields::{Fields, wrong_type};
use serving::DraftLimits;

/// The most parts of a predicted text.
const MAX_PARTS: usize = 1024;

/// Reads `prediction`: the text that the client expects as the answer.
pub fn prediction(fields: &Fields) -> Result<Option<String>, ApiError> {
    let Some(value) = fields.get("prediction") else { return Ok(None) };
    let prediction = Fields::at(value, "prediction")?;
    match prediction.required("type", prediction.string("type")?)? {
        "content" => {}
        other => return Err(prediction.invalid("type", format_args!("must be `content`, not `{}`", quoted(other)))),
    }
    match prediction.get("content") {
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(parts)) if parts.len() > MAX_PARTS => {
            Err(prediction.invalid("content", format_args!("holds more than {MAX_PARTS} parts")))
        }
        Some(Value::Array(parts)) => {
            let text = |(i, part): (usize, &Value)| {
                let part = Fields::at(part, &format!("prediction.content[{i}]"))?;
                match part.required("type", part.string("type")?)? {
                    "text" => Ok(part.required("text", part.string("text")?)?.to_owned()),
                    other => Err(part.invalid("type", format_args!("must be `text`, not `{}`", quoted(other)))),
                }
            };
            Ok(Some(parts.iter().enumerate().map(text).collect::<Result<String, _>>()?))
        }
        Some(other) => Err(wrong_type("prediction.content", "a string or a list of parts", other)),
        None => Err(prediction.invalid("content", "is required")),
    }
}

/// Reads `speculative.n_max`, `speculative.n_min` and `speculative.p_min`.
pub fn limits(fields: &Fields) -> Result<DraftLimits, ApiError> {
    let (most, fewest) = (fields.count("speculative.n_max", 0)?, fields.count("speculative.n_min", 0)?);
    if let (Some(most), Some(fewest)) = (most, fewest)
        && fewest > most
    {
        return Err(fields.invalid("speculative.n_min", format_args!("is {fewest}, more than `speculative.n_max`, which is {most}")));
    }
    let least_probability = fields.number("speculative.p_min", 0.0..=1.0)?.unwrap_or(0.0) as f32;
    Ok(DraftLimits { most, fewest: fewest.unwrap_or(0), least_probability })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn predicted(prediction: Value) -> Result<Option<String>, String> {
        let body = json!({"prediction": prediction});
        super::prediction(&Fields::root(&body).unwrap()).map_err(|error| format!("{error:?}"))
    }

    #[test]
    fn a_prediction_is_a_text_or_its_parts() {
        assert_eq!(predicted(json!(null)), Ok(None));
        assert_eq!(predicted(json!({"type": "content", "content": "a b"})), Ok(Some("a b".into())));
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": " b"}]);
        assert_eq!(predicted(json!({"type": "content", "content": parts})), Ok(Some("a b".into())));
        for (bad, named) in [
            (json!("a"), "`prediction`"),
            (json!({"content": "a"}), "`prediction.type`"),
            (json!({"type": "text", "content": "a"}), "`prediction.type`"),
            (json!({"type": "content"}), "`prediction.content`"),
            (json!({"type": "content", "content": 7}), "`prediction.content`"),
            (json!({"type": "content", "content": [{"type": "image_url"}]}), "`prediction.content[0].type`"),
            (json!({"type": "content", "content": [{"type": "text"}]}), "`prediction.content[0].text`"),
        ] {
            assert!(predicted(bad.clone()).is_err_and(|error| error.contains(named)), "{bad}: {:?}", predicted(bad.clone()));
        }
    }

    #[test]
    fn limits_are_read_and_checked() {
        let limits = |body: Value| limits(&Fields::root(&body).unwrap()).map_err(|error| format!("{error:?}"));
        assert_eq!(limits(json!({})), Ok(DraftLimits::default()));
        let set = json!({"speculative.n_max": 5, "speculative.n_min": 2, "speculative.p_min": 0.5});
        assert_eq!(limits(set), Ok(DraftLimits { most: Some(5), fewest: 2, least_probability: 0.5 }));
        for (bad, named) in [
            (json!({"speculative.n_max": -1}), "speculative.n_max"),
            (json!({"speculative.n_max": 1, "speculative.n_min": 2}), "speculative.n_min"),
            (json!({"speculative.p_min": 1.5}), "speculative.p_min"),
        ] {
            assert!(limits(bad.clone()).is_err_and(|error| error.contains(named)), "{bad}");
        }
    }
}

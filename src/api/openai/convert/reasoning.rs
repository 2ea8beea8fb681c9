//! Conversion of `reasoning_effort` and of a chat's `reasoning`, with which OpenRouter's clients set how much the model reasons.

use super::generation;
use http::error::ApiError;
use http::fields::Fields;

const FIELD: &str = "reasoning";

fn within<'a>(fields: &Fields<'a>) -> Result<Option<Fields<'a>>, ApiError> {
    fields.get(FIELD).map(|value| Fields::at(value, FIELD)).transpose()
}

/// Reads the level of reasoning: `reasoning_effort`, `reasoning.effort`, or `none` for `reasoning.enabled: false`.
pub fn effort(fields: &Fields) -> Result<Option<String>, ApiError> {
    let own = generation::effort(fields, "reasoning_effort")?;
    let Some(inner) = within(fields)? else { return Ok(own) };
    let other = generation::effort(&inner, "effort")?;
    let is_off = inner.bool("enabled")? == Some(false);
    if inner.bool("exclude")? == Some(true) {
        let path = inner.path("exclude");
        return Err(ApiError::unsupported(&path, format!("`{path}` is not supported: reasoning is returned apart from the answer")));
    }
    match (own, other.or(is_off.then(|| "none".to_owned()))) {
        (Some(own), Some(other)) if own != other => {
            Err(inner.invalid("effort", "differs from `reasoning_effort`, which it is another name of"))
        }
        (own, other) => Ok(own.or(other)),
    }
}

/// Reads `reasoning.max_tokens`, the most reasoning tokens.
pub fn budget(fields: &Fields) -> Result<Option<u32>, ApiError> {
    within(fields)?.map_or(Ok(None), |inner| generation::most_tokens(&inner, "max_tokens"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn reasoning_is_another_name_of_its_effort() {
        let read = |body: Value| effort(&Fields::root(&body).unwrap()).map_err(|error| error.param.unwrap());
        let level = |name: &str| Ok(Some(name.to_owned()));
        assert_eq!(read(json!({"reasoning": {"effort": "low"}})), level("low"));
        assert_eq!(read(json!({"reasoning": {"enabled": false}})), level("none"));
        assert_eq!(read(json!({"reasoning": {"enabled": true, "exclude": false, "effort": null}})), Ok(None));
        assert_eq!(read(json!({"reasoning": {}, "reasoning_effort": ""})), Ok(None));
        assert_eq!(read(json!({"reasoning": {"effort": "high"}, "reasoning_effort": "high"})), level("high"));
        assert_eq!(read(json!({"reasoning": {"effort": "low"}, "reasoning_effort": "high"})), Err("reasoning.effort".into()));
        assert_eq!(read(json!({"reasoning": {"effort": "a lot"}})), Err("reasoning.effort".into()));
        assert_eq!(read(json!({"reasoning": {"exclude": true}})), Err("reasoning.exclude".into()));
        let bounded = json!({"reasoning": {"max_tokens": 9}});
        assert_eq!(budget(&Fields::root(&bounded).unwrap()).unwrap(), Some(9));
    }
}

//! Conversion of requests that name a model and little else.

use serde_json::Value;

use http::error::ApiError;
use http::fields::Fields;

/// Reads the `model` field.
pub fn model(fields: &Fields) -> Result<String, ApiError> {
    named(fields, "model").and_then(|name| fields.required("model", name))
}

fn named(fields: &Fields, field: &str) -> Result<Option<String>, ApiError> {
    match fields.string(field)? {
        Some("") => Err(fields.invalid(field, "must not be empty")),
        name => Ok(name.map(str::to_owned)),
    }
}

/// Reads the model's name, from `model` or from `name` as older clients call it.
pub fn model_or_name(fields: &Fields) -> Result<String, ApiError> {
    match (named(fields, "model")?, named(fields, "name")?) {
        (Some(model), Some(name)) if model != name => {
            Err(fields.invalid("name", "is the older name of `model`, and has another value: send `model` alone"))
        }
        (model, name) => fields.required("model", model.or(name)),
    }
}

/// A request to `/api/show`.
pub struct Show {
    pub model: String,
    pub verbose: bool,
}

pub fn show(body: &Value) -> Result<Show, ApiError> {
    let fields = Fields::root(body)?;
    for field in ["system", "template", "options"] {
        // Clients send these fields empty.
        let asks = fields.get(field).is_some_and(|value| value != "" && value != &Value::Object(serde_json::Map::new()));
        if asks {
            let message = format!("`{field}` is not supported: this endpoint describes the model as it is");
            return Err(ApiError::unsupported(field, message));
        }
    }
    Ok(Show { model: model_or_name(&fields)?, verbose: fields.bool("verbose")?.unwrap_or(false) })
}

pub fn delete(body: &Value) -> Result<String, ApiError> {
    let fields = Fields::root(body)?;
    model_or_name(&fields)
}

/// A request to `/api/pull`.
pub struct Pull {
    pub model: String,
    pub stream: bool,
}

pub fn pull(body: &Value) -> Result<Pull, ApiError> {
    let fields = Fields::root(body)?;
    for field in ["username", "password"] {
        if fields.get(field).is_some_and(|value| value != "") {
            return Err(ApiError::unsupported(field, format!("`{field}` is not supported: the server's operator sets a token")));
        }
    }
    // The field has no effect: certificates are always checked.
    fields.bool("insecure")?;
    Ok(Pull { model: model_or_name(&fields)?, stream: fields.bool("stream")?.unwrap_or(true) })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn models_are_named_in_two_ways() {
        assert_eq!(delete(&json!({"name": "m"})).unwrap(), "m");
        assert_eq!(show(&json!({"model": "m", "name": "m", "system": "", "options": {}})).unwrap().model, "m");
        let param = |error: ApiError| error.param.unwrap();
        assert_eq!(param(delete(&json!({})).unwrap_err()), "model");
        assert_eq!(param(delete(&json!({"model": "a", "name": "b"})).unwrap_err()), "name");
        assert_eq!(param(show(&json!({"model": "m", "template": "x"})).err().unwrap()), "template");
        assert_eq!(param(pull(&json!({"model": "m", "insecure": "yes"})).err().unwrap()), "insecure");
        assert!(pull(&json!({"model": "m", "insecure": true})).is_ok());
        assert!(pull(&json!({"model": "m"})).unwrap().stream);
    }
}

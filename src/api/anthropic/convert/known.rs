//! Which fields there are. Any other is refused with the nearest name.

use crate::http::error::{ApiError, Kind, quoted};
use crate::http::fields::Fields;

/// Refuses a field that is not in `known`. A null field counts as absent.
pub fn only(fields: &Fields, known: &[&str]) -> Result<(), ApiError> {
    let Some(name) = fields.names().find(|name| !known.contains(name)) else { return Ok(()) };
    let hint = match config::nearest_model(known.iter().map(|known| (*known, *known)), name) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("the fields here are {}", known.join(", ")),
    };
    let field = fields.path(&quoted(name));
    Err(ApiError::new(Kind::Unsupported, format!("`{field}` is not a known field: {hint}")).with_param(field))
}

/// Checks the `cache_control` of an object, which asks for nothing that does not happen anyway: every prompt is cached.
pub fn cache_control(fields: &Fields) -> Result<(), ApiError> {
    let Some(value) = fields.get("cache_control") else { return Ok(()) };
    let path = fields.path("cache_control");
    let inner = Fields::at(value, &path)?;
    only(&inner, &["type", "ttl", "scope"])?;
    match inner.required("type", inner.string("type")?)? {
        "ephemeral" => {}
        other => return Err(inner.invalid("type", format_args!("must be ephemeral, not `{}`", quoted(other)))),
    }
    match inner.string("ttl")? {
        None | Some("5m" | "1h") => {}
        Some(other) => return Err(inner.invalid("ttl", format_args!("must be 5m or 1h, not `{}`", quoted(other)))),
    }
    inner.string("scope").map(drop)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_unknown_field_is_refused_with_the_nearest_name() {
        let known = ["temperature", "top_p"];
        let read = |value: &Value, path: &str| only(&Fields::at(value, path).unwrap(), &known).map_err(|error| error.message);
        let message = |value: Value, path: &str| read(&value, path).unwrap_err();
        assert_eq!(message(json!({"tempreature": 1}), ""), "`tempreature` is not a known field: did you mean `temperature`?");
        assert_eq!(message(json!({"x": 1}), "a.b"), "`a.b.x` is not a known field: the fields here are temperature, top_p");
        assert_eq!(read(&json!({"x": null, "top_p": 1}), ""), Ok(()));
    }
}

//! Conversion of `cache_control`, which is checked and has no effect.

use http::error::{ApiError, quoted};
use http::fields::Fields;

/// Checks the `cache_control` of an object. The field has no effect, because every prompt is cached anyway.
pub fn cache_control(fields: &Fields) -> Result<(), ApiError> {
    let Some(value) = fields.get("cache_control") else { return Ok(()) };
    let path = fields.path("cache_control");
    let inner = fields.within(value, &path)?;
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

//! Conversion of `verbosity`, and of `text.verbosity` in a response.

use http::error::{ApiError, quoted};
use http::fields::Fields;

/// Checks the requested verbosity, which has no effect. Clients send one to every model, and no model here has more than one.
pub fn check(fields: &Fields) -> Result<(), ApiError> {
    match fields.string("verbosity")? {
        None | Some("" | "low" | "medium" | "high") => Ok(()),
        Some(other) => Err(fields.invalid("verbosity", format_args!("must be low, medium or high, not `{}`", quoted(other)))),
    }
}

//! `verbosity`, and `text.verbosity` of a response.

use http::error::{ApiError, quoted};
use http::fields::Fields;

/// Checks the length that is asked for. Clients send one to every model, and no model here has another length than its own.
pub fn check(fields: &Fields) -> Result<(), ApiError> {
    match fields.string("verbosity")? {
        None | Some("" | "low" | "medium" | "high") => Ok(()),
        Some(other) => Err(fields.invalid("verbosity", format_args!("must be low, medium or high, not `{}`", quoted(other)))),
    }
}

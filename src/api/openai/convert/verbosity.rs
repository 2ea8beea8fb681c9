//! `verbosity`, and `text.verbosity` of a response.

use crate::http::error::{ApiError, quoted};
use crate::http::fields::Fields;

/// Only the default, since no model here has another length of answers.
pub fn check(fields: &Fields) -> Result<(), ApiError> {
    match fields.string("verbosity")? {
        None | Some("medium") => Ok(()),
        Some("low" | "high") => {
            let path = fields.path("verbosity");
            Err(ApiError::unsupported(&path, format!("`{path}` is not supported beside `medium`: ask for the length in a message")))
        }
        Some(other) => Err(fields.invalid("verbosity", format_args!("must be low, medium or high, not `{}`", quoted(other)))),
    }
}

//! Where the fields of a tool are, and what its name may be.

use http::error::ApiError;
use http::fields::Fields;

const MAX_NAME: usize = 64;

/// Where a function's fields are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// In `function`, as in a chat.
    Nested,
    /// Beside `type`, as in `/v1/responses`.
    Flat,
}

impl Shape {
    /// Where the fields of a tool are, which a chat nests in `key`.
    pub fn inner<'a>(self, fields: Fields<'a>, key: &str) -> Result<Fields<'a>, ApiError> {
        match self {
            Self::Nested => Fields::at(fields.required(key, fields.get(key))?, &fields.path(key)),
            Self::Flat => Ok(fields),
        }
    }
}

/// The name by which the model knows what `function` names: a call, or a choice. Its namespace belongs to it.
pub fn full_name(function: &Fields) -> Result<String, ApiError> {
    let namespace = match function.string("namespace")? {
        None | Some("") => None,
        Some(_) => Some(checked(function, "namespace")?),
    };
    Ok(joined(namespace, name(function)?))
}

/// The name by which the model knows a tool.
pub fn joined(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}.{name}"))
}

/// The name of a tool.
pub fn name<'a>(function: &Fields<'a>) -> Result<&'a str, ApiError> {
    checked(function, "name")
}

fn checked<'a>(function: &Fields<'a>, field: &str) -> Result<&'a str, ApiError> {
    let name = function.required(field, function.string(field)?)?;
    let fits = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(fits) {
        return Err(function.invalid(field, format_args!("must be 1 to {MAX_NAME} of a-z, A-Z, 0-9, _, - and .")));
    }
    Ok(name)
}

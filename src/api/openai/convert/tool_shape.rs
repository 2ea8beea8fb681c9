//! The shape of a tool's JSON, and the names that a tool may have.

use http::error::ApiError;
use http::fields::Fields;

const MAX_NAME: usize = 64;

/// The place of a function's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Inside `function`, as in a chat.
    Nested,
    /// Next to `type`, as in `/v1/responses`.
    Flat,
}

impl Shape {
    /// Returns the fields of a tool. In a chat, they are nested in `key`.
    pub fn inner<'a>(self, fields: Fields<'a>, key: &str) -> Result<Fields<'a>, ApiError> {
        match self {
            Self::Nested => Fields::at(fields.required(key, fields.get(key))?, &fields.path(key)),
            Self::Flat => Ok(fields),
        }
    }
}

/// Returns the name by which the model knows the function of a call or a choice. The name includes the namespace.
pub fn full_name(function: &Fields) -> Result<String, ApiError> {
    let namespace = match function.string("namespace")? {
        None | Some("") => None,
        Some(_) => Some(checked(function, "namespace")?),
    };
    Ok(joined(namespace, name(function)?))
}

/// Joins a namespace and a name to the name by which the model knows a tool.
pub fn joined(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}.{name}"))
}

/// Reads the name of a tool.
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

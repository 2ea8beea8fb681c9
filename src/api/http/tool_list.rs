//! Bounds on `tools`, for the dialects other than OpenAI's.

use std::collections::HashSet;

use serde_json::Value;

use super::client_tools::client_tools;
use super::error::{ApiError, quoted};
use super::fields::Fields;
use chat::Tool;

/// The most tools in a request. Agents with several tool servers have hundreds.
const MAX_TOOLS: usize = 512;
/// The largest size of all tools as JSON [bytes].
const MAX_BYTES: usize = 2 << 20;
const MAX_NAME: usize = 128;

/// Reads and checks the name of a tool.
pub fn tool_name<'a>(fields: &Fields<'a>) -> Result<&'a str, ApiError> {
    let name = fields.required("name", fields.string("name")?)?;
    let fits = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(fits) {
        return Err(fields.invalid("name", format_args!("must be 1 to {MAX_NAME} of a-z, A-Z, 0-9, _, - and .")));
    }
    Ok(name)
}

/// Reads a request's tools, except `hosted` ones (see [`client_tools`]). Their names are unique. `read` reads one tool, given all fields
/// and its path.
pub fn tool_list(
    fields: &Fields,
    hosted: &[&str],
    read: impl Fn(&Fields, &Value, &str) -> Result<Tool, ApiError>,
) -> Result<Vec<Tool>, ApiError> {
    fields.check_size("tools", MAX_BYTES)?;
    let list = client_tools(fields, "tools", hosted)?;
    if list.len() > MAX_TOOLS {
        return Err(fields.invalid("tools", format_args!("holds {} tools, and {MAX_TOOLS} are allowed", list.len())));
    }
    let tools: Vec<Tool> = list.iter().map(|(path, value)| read(fields, value, path)).collect::<Result<_, _>>()?;
    let mut names = HashSet::new();
    match tools.iter().find(|tool| !names.insert(tool.name.as_str())) {
        Some(tool) => Err(fields.invalid("tools", format_args!("holds `{}` twice", quoted(&tool.name)))),
        None => Ok(tools),
    }
}

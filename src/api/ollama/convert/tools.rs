//! `tools` and the calls of earlier answers. Ollama declares tools as OpenAI does, and writes arguments as objects.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::http::error::{ApiError, quoted};
use crate::http::fields::{Fields, wrong_type};
use chat::{Call, Declaration, Tool, ToolChoice, Tools};

const MAX_TOOLS: usize = 128;
/// The largest size of all tools as JSON. In bytes.
const MAX_BYTES: usize = 1 << 20;
const MAX_CALLS: usize = 128;
const MAX_NAME: usize = 64;

/// `None`: there are no tools.
pub fn tools(fields: &Fields) -> Result<Option<Tools>, ApiError> {
    let list = fields.array("tools")?.unwrap_or_default();
    if list.len() > MAX_TOOLS {
        return Err(fields.invalid("tools", format_args!("holds {} tools, and {MAX_TOOLS} are allowed", list.len())));
    }
    fields.check_size("tools", MAX_BYTES)?;
    let tools = list.iter().enumerate().map(|(i, value)| tool(value, &format!("tools[{i}]"))).collect::<Result<Vec<_>, _>>()?;
    let mut names = HashSet::new();
    if let Some(tool) = tools.iter().find(|tool| !names.insert(tool.name.as_str())) {
        return Err(fields.invalid("tools", format_args!("holds `{}` twice", quoted(&tool.name))));
    }
    Ok((!tools.is_empty()).then_some(Tools { tools, choice: ToolChoice::Auto, parallel: true }))
}

fn name(function: &Fields) -> Result<String, ApiError> {
    let name = function.required("name", function.string("name")?)?;
    let fits = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(fits) {
        return Err(function.invalid("name", format_args!("must be 1 to {MAX_NAME} of a-z, A-Z, 0-9, _, - and .")));
    }
    Ok(name.to_owned())
}

fn tool(value: &Value, path: &str) -> Result<Tool, ApiError> {
    let fields = Fields::at(value, path)?;
    let function = function_of(&fields)?;
    function.string("description")?;
    let parameters = match function.get("parameters") {
        None => None,
        Some(schema @ Value::Object(_)) => Some(schema.clone()),
        Some(other) => return Err(wrong_type(&function.path("parameters"), "a JSON schema", other)),
    };
    // Templates ask for the type.
    let mut whole = Map::from_iter([("type".to_owned(), "function".into())]);
    whole.extend(value.as_object().cloned().unwrap_or_default());
    Ok(Tool { name: name(&function)?, parameters, declaration: Declaration::Whole(whole), input: None })
}

fn function_of<'a>(fields: &Fields<'a>) -> Result<Fields<'a>, ApiError> {
    match fields.string("type")? {
        None | Some("" | "function") => {}
        Some(other) => return Err(fields.invalid("type", format_args!("is `{}`; only `function` is supported", quoted(other)))),
    }
    Fields::at(fields.required("function", fields.get("function"))?, &fields.path("function"))
}

/// The calls of a message. A call without an id gets the next of `ids`.
pub fn calls(message: &Fields, mut ids: impl FnMut() -> String) -> Result<Vec<Call>, ApiError> {
    let list = message.array("tool_calls")?.unwrap_or_default();
    if list.len() > MAX_CALLS {
        return Err(message.invalid("tool_calls", format_args!("holds more than {MAX_CALLS} calls")));
    }
    let one = |(i, value): (usize, &Value)| {
        let fields = Fields::at(value, &format!("{}[{i}]", message.path("tool_calls")))?;
        let function = function_of(&fields)?;
        let arguments = match function.get("arguments") {
            None => "{}".to_owned(),
            Some(object @ Value::Object(_)) => object.to_string(),
            Some(other) => return Err(wrong_type(&function.path("arguments"), "an object", other)),
        };
        let id = fields.string("id")?.filter(|id| !id.is_empty()).map_or_else(&mut ids, str::to_owned);
        Ok(Call { id, name: name(&function)?, arguments })
    };
    list.iter().enumerate().map(one).collect()
}

//! `tools` and the calls of earlier answers. Ollama declares tools as OpenAI does, and writes arguments as objects.

use serde_json::{Map, Value};

use chat::{Call, Declaration, Tool, ToolChoice, Tools};
use http::error::{ApiError, quoted};
use http::fields::{Fields, wrong_type};
use http::tool_list::{tool_list, tool_name};

const MAX_CALLS: usize = 128;

/// `None`: there are no tools.
pub fn tools(fields: &Fields) -> Result<Option<Tools>, ApiError> {
    let tools = tool_list(fields, &[], tool)?;
    Ok((!tools.is_empty()).then_some(Tools { tools, choice: ToolChoice::Auto, parallel: true }))
}

fn tool(whole: &Fields, value: &Value, path: &str) -> Result<Tool, ApiError> {
    let fields = whole.within(value, path)?;
    let function = function_of(&fields)?;
    function.string("description")?;
    let parameters = match function.get("parameters") {
        None => None,
        Some(schema @ Value::Object(_)) => Some(schema.clone()),
        Some(other) => return Err(wrong_type(&function.path("parameters"), "a JSON schema", other)),
    };
    // Templates ask for the type.
    let mut declared = Map::from_iter([("type".to_owned(), "function".into())]);
    declared.extend(value.as_object().cloned().unwrap_or_default());
    Ok(Tool { name: tool_name(&function)?.to_owned(), parameters, strict: false, declaration: Declaration::Whole(declared), input: None })
}

fn function_of<'a>(fields: &Fields<'a>) -> Result<Fields<'a>, ApiError> {
    match fields.string("type")? {
        None | Some("" | "function") => {}
        Some(other) => return Err(fields.invalid("type", format_args!("is `{}`; only `function` is supported", quoted(other)))),
    }
    fields.within(fields.required("function", fields.get("function"))?, &fields.path("function"))
}

/// The calls of a message. A call without an id gets the next of `ids`.
pub fn calls(message: &Fields, mut ids: impl FnMut() -> String) -> Result<Vec<Call>, ApiError> {
    let list = message.array("tool_calls")?.unwrap_or_default();
    if list.len() > MAX_CALLS {
        return Err(message.invalid("tool_calls", format_args!("holds more than {MAX_CALLS} calls")));
    }
    let one = |(i, value): (usize, &Value)| {
        let fields = message.within(value, &format!("{}[{i}]", message.path("tool_calls")))?;
        let function = function_of(&fields)?;
        let arguments = match function.get("arguments") {
            None => "{}".to_owned(),
            Some(object @ Value::Object(_)) => object.to_string(),
            Some(other) => return Err(wrong_type(&function.path("arguments"), "an object", other)),
        };
        let id = fields.string("id")?.filter(|id| !id.is_empty()).map_or_else(&mut ids, str::to_owned);
        // Templates show whatever name another model has called.
        let name = function.required("name", function.string("name")?)?.to_owned();
        Ok(Call { id, name, arguments })
    };
    list.iter().enumerate().map(one).collect()
}

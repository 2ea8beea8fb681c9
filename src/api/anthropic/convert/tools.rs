//! `tools` and `tool_choice`.

use serde_json::{Map, Value};

use super::cache_control::cache_control;
use chat::{Declaration, Tool, ToolChoice, Tools};
use http::error::{ApiError, quoted};
use http::fields::{Fields, wrong_type};
use http::tool_list::{tool_list, tool_name};

/// How the types begin of tools that Anthropic's servers run, or that its models were trained to call.
pub const HOSTED: [&str; 9] =
    ["bash_", "code_execution_", "computer_", "mcp_toolset", "memory_", "text_editor_", "tool_search_tool_", "web_fetch_", "web_search_"];

/// All tools of a request, whether they may be called or not.
pub fn tools(fields: &Fields) -> Result<Vec<Tool>, ApiError> {
    tool_list(fields, &HOSTED, tool)
}

fn tool(whole: &Fields, value: &Value, path: &str) -> Result<Tool, ApiError> {
    let fields = whole.within(value, path)?;
    match fields.string("type")? {
        None | Some("custom") => {}
        Some(other) => {
            let path = fields.path("type");
            let message = format!(
                "`{path}` is `{}`: this server runs no tools of its own, so send tools with a name and an input_schema",
                quoted(other)
            );
            return Err(ApiError::unsupported(&path, message));
        }
    }
    cache_control(&fields)?;
    let strict = fields.bool("strict")?.unwrap_or(false);
    for flag in ["defer_loading", "eager_input_streaming"] {
        fields.bool(flag)?;
    }
    check_callers(&fields)?;
    let name = tool_name(&fields)?.to_owned();
    let schema = match fields.required("input_schema", fields.get("input_schema"))? {
        schema @ Value::Object(_) => schema.clone(),
        other => return Err(wrong_type(&fields.path("input_schema"), "a JSON schema of an object", other)),
    };
    let mut function = Map::new();
    function.insert("name".into(), name.as_str().into());
    if let Some(description) = description(&fields)? {
        function.insert("description".into(), description.into());
    }
    function.insert("parameters".into(), schema.clone());
    Ok(Tool { name, parameters: Some(schema), strict, declaration: Declaration::Function(function), input: None })
}

/// The description, with the examples of the input behind it: templates show no examples.
fn description(fields: &Fields) -> Result<Option<String>, ApiError> {
    let mut text = fields.string("description")?.map(str::to_owned);
    let examples = fields.array("input_examples")?.unwrap_or_default();
    if let Some(wrong) = examples.iter().find(|example| !example.is_object()) {
        return Err(wrong_type(&fields.path("input_examples"), "a list of objects", wrong));
    }
    if !examples.is_empty() {
        let lines: Vec<String> = examples.iter().map(Value::to_string).collect();
        let text = text.get_or_insert_default();
        let space = if text.is_empty() { "" } else { "\n" };
        text.extend([space, "Examples of its input:\n", &lines.join("\n")]);
    }
    Ok(text)
}

/// Only the model itself calls tools.
fn check_callers(fields: &Fields) -> Result<(), ApiError> {
    let callers = fields.array("allowed_callers")?.unwrap_or_default();
    match callers.iter().find(|caller| caller.as_str() != Some("direct")) {
        Some(_) => {
            let path = fields.path("allowed_callers");
            Err(ApiError::unsupported(&path, format!("`{path}` may only hold `direct`: no code is run here that could call tools")))
        }
        None => Ok(()),
    }
}

/// The tools that the model is told of. `None`: none may be called.
pub fn choice(fields: &Fields, tools: Vec<Tool>) -> Result<Option<Tools>, ApiError> {
    let (mut choice, mut parallel) = (Some(ToolChoice::Auto), true);
    if let Some(value) = fields.get("tool_choice") {
        let inner = fields.within(value, "tool_choice")?;
        parallel = !inner.bool("disable_parallel_tool_use")?.unwrap_or(false);
        choice = read_choice(&inner, &tools)?;
        if tools.is_empty() && choice.as_ref().is_some_and(|choice| *choice != ToolChoice::Auto) {
            return Err(fields.invalid("tool_choice", "asks for a call, but there are no `tools`"));
        }
    }
    Ok(choice.filter(|_| !tools.is_empty()).map(|choice| Tools { tools, choice, parallel }))
}

fn read_choice(inner: &Fields, tools: &[Tool]) -> Result<Option<ToolChoice>, ApiError> {
    match inner.required("type", inner.string("type")?)? {
        "auto" => Ok(Some(ToolChoice::Auto)),
        "any" => Ok(Some(ToolChoice::Required)),
        "none" => Ok(None),
        "tool" => {
            let name = tool_name(inner)?;
            match tools.is_empty() || tools.iter().any(|tool| tool.name == name) {
                true => Ok(Some(ToolChoice::Named(name.to_owned()))),
                false => Err(inner.invalid("name", format_args!("is `{name}`, which is not among `tools`"))),
            }
        }
        other => Err(inner.invalid("type", format_args!("must be auto, any, tool or none, not `{}`", quoted(other)))),
    }
}

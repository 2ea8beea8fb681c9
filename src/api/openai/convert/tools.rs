//! `tools`, `tool_choice`, `parallel_tool_calls`, and the calls of earlier messages.

use std::collections::HashSet;

use serde_json::Value;

use super::tool_shape::{Shape, full_name, name};
use super::{custom_tools, offered_tools};
use chat::{Call, Declaration, Tool, ToolChoice, Tools};
use http::error::{ApiError, quoted};
use http::fields::{Fields, wrong_type};
use http::offered::Offer;

/// Agents with several servers of tools have hundreds.
const MAX_TOOLS: usize = 512;
/// The largest size of all tools as JSON. A tool is kept as a tree and as a declaration, and a response repeats it. In bytes.
const MAX_BYTES: usize = 1 << 20;
const MAX_CALLS: usize = 128;

/// The tools of a list, and their names.
fn list<'a>(fields: &Fields, field: &str, shape: Shape, tools: &'a mut Vec<Tool>) -> Result<HashSet<&'a str>, ApiError> {
    fields.check_size(field, MAX_BYTES)?;
    let list = offered_tools::found(fields, field, shape)?;
    if list.len() > MAX_TOOLS {
        return Err(fields.invalid(field, format_args!("holds {} tools, and {MAX_TOOLS} are allowed", list.len())));
    }
    let read = |found: offered_tools::Found| {
        let tool = tool(found.value, &found.path, shape)?;
        Ok::<_, ApiError>(match found.namespace {
            Some(namespace) => namespace.adopt(tool),
            None => tool,
        })
    };
    *tools = list.into_iter().map(read).collect::<Result<_, _>>()?;
    let mut names = HashSet::new();
    match tools.iter().find(|tool| !names.insert(tool.name.as_str())) {
        Some(tool) => Err(fields.invalid(field, format_args!("holds `{}` twice", quoted(&tool.name)))),
        None => Ok(names),
    }
}

/// Whether the request has `functions`, the older form of `tools`.
pub fn is_legacy(fields: &Fields) -> Result<bool, ApiError> {
    let has = |name: &str| Ok::<_, ApiError>(fields.array(name)?.is_some_and(|list| !list.is_empty()));
    let legacy = has("functions")?;
    match legacy && has("tools")? {
        true => Err(fields.invalid("functions", "cannot be combined with `tools`: it is the older form of the same")),
        false => Ok(legacy),
    }
}

/// `functions` and `function_call`, the older form. An answer makes one call.
pub fn functions(fields: &Fields) -> Result<Option<Tools>, ApiError> {
    let mut tools = Vec::new();
    let names = list(fields, "functions", Shape::Flat, &mut tools)?;
    let choice = match fields.get("function_call") {
        None => Some(ToolChoice::Auto),
        Some(Value::String(mode)) if mode == "auto" => Some(ToolChoice::Auto),
        Some(Value::String(mode)) if mode == "none" => None,
        Some(value @ Value::Object(_)) => {
            let named = Fields::at(value, "function_call")?;
            let name = name(&named)?;
            if !names.contains(name) {
                return Err(fields.invalid("function_call", format_args!("names `{name}`, which is not among `functions`")));
            }
            Some(ToolChoice::Named(name.to_owned()))
        }
        Some(Value::String(other)) => {
            return Err(fields.invalid("function_call", format_args!("must be none, auto or a function, not `{}`", quoted(other))));
        }
        Some(other) => return Err(wrong_type("function_call", "a string or an object", other)),
    };
    Ok(choice.filter(|_| !tools.is_empty()).map(|choice| Tools { tools, choice, parallel: false }))
}

/// `None`: there are no tools, or none may be called.
pub fn tools(fields: &Fields, shape: Shape) -> Result<Option<Tools>, ApiError> {
    let mut tools = Vec::new();
    let names = list(fields, "tools", shape, &mut tools)?;
    let parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    let choice = choice(fields, &names, shape)?;
    Ok(choice.filter(|_| !tools.is_empty()).map(|choice| Tools { tools, choice, parallel }))
}

fn tool(value: &Value, path: &str, shape: Shape) -> Result<Tool, ApiError> {
    let fields = Fields::at(value, path)?;
    if fields.string("type")? == Some("custom") {
        return custom_tools::tool(fields, shape);
    }
    let function = function_of(fields, shape)?;
    let name = name(&function)?.to_owned();
    function.string("description")?;
    let strict = function.bool("strict")?.unwrap_or(false);
    let parameters = match function.get("parameters") {
        None => None,
        Some(value @ Value::Object(_)) => Some(value.clone()),
        Some(other) => return Err(wrong_type(&function.path("parameters"), "a JSON schema", other)),
    };
    let own = value.as_object().cloned().unwrap_or_default();
    let declaration = match shape {
        Shape::Nested => Declaration::Whole(own),
        Shape::Flat => Declaration::Function(own.into_iter().filter(|(key, _)| key != "type").collect()),
    };
    Ok(Tool { name, parameters, strict, declaration, input: None })
}

/// The function of a tool, a call or a choice, or what describes a custom tool in its place.
fn function_of<'a>(fields: Fields<'a>, shape: Shape) -> Result<Fields<'a>, ApiError> {
    let key = match fields.string("type")? {
        None | Some("function") => "function",
        Some("custom") => "custom",
        Some(other) => {
            return Err(fields.invalid("type", format_args!("is `{}`; only `function` and `custom` are supported", quoted(other))));
        }
    };
    shape.inner(fields, key)
}

/// `None`: no tool may be called.
fn choice(fields: &Fields, names: &HashSet<&str>, shape: Shape) -> Result<Option<ToolChoice>, ApiError> {
    let needs_tools = |choice| match names.is_empty() {
        true => Err(fields.invalid("tool_choice", "asks for a call, but there are no `tools`")),
        false => Ok(Some(choice)),
    };
    match fields.get("tool_choice") {
        None => Ok(Some(ToolChoice::Auto)),
        Some(Value::String(mode)) => match mode.as_str() {
            "none" => Ok(None),
            "auto" => Ok(Some(ToolChoice::Auto)),
            "required" | "any" => needs_tools(ToolChoice::Required),
            other => {
                Err(fields.invalid("tool_choice", format_args!("must be none, auto, required or a function, not `{}`", quoted(other))))
            }
        },
        Some(value @ Value::Object(_)) if value["type"] == "allowed_tools" => {
            needs_tools(allowed(&Fields::at(value, "tool_choice")?, names, shape)?)
        }
        Some(value @ Value::Object(_)) => {
            let named = function_of(Fields::at(value, "tool_choice")?, shape)?;
            let name = full_name(&named)?;
            if !names.contains(name.as_str()) {
                return Err(fields.invalid("tool_choice", format_args!("names `{name}`, which is not among `tools`")));
            }
            needs_tools(ToolChoice::Named(name))
        }
        Some(other) => Err(wrong_type("tool_choice", "a string or an object", other)),
    }
}

/// `allowed_tools`: some of the tools may be called.
fn allowed(choice: &Fields, names: &HashSet<&str>, shape: Shape) -> Result<ToolChoice, ApiError> {
    let nested = match shape {
        Shape::Nested => choice.get("allowed_tools").map(|value| Fields::at(value, &choice.path("allowed_tools"))).transpose()?,
        Shape::Flat => None,
    };
    let fields = nested.as_ref().unwrap_or(choice);
    let required = match fields.required("mode", fields.string("mode")?)? {
        "auto" => false,
        "required" => true,
        other => return Err(fields.invalid("mode", format_args!("must be auto or required, not `{}`", quoted(other)))),
    };
    fields.required("tools", fields.array("tools")?)?;
    let list = offered_tools::offers(fields, "tools", shape)?;
    if list.is_empty() || list.len() > MAX_TOOLS {
        return Err(fields.invalid("tools", format_args!("must hold 1 to {MAX_TOOLS} tools")));
    }
    let one = |(path, value): &Offer| {
        let named = Fields::at(value, path)?;
        let nested = if named.has("function") || named.has("custom") { Shape::Nested } else { Shape::Flat };
        let function = function_of(named, nested)?;
        let name = full_name(&function)?;
        match names.contains(name.as_str()) {
            true => Ok(name),
            false => Err(function.invalid("name", format_args!("is `{name}`, which is not among `tools`"))),
        }
    };
    Ok(ToolChoice::Among { names: list.iter().map(one).collect::<Result<_, _>>()?, required })
}

/// A call of an earlier answer. Its arguments are not checked: they are what a model wrote.
pub fn call(id: &str, function: &Fields) -> Result<Call, ApiError> {
    let arguments = match function.get("arguments") {
        None => "{}".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(object @ Value::Object(_)) => object.to_string(),
        Some(other) => return Err(wrong_type(&function.path("arguments"), "a JSON object as a string", other)),
    };
    Ok(Call { id: id.to_owned(), name: full_name(function)?, arguments })
}

/// The calls of a message.
pub fn calls(message: &Fields) -> Result<Vec<Call>, ApiError> {
    let list = message.array("tool_calls")?.unwrap_or_default();
    if list.len() > MAX_CALLS {
        return Err(message.invalid("tool_calls", format_args!("holds more than {MAX_CALLS} calls")));
    }
    let one = |(i, value): (usize, &Value)| {
        let fields = Fields::at(value, &format!("{}[{i}]", message.path("tool_calls")))?;
        let id = fields.string("id")?.unwrap_or_default();
        match fields.string("type")? {
            Some("custom") => custom_tools::call(id, &Shape::Nested.inner(fields, "custom")?),
            _ => call(id, &function_of(fields, Shape::Nested)?),
        }
    };
    list.iter().enumerate().map(one).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(mut body: Value) -> Result<Option<Tools>, ApiError> {
        if body.get("tools").is_none() {
            body["tools"] = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
                {"type": "function", "function": {"name": "g", "strict": true, "description": "d"}}]);
        }
        tools(&Fields::root(&body).unwrap(), Shape::Nested)
    }

    #[test]
    fn the_two_shapes_mean_the_same() {
        let nested = json!({"tools": [{"type": "function", "function": {"name": "f", "strict": true, "parameters": {"type": "object"}}}],
            "tool_choice": {"type": "function", "function": {"name": "f"}}});
        let flat = json!({"tools": [{"type": "function", "name": "f", "strict": true, "parameters": {"type": "object"}}],
            "tool_choice": {"type": "function", "name": "f"}});
        let read = |body: &Value, shape| tools(&Fields::root(body).unwrap(), shape).unwrap().unwrap();
        let (nested, flat) = (read(&nested, Shape::Nested), read(&flat, Shape::Flat));
        assert_eq!((&nested.choice, &nested.tools[0].parameters), (&flat.choice, &flat.tools[0].parameters));
        let Declaration::Whole(whole) = &nested.tools[0].declaration else { panic!("{nested:?}") };
        let Declaration::Function(function) = &flat.tools[0].declaration else { panic!("{flat:?}") };
        assert_eq!(whole["function"].to_string(), Value::Object(function.clone()).to_string(), "in the client's order of keys");
    }

    #[test]
    fn each_form_of_a_choice_is_understood() {
        for (value, choice) in [
            (json!(null), ToolChoice::Auto),
            (json!("auto"), ToolChoice::Auto),
            (json!("required"), ToolChoice::Required),
            (json!({"type": "function", "function": {"name": "g"}}), ToolChoice::Named("g".into())),
        ] {
            let tools = parse(json!({"tool_choice": value, "parallel_tool_calls": false})).unwrap().unwrap();
            assert_eq!((tools.choice, tools.parallel, tools.tools.len()), (choice, false, 2));
        }
        assert_eq!(parse(json!({"tool_choice": "none"})).unwrap(), None);
        assert_eq!(parse(json!({"tools": []})).unwrap(), None);
        assert!(parse(json!({})).unwrap().unwrap().parallel);
    }

    #[test]
    fn the_error_names_the_field() {
        let function = |function: Value| json!({"tools": [{"type": "function", "function": function}]});
        for (body, param) in [
            (json!({"tools": {}}), "tools"),
            (json!({"tools": [3]}), "tools[0]"),
            (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
            (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
            (function(json!({})), "tools[0].function.name"),
            (function(json!({"name": "a b"})), "tools[0].function.name"),
            (function(json!({"name": "a", "parameters": []})), "tools[0].function.parameters"),
            (function(json!({"name": "a", "strict": 3})), "tools[0].function.strict"),
            (json!({"tools": [{"function": {"name": "a"}}, {"function": {"name": "a"}}]}), "tools"),
            (json!({"tool_choice": "maybe"}), "tool_choice"),
            (json!({"tool_choice": {"type": "function", "function": {"name": "h"}}}), "tool_choice"),
            (json!({"tools": [], "tool_choice": "required"}), "tool_choice"),
            (json!({"parallel_tool_calls": 1}), "parallel_tool_calls"),
            (function(json!({"name": "a", "more": "x".repeat(MAX_BYTES)})), "tools"),
        ] {
            assert_eq!(parse(body.clone()).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }

    #[test]
    fn calls_of_earlier_messages_are_read() {
        let read = |message: Value| calls(&Fields::at(&message, "messages[1]").unwrap());
        let call =
            |arguments: Value| json!({"tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": arguments}}]});
        let due = [Call { id: "x".into(), name: "f".into(), arguments: "{\"a\":1}".into() }];
        assert_eq!(read(call(json!("{\"a\":1}"))).unwrap(), due);
        assert_eq!(read(call(json!({"a": 1}))).unwrap(), due);
        assert_eq!(read(json!({"tool_calls": []})).unwrap(), []);
        assert_eq!(read(call(json!(3))).unwrap_err().param.as_deref(), Some("messages[1].tool_calls[0].function.arguments"));
    }
}

//! `input` of `/v1/responses`: items become messages for a template.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::super::error::{ApiError, quoted};
use super::super::fields::{Fields, wrong_type};
use super::tools;

const MAX_ITEMS: usize = 16_384;
const MAX_PARTS: usize = 1024;

/// What one answer was made of, reasoning, text and calls, is one message again. `stored` finds an item by its id.
pub fn messages(fields: &Fields, stored: &dyn Fn(&str) -> Option<Value>) -> Result<Vec<Value>, ApiError> {
    let items = match fields.required("input", fields.get("input"))? {
        Value::String(text) => return Ok(vec![json!({"role": "user", "content": text})]),
        Value::Array(items) => items,
        other => return Err(wrong_type("input", "a string or a list of items", other)),
    };
    if items.is_empty() || items.len() > MAX_ITEMS {
        return Err(fields.invalid("input", format_args!("must hold 1 to {MAX_ITEMS} items")));
    }
    let mut messages = Vec::with_capacity(items.len());
    // Are the last items an answer's?
    let mut answering = false;
    let mut referred = HashSet::new();
    for (i, item) in items.iter().enumerate() {
        let path = format!("input[{i}]");
        let found = reference(&Fields::at(item, &path)?, stored, &mut referred)?;
        let fields = Fields::at(found.as_ref().unwrap_or(item), &path)?;
        match fields.string("type")? {
            None | Some("message") => {
                let (role, text) = (role(&fields)?, texts(&fields, "content")?);
                let is_answer = role == "assistant";
                match messages.last_mut().filter(|last: &&mut Value| is_answer && answering && last["content"] == "") {
                    Some(last) if last.get("tool_calls").is_none() => last["content"] = text.into(),
                    _ => messages.push(json!({"role": role, "content": text})),
                }
                answering = is_answer;
            }
            Some("reasoning") => {
                let text = reasoning(&fields)?;
                messages.push(json!({"role": "assistant", "content": "", "reasoning_content": text}));
                answering = true;
            }
            Some("function_call") => {
                let id = fields.required("call_id", fields.string("call_id")?)?;
                let call = tools::call(id, &fields)?;
                if !answering {
                    messages.push(json!({"role": "assistant", "content": ""}));
                }
                let last = messages.last_mut().map(|last| &mut last["tool_calls"]);
                match last {
                    Some(Value::Array(calls)) => calls.push(call),
                    Some(none) => *none = json!([call]),
                    None => {}
                }
                answering = true;
            }
            Some("function_call_output") => {
                let id = fields.required("call_id", fields.string("call_id")?)?;
                messages.push(json!({"role": "tool", "tool_call_id": id, "content": texts(&fields, "output")?}));
                answering = false;
            }
            Some(kind) => {
                let path = fields.path("type");
                let kinds = "messages, function calls, their outputs and reasoning";
                return Err(ApiError::unsupported(&path, format!("`{path}` is `{}`; only {kinds} are supported", quoted(kind))));
            }
        }
    }
    Ok(messages)
}

/// The item that an `item_reference` names; each but once, so that a short request stands for no more than what is stored.
fn reference<'a>(
    fields: &Fields<'a>,
    stored: &dyn Fn(&str) -> Option<Value>,
    referred: &mut HashSet<&'a str>,
) -> Result<Option<Value>, ApiError> {
    if fields.string("type")? != Some("item_reference") {
        return Ok(None);
    }
    let id = fields.required("id", fields.string("id")?)?;
    if !referred.insert(id) {
        return Err(fields.invalid("id", format_args!("names `{}` a second time", quoted(id))));
    }
    let gone = || {
        fields.invalid(
            "id",
            format_args!("names `{}`, which is not there: its response was not stored, was deleted, or is too old", quoted(id)),
        )
    };
    stored(id).map(Some).ok_or_else(gone)
}

fn role<'a>(fields: &Fields<'a>) -> Result<&'a str, ApiError> {
    match fields.required("role", fields.string("role")?)? {
        "developer" => Ok("system"),
        role @ ("system" | "user" | "assistant") => Ok(role),
        other => Err(fields.invalid("role", format_args!("must be system, developer, user or assistant, not `{}`", quoted(other)))),
    }
}

/// A string or a list of text parts.
fn texts(fields: &Fields, name: &str) -> Result<String, ApiError> {
    match fields.required(name, fields.get(name))? {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => Ok(parts_of(fields, name, parts, &["input_text", "output_text", "text"])?.join("\n")),
        other => Err(wrong_type(&fields.path(name), "a string or a list of parts", other)),
    }
}

/// What a model thought is there in plain text or not at all; a summary is none of it.
fn reasoning(fields: &Fields) -> Result<String, ApiError> {
    if fields.get("encrypted_content").is_some() {
        let path = fields.path("encrypted_content");
        return Err(ApiError::unsupported(&path, format!("`{path}` is not supported: nothing here is encrypted")));
    }
    Ok(parts_of(fields, "content", fields.array("content")?.unwrap_or_default(), &["reasoning_text"])?.concat())
}

fn parts_of(fields: &Fields, name: &str, parts: &[Value], kinds: &[&str]) -> Result<Vec<String>, ApiError> {
    if parts.len() > MAX_PARTS {
        return Err(fields.invalid(name, format_args!("holds more than {MAX_PARTS} parts")));
    }
    let text = |(i, value): (usize, &Value)| {
        let part = Fields::at(value, &format!("{}[{i}]", fields.path(name)))?;
        match part.required("type", part.string("type")?)? {
            kind if kinds.contains(&kind) => part.required("text", part.string("text")?).map(str::to_owned),
            other => Err(part.invalid("type", format_args!("is `{}`; only text is supported", quoted(other)))),
        }
    };
    parts.iter().enumerate().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(items: Value) -> Result<Vec<Value>, ApiError> {
        let stored = |id: &str| (id == "msg_1").then(|| json!({"type": "message", "id": id, "role": "assistant", "content": "stored"}));
        messages(&Fields::root(&json!({"input": items})).unwrap(), &stored)
    }

    #[test]
    fn items_become_messages() {
        let items = json!([
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
             "content": [{"type": "output_text", "text": "c", "annotations": []}]},
            {"role": "assistant", "content": "d"}, {"type": "item_reference", "id": "msg_1"}]);
        let expected = [("system", "Be brief."), ("user", "a\nb"), ("assistant", "c"), ("assistant", "d"), ("assistant", "stored")];
        let expected = expected.map(|(role, content)| json!({"role": role, "content": content}));
        assert_eq!(of(items).unwrap(), expected);
    }

    #[test]
    fn an_answer_is_one_message_again() {
        let call = |id: &str| json!({"type": "function_call", "id": "fc_1", "call_id": id, "name": "f", "arguments": "{}"});
        let result = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": [{"type": "input_text", "text": "r"}]});
        let thought = json!({"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]});
        let text = json!({"type": "message", "role": "assistant", "content": "t"});
        let shown = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
        let tool = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "r"});
        let user = json!({"role": "user", "content": "u"});
        let items = json!([user, thought, text, call("a"), call("b"), result("a"), result("b"), call("c"), result("c"), text]);
        let due = json!([user, {"role": "assistant", "content": "t", "reasoning_content": "hm", "tool_calls": [shown("a"), shown("b")]},
            tool("a"), tool("b"), {"role": "assistant", "content": "", "tool_calls": [shown("c")]}, tool("c"),
            {"role": "assistant", "content": "t"}]);
        assert_eq!(Value::Array(of(items).unwrap()), due);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let user = |content: Value| json!([{"role": "user", "content": content}]);
        for (items, param) in [
            (json!(null), "input"),
            (json!([]), "input"),
            (json!(5), "input"),
            (json!([{"role": "wizard", "content": "x"}]), "input[0].role"),
            (json!([{"type": "item_reference", "id": "x"}]), "input[0].id"),
            (json!([{"type": "item_reference", "id": "msg_1"}, {"type": "item_reference", "id": "msg_1"}]), "input[1].id"),
            (json!([{"type": "computer_call", "id": "x"}]), "input[0].type"),
            (json!([{"type": "function_call", "name": "f"}]), "input[0].call_id"),
            (json!([{"type": "function_call", "call_id": "a"}]), "input[0].name"),
            (json!([{"type": "function_call", "call_id": "a", "name": "f", "arguments": 3}]), "input[0].arguments"),
            (json!([{"type": "function_call_output", "call_id": "a"}]), "input[0].output"),
            (json!([{"type": "reasoning", "summary": [], "encrypted_content": "x"}]), "input[0].encrypted_content"),
            (user(json!(5)), "input[0].content"),
            (user(json!([{"type": "input_image", "image_url": "x"}])), "input[0].content[0].type"),
        ] {
            assert_eq!(of(items.clone()).unwrap_err().param.as_deref(), Some(param), "{items}");
        }
    }
}

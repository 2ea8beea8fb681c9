//! Conversion of `input` of `/v1/responses`: its items become messages.

use std::collections::HashSet;

use serde_json::Value;

use super::{custom_tools, tools};
use chat::{Message, Part, Role};
use http::error::{ApiError, quoted};
use http::fields::{Fields, wrong_type};
use http::omitted_content;
use http::pictures::{self, PicturePlace};

const MAX_ITEMS: usize = 16_384;
const MAX_PARTS: usize = 1024;

/// Converts the items to messages. The items of one answer (reasoning, text and calls) become one message again. `stored` finds an item by
/// its id.
pub fn messages(fields: &Fields, stored: &dyn Fn(&str) -> Option<Value>) -> Result<Vec<Message>, ApiError> {
    let goes_on = ["previous_response_id", "conversation", "instructions"].iter().any(|name| fields.get(name).is_some());
    let items = match fields.get("input") {
        None if goes_on => return Ok(Vec::new()),
        Some(Value::Array(items)) if items.is_empty() && goes_on => return Ok(Vec::new()),
        Some(Value::String(text)) => return Ok(vec![Message::of_text(Role::User, text.as_str())]),
        Some(Value::Array(items)) => items,
        Some(other) => return Err(wrong_type("input", "a string or a list of items", other)),
        None => return fields.required("input", None),
    };
    if items.is_empty() || items.len() > MAX_ITEMS {
        return Err(fields.invalid("input", format_args!("must hold 1 to {MAX_ITEMS} items")));
    }
    let messages = of_items(items, "input", stored)?;
    match messages.is_empty() && !goes_on {
        true => Err(fields.invalid("input", "holds only items about tools that another server has run")),
        false => Ok(messages),
    }
}

/// Type prefixes of items about tools that OpenAI's servers ran, or that its models were trained to call. A conversation that began there
/// continues without these items.
pub const ELSEWHERE: [&str; 11] = [
    "apply_patch_call",
    "code_interpreter_call",
    "computer_call",
    "file_search_call",
    "image_generation_call",
    "local_shell_call",
    "mcp_",
    "program",
    "shell_call",
    "tool_search_",
    "web_search_call",
];

/// Converts a list of items to messages. `path` is the list's path, for errors.
pub fn of_items(items: &[Value], path: &str, stored: &dyn Fn(&str) -> Option<Value>) -> Result<Vec<Message>, ApiError> {
    let mut messages: Vec<Message> = Vec::with_capacity(items.len());
    // Whether the last items belong to an answer.
    let mut answering = false;
    let mut referred = HashSet::new();
    for (i, item) in items.iter().enumerate() {
        let path = format!("{path}[{i}]");
        let found = reference(&Fields::at(item, &path)?, stored, &mut referred)?;
        let fields = Fields::at(found.as_ref().unwrap_or(item), &path)?;
        match fields.string("type")? {
            None | Some("message") => {
                let role = role(&fields)?;
                let parts = parts(&fields, "content", (role == Role::User).then_some(PicturePlace::Message))?;
                let is_answer = role == Role::Assistant;
                match messages.last_mut().filter(|last| is_answer && answering && last.calls.is_empty() && last.text().is_empty()) {
                    Some(last) => last.parts = parts,
                    None => messages.push(Message { parts, ..Message::new(role) }),
                }
                answering = is_answer;
            }
            Some("reasoning") => {
                messages.push(Message { reasoning: Some(reasoning(&fields)?), ..Message::new(Role::Assistant) });
                answering = true;
            }
            Some(kind @ ("function_call" | "custom_tool_call")) => {
                let id = fields.required("call_id", fields.string("call_id")?)?;
                let call = if kind == "function_call" { tools::call(id, &fields)? } else { custom_tools::call(id, &fields)? };
                match messages.last_mut().filter(|_| answering) {
                    Some(last) => last.calls.push(call),
                    None => messages.push(Message { calls: vec![call], ..Message::new(Role::Assistant) }),
                }
                answering = true;
            }
            Some("function_call_output" | "custom_tool_call_output") => {
                let id = fields.required("call_id", fields.string("call_id")?)?;
                messages.push(Message {
                    parts: parts(&fields, "output", Some(PicturePlace::Result))?,
                    call_id: Some(id.to_owned()),
                    ..Message::new(Role::Tool)
                });
                answering = false;
            }
            Some(kind) if ELSEWHERE.iter().any(|begin| kind.starts_with(begin)) => {}
            Some(kind) => {
                let path = fields.path("type");
                let kinds = "messages, calls of functions and custom tools, their outputs and reasoning";
                return Err(ApiError::unsupported(&path, format!("`{path}` is `{}`; only {kinds} are supported", quoted(kind))));
            }
        }
    }
    Ok(messages)
}

/// Returns the item that an `item_reference` names. An item can be named only once, so that a short request cannot become a huge prompt.
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
            format_args!("names `{}`, which does not exist: its response was not stored, was deleted, or is too old", quoted(id)),
        )
    };
    stored(id).map(Some).ok_or_else(gone)
}

fn role(fields: &Fields) -> Result<Role, ApiError> {
    match fields.required("role", fields.string("role")?)? {
        "system" | "developer" => Ok(Role::System),
        "user" => Ok(Role::User),
        "assistant" => Ok(Role::Assistant),
        other => Err(fields.invalid("role", format_args!("must be system, developer, user or assistant, not `{}`", quoted(other)))),
    }
}

/// Reads a string or a list of parts. `place`: where the parts stand, if pictures may stand there.
fn parts(fields: &Fields, name: &str, place: Option<PicturePlace>) -> Result<Vec<Part>, ApiError> {
    match fields.required(name, fields.get(name))? {
        Value::String(text) => Ok(vec![Part::Text(text.clone())]),
        Value::Array(parts) => parts_of(fields, name, parts, &["input_text", "output_text", "text", "refusal"], place),
        other => Err(wrong_type(&fields.path(name), "a string or a list of parts", other)),
    }
}

/// Returns the text of a reasoning item, without its summary. Content that another server has encrypted is left out, because only that
/// server can read it.
fn reasoning(fields: &Fields) -> Result<String, ApiError> {
    fields.string("encrypted_content")?;
    let parts = parts_of(fields, "content", fields.array("content")?.unwrap_or_default(), &["reasoning_text"], None)?;
    Ok(parts.iter().filter_map(Part::as_text).collect())
}

fn parts_of(fields: &Fields, name: &str, parts: &[Value], texts: &[&str], place: Option<PicturePlace>) -> Result<Vec<Part>, ApiError> {
    if parts.len() > MAX_PARTS {
        return Err(fields.invalid(name, format_args!("holds more than {MAX_PARTS} parts")));
    }
    let one = |(i, value): (usize, &Value)| {
        let part = Fields::at(value, &format!("{}[{i}]", fields.path(name)))?;
        match (part.required("type", part.string("type")?)?, place) {
            (kind, _) if texts.contains(&kind) => {
                let key = if kind == "refusal" { kind } else { "text" };
                Ok(Part::Text(part.required(key, part.string(key)?)?.to_owned()))
            }
            ("input_image" | "image_url", Some(place)) if part.get("image_url").is_none() && part.get("file_id").is_some() => {
                Ok(pictures::of_nothing(&part.path("file_id"), "names a file, and stored files are no pictures: send `image_url`", place))
            }
            ("input_image" | "image_url", Some(place)) => pictures::of_url(&part, "image_url", place),
            (other, place) => match omitted_content::in_result(other).filter(|_| place == Some(PicturePlace::Result)) {
                Some(text) => Ok(Part::Text(text.to_owned())),
                None => Err(part.invalid("type", format_args!("is `{}`; only text is supported here", quoted(other)))),
            },
        }
    };
    parts.iter().enumerate().map(one).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use chat::Call;

    fn of(items: Value) -> Result<Vec<Message>, ApiError> {
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
        let messages = of(items).unwrap();
        let texts: Vec<_> = messages.iter().map(|message| (message.role, message.text())).collect();
        let due = [
            (Role::System, "Be brief."),
            (Role::User, "a\nb"),
            (Role::Assistant, "c"),
            (Role::Assistant, "d"),
            (Role::Assistant, "stored"),
        ];
        assert_eq!(texts, due.map(|(role, text)| (role, text.to_owned())));
    }

    #[test]
    fn pictures_are_left_out_of_results_alone() {
        let picture = json!({"type": "input_image", "image_url": "data:image/png;base64,AA=="});
        let result = |output: Value| json!([{"type": "function_call_output", "call_id": "c", "output": output}]);
        let messages = of(result(json!([{"type": "input_text", "text": "a"}, picture, {"type": "input_file", "file_id": "f"}]))).unwrap();
        let shown = messages[0].clone().without_pictures().unwrap().text();
        assert_eq!(shown, format!("a\n{}\n{}", omitted_content::IMAGE, omitted_content::FILE));
        assert_eq!(of(result(json!([{"type": "input_audio"}]))).unwrap_err().param.as_deref(), Some("input[0].output[0].type"));
        let asked = of(json!([{"role": "user", "content": [picture]}])).unwrap();
        let refused = asked[0].clone().without_pictures().unwrap_err();
        assert_eq!(&*refused.field, "input[0].content[0].image_url");
        let answer = of(json!([{"role": "assistant", "content": [picture]}]));
        assert_eq!(answer.unwrap_err().param.as_deref(), Some("input[0].content[0].type"));
    }

    #[test]
    fn the_items_of_one_answer_become_one_message() {
        let call = |id: &str| json!({"type": "function_call", "id": "fc_1", "call_id": id, "name": "f", "arguments": "{}"});
        let result = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": [{"type": "input_text", "text": "r"}]});
        let thought = json!({"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]});
        let text = json!({"type": "message", "role": "assistant", "content": "t"});
        let shown = |id: &str| Call { id: id.into(), name: "f".into(), arguments: "{}".into() };
        let tool = |id: &str| Message { call_id: Some(id.into()), ..Message::of_text(Role::Tool, "r") };
        let user = json!({"role": "user", "content": "u"});
        let items = json!([user, thought, text, call("a"), call("b"), result("a"), result("b"), call("c"), result("c"), text]);
        let answer = Message::of_text(Role::Assistant, "t");
        let due = [
            Message::of_text(Role::User, "u"),
            Message { reasoning: Some("hm".into()), calls: vec![shown("a"), shown("b")], ..answer.clone() },
            tool("a"),
            tool("b"),
            Message { calls: vec![shown("c")], ..Message::new(Role::Assistant) },
            tool("c"),
            answer,
        ];
        assert_eq!(of(items).unwrap(), due);
    }

    #[test]
    fn the_error_names_the_field() {
        let user = |content: Value| json!([{"role": "user", "content": content}]);
        for (items, param) in [
            (json!(null), "input"),
            (json!([]), "input"),
            (json!(5), "input"),
            (json!([{"role": "wizard", "content": "x"}]), "input[0].role"),
            (json!([{"type": "item_reference", "id": "x"}]), "input[0].id"),
            (json!([{"type": "item_reference", "id": "msg_1"}, {"type": "item_reference", "id": "msg_1"}]), "input[1].id"),
            (json!([{"type": "computer_call", "id": "x"}]), "input"),
            (json!([{"type": "compaction", "id": "x"}]), "input[0].type"),
            (json!([{"type": "function_call", "name": "f"}]), "input[0].call_id"),
            (json!([{"type": "function_call", "call_id": "a"}]), "input[0].name"),
            (json!([{"type": "function_call", "call_id": "a", "name": "f", "arguments": 3}]), "input[0].arguments"),
            (json!([{"type": "function_call_output", "call_id": "a"}]), "input[0].output"),
            (json!([{"type": "reasoning", "summary": [], "encrypted_content": 5}]), "input[0].encrypted_content"),
            (user(json!(5)), "input[0].content"),
            (user(json!([{"type": "input_image", "image_url": "x", "detail": "y"}])), "input[0].content[0].detail"),
            (user(json!([{"type": "input_file", "file_id": "x"}])), "input[0].content[0].type"),
        ] {
            assert_eq!(of(items.clone()).unwrap_err().param.as_deref(), Some(param), "{items}");
        }
    }
}

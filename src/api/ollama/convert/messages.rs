//! `messages`. Results name their function rather than their call, so calls get ids here and results find theirs.

use super::tools;
use chat::{Ending, Message, Part, Role};
use http::error::ApiError;
use http::fields::Fields;
use http::left_out;

const MAX_MESSAGES: usize = 16_384;
/// The most images of one message.
const MAX_IMAGES: usize = 1024;

pub fn messages(fields: &Fields) -> Result<Vec<Message>, ApiError> {
    let list = fields.array("messages")?.unwrap_or_default();
    if list.len() > MAX_MESSAGES {
        return Err(fields.invalid("messages", format_args!("holds more than {MAX_MESSAGES} messages")));
    }
    let mut reader = Reader::default();
    list.iter().enumerate().map(|(i, value)| reader.message(&fields.within(value, &format!("messages[{i}]"))?)).collect()
}

/// An answer that the assistant has begun is continued.
pub fn ending(messages: &[Message]) -> Ending {
    let begun = messages.last().filter(|last| last.role == Role::Assistant && last.calls.is_empty() && !last.text().is_empty());
    if begun.is_some() { Ending::Continue } else { Ending::OpenTurn }
}

/// Refuses images. `path`: where they are.
pub fn refuse_images(fields: &Fields) -> Result<(), ApiError> {
    match fields.array("images")? {
        Some([_, ..]) => {
            let path = fields.path("images");
            Err(ApiError::unsupported(&path, format!("`{path}` is not supported: no served model sees images")))
        }
        _ => Ok(()),
    }
}

/// The number of images in a tool's result, in whose places texts stand. Refuses those of other messages.
fn images(fields: &Fields, role: Role) -> Result<usize, ApiError> {
    if role != Role::Tool {
        refuse_images(fields)?;
    }
    let images = fields.array("images")?.unwrap_or_default().len();
    if images > MAX_IMAGES {
        return Err(fields.invalid("images", format_args!("holds more than {MAX_IMAGES} images")));
    }
    Ok(images)
}

#[derive(Default)]
struct Reader {
    /// Calls so far.
    num_calls: usize,
    /// Calls that have no result yet: id and function.
    open: Vec<(String, String)>,
}

impl Reader {
    fn message(&mut self, fields: &Fields) -> Result<Message, ApiError> {
        let role = match fields.required("role", fields.string("role")?)?.to_lowercase().as_str() {
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "tool" => Role::Tool,
            // Modelfiles and clients have names of their own for whoever instructs.
            _ => Role::System,
        };
        let images = images(fields, role)?;
        let text = |name: &str| Ok::<_, ApiError>(fields.string(name)?.map(str::to_owned));
        let content = text("content")?.unwrap_or_default();
        let reasoning = text("thinking")?.filter(|text| !text.is_empty());
        let (tool_name, asked_id, own_name) = (text("tool_name")?, text("tool_call_id")?, text("name")?);
        let calls = tools::calls(fields, || {
            self.num_calls += 1;
            format!("call_{}", self.num_calls)
        })?;
        if !calls.is_empty() && role != Role::Assistant {
            return Err(fields.invalid("tool_calls", "is only allowed in a message of the assistant"));
        }
        self.open.extend(calls.iter().map(|call| (call.id.clone(), call.name.clone())));
        let is_empty = content.is_empty() && (!calls.is_empty() || images > 0);
        let mut parts = if is_empty { Vec::new() } else { vec![Part::Text(content)] };
        parts.extend(std::iter::repeat_n(Part::Text(left_out::IMAGE.into()), images));
        let mut message = Message { parts, reasoning, calls, ..Message::new(role) };
        if role == Role::Tool {
            let (id, name) = self.result(asked_id.filter(|id| !id.is_empty()), tool_name.or(own_name));
            (message.call_id, message.name) = (id, name);
        } else {
            message.name = own_name;
        }
        Ok(message)
    }

    /// The call that a result belongs to, and its function: the call of this id, or the first open one of this name, or the first.
    fn result(&mut self, id: Option<String>, name: Option<String>) -> (Option<String>, Option<String>) {
        let by_id = || self.open.iter().position(|(open, _)| Some(open) == id.as_ref());
        let by_name = || self.open.iter().position(|(_, open)| Some(open) == name.as_ref());
        let first = || (name.is_none() && !self.open.is_empty()).then_some(0);
        let found = if id.is_some() { by_id() } else { by_name().or_else(first) };
        match found.map(|at| self.open.remove(at)) {
            Some((call, function)) => (Some(call), name.or(Some(function))),
            None => (id, name),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(list: Value) -> Result<Vec<Message>, ApiError> {
        messages(&Fields::root(&json!({"messages": list})).unwrap())
    }

    #[test]
    fn results_find_their_calls() {
        let call = |name: &str| json!({"function": {"name": name, "arguments": {"a": 1}}});
        let result = |name: &str| json!({"role": "tool", "content": "r", "tool_name": name});
        let found = read(json!([{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call("f"), call("g"), call("f")]},
            result("f"), result("g"), {"role": "tool", "content": "r"}, {"role": "tool", "content": "late", "tool_name": "h"}]))
        .unwrap();
        assert_eq!(found[1].calls.iter().map(|call| call.id.as_str()).collect::<Vec<_>>(), ["call_1", "call_2", "call_3"]);
        assert_eq!((found[1].calls[0].arguments.as_str(), found[1].parts.len()), ("{\"a\":1}", 0));
        let ids: Vec<_> = found[2..].iter().map(|message| (message.call_id.as_deref(), message.name.as_deref())).collect();
        assert_eq!(ids, [(Some("call_1"), Some("f")), (Some("call_2"), Some("g")), (Some("call_3"), Some("f")), (None, Some("h"))]);
    }

    #[test]
    fn an_image_in_a_tool_s_result_becomes_a_text() {
        let result = |content: &str| json!({"role": "tool", "content": content, "images": ["aGk="], "tool_name": "f"});
        let found = read(json!([{"role": "user", "content": "q"}, result("Here:"), result("")])).unwrap();
        assert_eq!([&found[1], &found[2]].map(Message::text), [format!("Here:\n{}", left_out::IMAGE), left_out::IMAGE.to_owned()]);
        let others = json!({"role": "tool", "content": "", "images": vec![""; MAX_IMAGES + 1]});
        assert_eq!(read(json!([others])).unwrap_err().param.as_deref(), Some("messages[0].images"));
    }

    #[test]
    fn the_error_names_the_field() {
        for (message, param) in [
            (json!({"content": "x"}), "role"),
            (json!({"role": "user", "content": ["x"]}), "content"),
            (json!({"role": "user", "content": "x", "images": ["aGk="]}), "images"),
            (json!({"role": "user", "tool_calls": [{"function": {"name": "f"}}]}), "tool_calls"),
            (
                json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}),
                "tool_calls[0].function.arguments",
            ),
        ] {
            assert_eq!(read(json!([message])).unwrap_err().param.unwrap(), format!("messages[0].{param}"), "{message}");
        }
        assert!(read(json!([{"role": "user", "content": "x", "images": [], "tool_calls": []}])).is_ok());
    }

    #[test]
    fn roles_are_read_in_any_case_and_others_instruct() {
        let of = |role: &str| read(json!([{"role": role, "content": "x"}])).unwrap()[0].role;
        assert_eq!(["User", "ASSISTANT", "developer", "control"].map(of), [Role::User, Role::Assistant, Role::System, Role::System]);
    }

    #[test]
    fn an_answer_that_has_begun_is_continued() {
        let of = |list| ending(&read(list).unwrap());
        assert_eq!(of(json!([{"role": "user", "content": "q"}])), Ending::OpenTurn);
        assert_eq!(of(json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": "The"}])), Ending::Continue);
        assert_eq!(of(json!([{"role": "assistant", "content": ""}])), Ending::OpenTurn);
    }
}

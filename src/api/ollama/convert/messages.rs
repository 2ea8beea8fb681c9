//! Conversion of `messages`. Ollama's tool results name a function and not a call, so calls get ids here and each result is matched to its
//! call.

use serde_json::Value;

use super::tools;
use chat::{Ending, Message, Part, Role};
use http::error::ApiError;
use http::fields::{Fields, wrong_type};
use http::pictures::{self, PicturePlace};

const MAX_MESSAGES: usize = 16_384;
/// The most images in one message.
const MAX_IMAGES: usize = 1024;

pub fn messages(fields: &Fields) -> Result<Vec<Message>, ApiError> {
    let list = fields.array("messages")?.unwrap_or_default();
    if list.len() > MAX_MESSAGES {
        return Err(fields.invalid("messages", format_args!("holds more than {MAX_MESSAGES} messages")));
    }
    let mut reader = Reader::default();
    list.iter().enumerate().map(|(i, value)| reader.message(&fields.within(value, &format!("messages[{i}]"))?)).collect()
}

/// Continues the last message if the assistant has begun it. Otherwise opens a new turn.
pub fn ending(messages: &[Message]) -> Ending {
    let begun = messages.last().filter(|last| last.role == Role::Assistant && last.calls.is_empty() && !last.text().is_empty());
    if begun.is_some() { Ending::Continue } else { Ending::OpenTurn }
}

/// Refuses a message that has images.
pub fn refuse_images(fields: &Fields) -> Result<(), ApiError> {
    match fields.array("images")? {
        Some([_, ..]) => Err(fields.invalid("images", "are possible only in messages of the user and of tools")),
        _ => Ok(()),
    }
}

/// The pictures beside a text, in base64.
pub fn images(fields: &Fields, place: PicturePlace) -> Result<Vec<Part>, ApiError> {
    let (images, path) = (fields.array("images")?.unwrap_or_default(), fields.path("images"));
    if images.len() > MAX_IMAGES {
        return Err(fields.invalid("images", format_args!("holds more than {MAX_IMAGES} images")));
    }
    let one = |(i, image): (usize, &Value)| match image {
        Value::String(text) => Ok(pictures::of_base64(&format!("{path}[{i}]"), text, place)),
        other => Err(wrong_type(&format!("{path}[{i}]"), "a string of base64", other)),
    };
    images.iter().enumerate().map(one).collect()
}

#[derive(Default)]
struct Reader {
    /// The number of calls so far.
    num_calls: usize,
    /// The calls without a result yet, by id and function.
    open: Vec<(String, String)>,
}

impl Reader {
    fn message(&mut self, fields: &Fields) -> Result<Message, ApiError> {
        let role = match fields.required("role", fields.string("role")?)?.to_lowercase().as_str() {
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "tool" => Role::Tool,
            // Any other role instructs, because Modelfiles and clients have various names for the system role.
            _ => Role::System,
        };
        let images = match role {
            Role::User => images(fields, PicturePlace::Message)?,
            Role::Tool => images(fields, PicturePlace::Result)?,
            Role::System | Role::Assistant => refuse_images(fields).map(|()| Vec::new())?,
        };
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
        let is_empty = content.is_empty() && (!calls.is_empty() || !images.is_empty());
        let text = (!is_empty).then_some(Part::Text(content));
        // Pictures stand before the text, but a result's text says what they are.
        let parts = match role {
            Role::Tool => text.into_iter().chain(images).collect(),
            _ => images.into_iter().chain(text).collect(),
        };
        let mut message = Message { parts, reasoning, calls, ..Message::new(role) };
        if role == Role::Tool {
            let (id, name) = self.result(asked_id.filter(|id| !id.is_empty()), tool_name.or(own_name));
            (message.call_id, message.name) = (id, name);
        } else {
            message.name = own_name;
        }
        Ok(message)
    }

    /// Returns the id and the function of the call that a result answers: the call with this id, else the first open call of this function,
    /// else the first open call.
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
    use http::omitted_content;

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
        assert_eq!(
            [&found[1], &found[2]].map(|message| message.clone().without_pictures().unwrap().text()),
            [format!("Here:\n{}", omitted_content::IMAGE), omitted_content::IMAGE.to_owned()]
        );
        let others = json!({"role": "tool", "content": "", "images": vec![""; MAX_IMAGES + 1]});
        assert_eq!(read(json!([others])).unwrap_err().param.as_deref(), Some("messages[0].images"));
    }

    #[test]
    fn the_error_names_the_field() {
        for (message, param) in [
            (json!({"content": "x"}), "role"),
            (json!({"role": "user", "content": ["x"]}), "content"),
            (json!({"role": "assistant", "content": "x", "images": ["aGk="]}), "images"),
            (json!({"role": "user", "content": "x", "images": [1]}), "images[0]"),
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

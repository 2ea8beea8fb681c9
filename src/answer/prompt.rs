//! A conversation with tools, as a model's template takes it.

use serde_json::{Value, json};

use super::style::{History, Style, Telling};
use super::syntax::Syntax;
use super::tools::Tools;
use crate::template::RenderInput;

/// Puts a request's tools and the calls of its messages where the template finds them. Whatever a client wrote is shielded already: what is
/// written here may hold control tokens.
pub fn prepare(style: &Style, tools: Option<(&Tools, Value)>, input: &mut RenderInput) {
    let messages = input.messages.as_array_mut().map(std::mem::take).unwrap_or_default();
    let mut messages = match style.history {
        History::Objects => messages.into_iter().map(with_objects).collect(),
        History::Texts => messages,
        History::Written => written(style.syntax, messages),
    };
    if let Some((_, definitions)) = tools {
        match style.telling {
            Telling::Variable => input.tools = Some(definitions),
            Telling::SystemMessage => system_message(&mut messages)["tools"] = definitions.to_string().into(),
            Telling::Words => tell(style, &definitions, &mut messages),
        }
    }
    input.messages = Value::Array(messages);
}

/// Arguments come as JSON in a string.
fn with_objects(mut message: Value) -> Value {
    for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        let arguments = &mut call["function"]["arguments"];
        if let Some(object) = arguments.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok()).filter(Value::is_object) {
            *arguments = object;
        }
    }
    message
}

/// Calls as text of the answers that made them, their results as text of the user's.
fn written(syntax: &Syntax, messages: Vec<Value>) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::with_capacity(messages.len());
    let mut in_results = false;
    for mut message in messages {
        let role = message["role"].as_str().unwrap_or_default().to_owned();
        if role == "tool" {
            let result = format!("<tool_response>\n{}\n</tool_response>", message["content"].as_str().unwrap_or_default());
            // In place: there may be thousands of results.
            match out.last_mut().filter(|_| in_results).map(|last| &mut last["content"]) {
                Some(Value::String(results)) => results.extend(["\n", &result]),
                _ => out.push(json!({"role": "user", "content": result})),
            }
            in_results = true;
            continue;
        }
        in_results = false;
        if let Some(calls) = message.as_object_mut().and_then(|message| message.remove("tool_calls")) {
            let text = message["content"].as_str().unwrap_or_default();
            let space = if text.is_empty() { "" } else { "\n" };
            message["content"] = format!("{text}{space}{}", write_calls(syntax, calls.as_array().map_or(&[], Vec::as_slice))).into();
        }
        out.push(message);
    }
    out
}

fn write_calls(syntax: &Syntax, calls: &[Value]) -> String {
    let call = |call: &Value| {
        let function = &call["function"];
        let name = function["name"].as_str().unwrap_or_default();
        let arguments = function["arguments"].as_str().unwrap_or("{}");
        [syntax.before, name, syntax.between, arguments, syntax.after].concat()
    };
    let calls: Vec<String> = calls.iter().map(call).collect();
    [syntax.trigger, syntax.open, &calls.join(syntax.separator), syntax.close].concat()
}

fn system_message(messages: &mut Vec<Value>) -> &mut Value {
    if messages.first().is_none_or(|message| message["role"] != "system") {
        messages.insert(0, json!({"role": "system", "content": ""}));
    }
    &mut messages[0]
}

fn tell(style: &Style, definitions: &Value, messages: &mut Vec<Value>) {
    let syntax = style.syntax;
    let functions: Vec<String> =
        definitions.as_array().into_iter().flatten().map(|tool| tool.get("function").unwrap_or(tool).to_string()).collect();
    let pieces = [syntax.trigger, syntax.open, syntax.before, "NAME", syntax.between, "{\"ARGUMENT\": VALUE}", syntax.after, syntax.close];
    let words = format!(
        "You can call these functions:\n{}\n\nTo call one, write its name and its arguments like this, and nothing after it:\n{}\n\
         What it returns comes in the next message, between <tool_response> and </tool_response>. Then answer with that.",
        functions.join("\n"),
        pieces.concat()
    );
    let at = if style.system {
        system_message(messages);
        0
    } else {
        messages.iter().position(|message| message["role"] == "user").unwrap_or(0)
    };
    let Some(message) = messages.get_mut(at) else { return };
    let content = message["content"].as_str().unwrap_or_default();
    message["content"] = if content.is_empty() {
        words
    } else if style.system {
        format!("{content}\n\n{words}")
    } else {
        format!("{words}\n\n{content}")
    }
    .into();
}

#[cfg(test)]
mod tests {
    use super::super::syntax::GENERIC;
    use super::*;

    #[test]
    fn results_in_a_row_are_one_message() {
        let result = |text: &str| json!({"role": "tool", "tool_call_id": "x", "content": text});
        let user = |text: &str| json!({"role": "user", "content": text});
        let shown = |text: &str| format!("<tool_response>\n{text}\n</tool_response>");
        let messages = vec![user("q"), result("a"), result("b"), result("c"), user("r"), result("d")];
        let joined = ["a", "b", "c"].map(shown).join("\n");
        assert_eq!(written(GENERIC, messages), [user("q"), user(&joined), user("r"), user(&shown("d"))]);
    }
}

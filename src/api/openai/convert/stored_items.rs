//! The stored form of a conversation's items: each has an id, and its content is a list of parts.

use serde_json::{Map, Value, json};
use uuid::Uuid;

use http::fields::Fields;

/// Converts the items of `input`, which was validated before. `stored` finds an item by its id.
pub fn of_input(fields: &Fields, stored: &dyn Fn(&str) -> Option<Value>) -> Vec<Value> {
    match fields.get("input") {
        Some(Value::String(text)) => vec![item(&json!({"type": "message", "role": "user", "content": text}))],
        Some(Value::Array(items)) => of_items(items, stored),
        _ => Vec::new(),
    }
}

/// Converts a list of items, which was validated before.
pub fn of_items(items: &[Value], stored: &dyn Fn(&str) -> Option<Value>) -> Vec<Value> {
    let found = |given: &Value| match given["type"].as_str() {
        Some("item_reference") => given["id"].as_str().and_then(stored).unwrap_or_else(|| given.clone()),
        _ => given.clone(),
    };
    items.iter().map(|given| item(&found(given))).collect()
}

/// Converts an item, which was validated before.
fn item(given: &Value) -> Value {
    let mut kept: Map<String, Value> = given.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect();
    kept.retain(|_, value| !value.is_null());
    let kind = kept.get("type").and_then(Value::as_str).unwrap_or("message").to_owned();
    let prefix = match kind.as_str() {
        "message" => "msg",
        "reasoning" => "rs",
        "function_call" => "fc",
        "custom_tool_call" => "ctc",
        "custom_tool_call_output" => "ctco",
        _ => "fco",
    };
    // Items get ids of the server's own, so that two items never have the same one.
    let is_own = kept.get("id").and_then(Value::as_str).is_some_and(|id| is_own_id(id, prefix));
    if !is_own {
        kept.insert("id".into(), format!("{prefix}_{}", Uuid::new_v4().simple()).into());
    }
    if kind == "message" {
        let text_kind = if kept.get("role").and_then(Value::as_str) == Some("assistant") { "output_text" } else { "input_text" };
        if let Some(text) = kept.get("content").and_then(Value::as_str) {
            let mut part = json!({"type": text_kind, "text": text});
            if text_kind == "output_text" {
                (part["annotations"], part["logprobs"]) = (json!([]), json!([]));
            }
            kept.insert("content".into(), json!([part]));
        }
    }
    if kind == "reasoning" {
        kept.entry("summary").or_insert_with(|| json!([]));
    }
    kept.entry("status").or_insert_with(|| "completed".into());
    kept.insert("type".into(), kind.into());
    Value::Object(kept)
}

fn is_own_id(id: &str, prefix: &str) -> bool {
    let rest = id.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('_'));
    rest.is_some_and(|rest| rest.len() == 32 && rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_get_ids_and_parts() {
        let input = json!({"input": [{"role": "user", "content": "hi"}, {"type": "function_call_output", "call_id": "c", "output": "1"},
            {"type": "item_reference", "id": "msg_1"}]});
        let stored = |id: &str| Some(json!({"type": "message", "id": id, "role": "assistant", "content": "ho"}));
        let items = of_input(&Fields::root(&input).unwrap(), &stored);
        assert_eq!(items[0]["content"], json!([{"type": "input_text", "text": "hi"}]));
        assert!(items[0]["id"].as_str().unwrap().starts_with("msg_") && items[0]["status"] == "completed");
        assert!(items[1]["id"].as_str().unwrap().starts_with("fco_"));
        assert_eq!(items[2]["content"][0]["type"], "output_text");
        assert_ne!(items[2]["id"], "msg_1", "an id that is not the server's own is replaced");
        let again = of_items(&items, &stored);
        assert_eq!(again, items);
    }
}

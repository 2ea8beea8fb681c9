//! `context_management`: what is left out of a long conversation.

use std::collections::HashSet;

use serde_json::Value;

use chat::{Message, Part, Role};
use http::error::{ApiError, quoted};
use http::fields::Fields;

/// Values of fields that are absent, as in Anthropic's API.
const CLEAR_AT: u32 = 100_000;
const COMPACT_AT: u32 = 150_000;
const KEPT_USES: u32 = 3;
/// What stands in place of a result that was cleared.
const CLEARED: &str = "[the result was left out to shorten the conversation]";

/// An edit that depends on the length of the prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum Edit {
    ClearTools(ClearTools),
    /// The server would have to write a summary of a prompt that is longer. `path`: the edit's type in the request.
    Compact {
        above: u32,
        path: String,
    },
}

/// Clears the oldest results of tools.
#[derive(Clone, Debug, PartialEq)]
pub struct ClearTools {
    pub trigger: Trigger,
    /// How many uses stay.
    keep: usize,
    /// Tools whose uses stay.
    excluded: HashSet<String>,
    inputs: Inputs,
    /// The fewest tokens that it is done for.
    pub at_least: usize,
}

/// What must be exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    Tokens(u32),
    Uses(u32),
}

/// Whose arguments are cleared along with the results.
#[derive(Clone, Debug, PartialEq)]
enum Inputs {
    OfNone,
    OfAll,
    Of(HashSet<String>),
}

/// Leaves out reasoning of earlier turns where that is asked for, and returns the edits that are left to do.
pub fn edits(fields: &Fields, messages: &mut [Message]) -> Result<Vec<Edit>, ApiError> {
    let Some(value) = fields.get("context_management") else { return Ok(Vec::new()) };
    let inner = fields.within(value, "context_management")?;
    let list = inner.array("edits")?.unwrap_or_default();
    let mut later = Vec::new();
    for (i, value) in list.iter().enumerate() {
        later.extend(edit(&inner.within(value, &format!("context_management.edits[{i}]"))?, messages)?);
    }
    Ok(later)
}

/// `None`: it is done.
fn edit(fields: &Fields, messages: &mut [Message]) -> Result<Option<Edit>, ApiError> {
    let path = fields.path("type");
    match fields.required("type", fields.string("type")?)? {
        "clear_thinking_20251015" => {
            if let Some(keep) = kept_turns(fields)? {
                let thoughtful = messages.iter_mut().rev().filter(|message| message.reasoning.is_some());
                thoughtful.skip(keep).for_each(|message| message.reasoning = None);
            }
            Ok(None)
        }
        "clear_tool_uses_20250919" => clear_tools(fields).map(|edit| Some(Edit::ClearTools(edit))),
        "compact_20260112" => {
            fields.string("instructions")?;
            fields.bool("pause_after_compaction")?;
            let above = measure(fields, "trigger", &["input_tokens"])?.map_or(COMPACT_AT, |(_, value)| value);
            Ok(Some(Edit::Compact { above, path }))
        }
        other => {
            let known = "clear_thinking_20251015, clear_tool_uses_20250919 and compact_20260112 are known";
            Err(ApiError::unsupported(&path, format!("`{path}` is `{}`; {known}", quoted(other))))
        }
    }
}

/// How many turns keep their reasoning. `None`: all.
fn kept_turns(edit: &Fields) -> Result<Option<usize>, ApiError> {
    match edit.get("keep") {
        None => Ok(Some(1)),
        Some(Value::String(all)) if all == "all" => Ok(None),
        Some(value) => {
            let keep = edit.within(value, &edit.path("keep"))?;
            match keep.required("type", keep.string("type")?)? {
                "all" => Ok(None),
                "thinking_turns" => Ok(Some(keep.required("value", keep.count("value", 1)?)? as usize)),
                other => Err(keep.invalid("type", format_args!("must be all or thinking_turns, not `{}`", quoted(other)))),
            }
        }
    }
}

fn clear_tools(fields: &Fields) -> Result<ClearTools, ApiError> {
    let trigger = match measure(fields, "trigger", &["input_tokens", "tool_uses"])? {
        Some(("tool_uses", value)) => Trigger::Uses(value),
        found => Trigger::Tokens(found.map_or(CLEAR_AT, |(_, value)| value)),
    };
    let keep = measure(fields, "keep", &["tool_uses"])?.map_or(KEPT_USES, |(_, value)| value) as usize;
    let at_least = measure(fields, "clear_at_least", &["input_tokens"])?.map_or(0, |(_, value)| value) as usize;
    let inputs = match fields.get("clear_tool_inputs") {
        None | Some(Value::Bool(false)) => Inputs::OfNone,
        Some(Value::Bool(true)) => Inputs::OfAll,
        Some(_) => Inputs::Of(names(fields, "clear_tool_inputs")?),
    };
    Ok(ClearTools { trigger, keep, excluded: names(fields, "exclude_tools")?, inputs, at_least })
}

/// A number and what it counts, which is one of `kinds`.
fn measure(fields: &Fields, name: &str, kinds: &[&'static str]) -> Result<Option<(&'static str, u32)>, ApiError> {
    let Some(value) = fields.get(name) else { return Ok(None) };
    let inner = fields.within(value, &fields.path(name))?;
    let kind = inner.required("type", inner.string("type")?)?;
    let Some(kind) = kinds.iter().find(|known| **known == kind) else {
        return Err(inner.invalid("type", format_args!("must be {}, not `{}`", kinds.join(" or "), quoted(kind))));
    };
    Ok(Some((*kind, inner.required("value", inner.count("value", 0)?)?)))
}

fn names(fields: &Fields, name: &str) -> Result<HashSet<String>, ApiError> {
    let list = fields.array(name)?.unwrap_or_default();
    let text = |item: &Value| item.as_str().map(str::to_owned).ok_or_else(|| fields.invalid(name, "must hold names of tools"));
    list.iter().map(text).collect()
}

impl ClearTools {
    /// Whether so many uses of tools are enough. `None`: tokens count, not uses.
    pub fn is_triggered(&self, messages: &[Message]) -> Option<bool> {
        match self.trigger {
            Trigger::Uses(most) => Some(messages.iter().map(|message| message.calls.len()).sum::<usize>() > most as usize),
            Trigger::Tokens(_) => None,
        }
    }

    /// Clears the oldest uses.
    pub fn apply(&self, messages: &mut [Message]) {
        let uses: Vec<(String, String)> =
            messages.iter().flat_map(|message| &message.calls).map(|call| (call.id.clone(), call.name.clone())).collect();
        let oldest = uses.iter().take(uses.len().saturating_sub(self.keep));
        let cleared: HashSet<&str> = oldest.filter(|(_, name)| !self.excluded.contains(name)).map(|(id, _)| id.as_str()).collect();
        for message in messages {
            if message.role == Role::Tool && message.call_id.as_deref().is_some_and(|id| cleared.contains(id)) {
                message.parts = vec![Part::Text(CLEARED.into())];
            }
            let clears = |name: &String| match &self.inputs {
                Inputs::OfNone => false,
                Inputs::OfAll => true,
                Inputs::Of(names) => names.contains(name),
            };
            for call in message.calls.iter_mut().filter(|call| cleared.contains(call.id.as_str()) && clears(&call.name)) {
                call.arguments = "{}".into();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use chat::Call;

    fn read(edit: Value) -> Result<Vec<Edit>, String> {
        edits(&Fields::root(&json!({"context_management": {"edits": [edit]}})).unwrap(), &mut []).map_err(|error| error.param.unwrap())
    }

    /// What the results and the arguments of three calls are after an edit.
    fn cleared(edit: Value) -> (String, String) {
        let Some(Edit::ClearTools(edit)) = read(edit).unwrap().pop() else { panic!("no edit") };
        let call = |id: &str, name: &str| Call { id: id.into(), name: name.into(), arguments: "{\"a\":1}".into() };
        let result = |id: &str| Message { call_id: Some(id.into()), ..Message::of_text(Role::Tool, "r") };
        let calls = vec![call("1", "f"), call("2", "g")];
        let mut messages = vec![
            Message { calls, ..Message::new(Role::Assistant) },
            result("1"),
            result("2"),
            Message { calls: vec![call("3", "f")], ..Message::new(Role::Assistant) },
            result("3"),
        ];
        edit.apply(&mut messages);
        let results = messages.iter().filter(|message| message.role == Role::Tool);
        let results = results.map(|message| if message.text() == CLEARED { '-' } else { 'r' }).collect();
        let calls = messages.iter().flat_map(|message| &message.calls);
        (results, calls.map(|call| if call.arguments == "{}" { '-' } else { 'a' }).collect())
    }

    #[test]
    fn the_oldest_results_are_cleared() {
        let with = |more: Value| {
            let mut edit = json!({"type": "clear_tool_uses_20250919", "keep": {"type": "tool_uses", "value": 1}});
            edit.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            cleared(edit)
        };
        let due = |results: &str, calls: &str| (results.to_owned(), calls.to_owned());
        assert_eq!(cleared(json!({"type": "clear_tool_uses_20250919"})), due("rrr", "aaa"));
        assert_eq!(with(json!({})), due("--r", "aaa"));
        assert_eq!(with(json!({"clear_tool_inputs": true})), due("--r", "--a"));
        assert_eq!(with(json!({"clear_tool_inputs": ["g"]})), due("--r", "a-a"));
        assert_eq!(with(json!({"exclude_tools": ["f"], "clear_tool_inputs": true})), due("r-r", "a-a"));
    }

    #[test]
    fn errors_name_the_field() {
        for (edit, param) in [
            (json!({"type": "clear_all"}), "type"),
            (json!({"type": "clear_tool_uses_20250919", "trigger": {"type": "words", "value": 1}}), "trigger.type"),
            (json!({"type": "clear_tool_uses_20250919", "exclude_tools": [3]}), "exclude_tools"),
            (json!({"type": "clear_tool_uses_20250919", "keep": {"type": "tool_uses"}}), "keep.value"),
        ] {
            assert_eq!(read(edit), Err(format!("context_management.edits[0].{param}")));
        }
        let compact = Edit::Compact { above: 150_000, path: "context_management.edits[0].type".into() };
        assert_eq!(read(json!({"type": "compact_20260112"})), Ok(vec![compact]));
    }
}

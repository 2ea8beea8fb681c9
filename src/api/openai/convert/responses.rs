//! Conversion of requests to `/v1/responses`.

use serde_json::{Value, json};

use super::super::types::responses::{ConversationRef, Settings};
use super::listed_tools::offers;
use super::metadata::{MAX_VALUE, metadata};
use super::tool_shape::Shape;
use super::tools;
use super::{chat, generation, names, response_input, stored_items, structured};
use ::chat::Conversation;
use config::Limits;
use http::error::{ApiError, quoted};
use http::fields::{Fields, wrong_type};
use http::subject::FieldNames;
use logits::MAX_LOGPROBS;
use registry::AdapterAsk;
use serving::{Budget, Options};

/// The largest JSON size of each field that a response repeats and that has no other bound [bytes].
const MAX_REPEATED: usize = 1 << 20;

/// The values that `include` may have. Only log-probabilities are ever returned, because the others belong to items that do not occur here.
const LOGPROBS: &str = "message.output_text.logprobs";
const INCLUDABLE: [&str; 8] = [
    LOGPROBS,
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
];

/// A request whose fields are each valid.
#[derive(Debug)]
pub struct Responses {
    pub model: String,
    /// The conversation with the new messages only.
    pub conversation: Conversation,
    pub options: Options,
    /// The adapters of the request instead of those of its model's name.
    pub lora: Option<Vec<AdapterAsk>>,
    pub names: FieldNames,
    pub settings: Settings,
    /// The new items in their stored form, with ids. Empty unless the response or its conversation is stored.
    pub input: Vec<Value>,
    pub stream: bool,
    pub obfuscates: bool,
}

/// Parses a request. `stored` finds an item of a stored response by its id.
pub fn parse(body: &Value, limits: &Limits, stored: &dyn Fn(&str) -> Option<Value>) -> Result<Responses, ApiError> {
    let fields = Fields::root(body)?;
    let model = super::model(&fields)?;
    let max_output_tokens = generation::most_tokens(&fields, "max_output_tokens")?;
    let budget = max_output_tokens.map_or(Budget::Rest, |count| generation::budget(count, limits));
    let structure = structured::of_response(&fields)?;
    let names = FieldNames { format: structured::field_of(structure.as_ref(), names::RESPONSES), ..names::RESPONSES };
    let mut options = generation::options(&fields, limits, budget, structure)?;
    let mut conversation = Conversation {
        tools: tools::tools(&fields, Shape::Flat)?,
        variables: chat::template_variables(&fields)?,
        ..Conversation::default()
    };
    generation::set_effort(&mut conversation, reasoning(&fields)?);
    generation::check_tools(&fields, &conversation, &options)?;
    options.logprobs = logprobs(&fields)?;
    let settings = settings(&fields, max_output_tokens)?;
    let stream = fields.bool("stream")?.unwrap_or(false);
    let obfuscates = obfuscates(&fields, stream)?;
    conversation.messages = response_input::messages(&fields, stored)?;
    let input = if settings.store || settings.conversation.is_some() { stored_items::of_input(&fields, stored) } else { Vec::new() };
    let lora = generation::lora(&fields)?;
    Ok(Responses { model, conversation, options, lora, names, settings, input, stream, obfuscates })
}

/// Reads `stream_options.include_obfuscation`.
fn obfuscates(fields: &Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(value) = fields.get("stream_options") else { return Ok(false) };
    let options = Fields::at(value, "stream_options")?;
    let wanted = options.bool("include_obfuscation")?.unwrap_or(false);
    match stream {
        true => Ok(wanted),
        false => Err(fields.invalid("stream_options", "is only allowed with `stream`")),
    }
}

/// Reads the id of the conversation that the response belongs to.
fn conversation_id(fields: &Fields) -> Result<Option<String>, ApiError> {
    let id = match fields.get("conversation") {
        None => return Ok(None),
        Some(Value::String(id)) => id.as_str(),
        Some(value @ Value::Object(_)) => {
            let inner = Fields::at(value, "conversation")?;
            inner.required("id", inner.string("id")?)?
        }
        Some(other) => return Err(wrong_type("conversation", "an id or an object with one", other)),
    };
    if fields.get("previous_response_id").is_some() {
        return Err(fields.invalid("conversation", "cannot be combined with `previous_response_id`: both say what came before"));
    }
    Ok(Some(id.to_owned()))
}

/// Reads `truncation`.
fn truncation(fields: &Fields) -> Result<String, ApiError> {
    match fields.string("truncation")?.unwrap_or("disabled") {
        known @ ("auto" | "disabled") => Ok(known.to_owned()),
        other => Err(fields.invalid("truncation", format_args!("must be auto or disabled, not `{}`", quoted(other)))),
    }
}

/// Reads a short text that the response repeats.
fn short_text(fields: &Fields, name: &str) -> Result<Option<String>, ApiError> {
    let text = fields.string(name)?;
    match text.filter(|text| text.chars().count() > MAX_VALUE) {
        Some(_) => Err(fields.invalid(name, format_args!("has more than {MAX_VALUE} characters"))),
        None => Ok(text.map(str::to_owned)),
    }
}

fn settings(fields: &Fields, max_output_tokens: Option<u32>) -> Result<Settings, ApiError> {
    for name in ["instructions", "text", "user"] {
        fields.check_size(name, MAX_REPEATED)?;
    }
    Ok(Settings {
        instructions: fields.string("instructions")?.map(str::to_owned),
        max_output_tokens,
        metadata: metadata(fields)?,
        parallel_tool_calls: fields.bool("parallel_tool_calls")?.unwrap_or(true),
        previous_response_id: fields.string("previous_response_id")?.map(str::to_owned),
        reasoning: json!({"effort": reasoning(fields)?, "summary": null}),
        store: fields.bool("store")?.unwrap_or(true),
        temperature: fields.number("temperature", 0.0..=2.0)?.unwrap_or(1.0),
        text: text(fields)?,
        tool_choice: fields.get("tool_choice").map_or_else(|| "auto".into(), shown_choice),
        tools: shown_tools(fields)?,
        top_logprobs: fields.integer("top_logprobs", 0..=MAX_LOGPROBS as i64)?.unwrap_or(0) as u8,
        top_p: fields.number("top_p", 0.0..=1.0)?.unwrap_or(1.0),
        truncation: truncation(fields)?,
        user: fields.string("user")?.map(str::to_owned),
        background: background(fields)?,
        service_tier: "default".into(),
        conversation: conversation_id(fields)?.map(|id| ConversationRef { id }),
        max_tool_calls: fields.count("max_tool_calls", 1)?,
        prompt_cache_key: short_text(fields, "prompt_cache_key")?,
        safety_identifier: short_text(fields, "safety_identifier")?,
    })
}

/// Reads `background`.
fn background(fields: &Fields) -> Result<bool, ApiError> {
    let background = fields.bool("background")?.unwrap_or(false);
    match background && fields.bool("store")? == Some(false) {
        true => Err(fields.invalid("background", "needs `store`: nobody could ask for the response later")),
        false => Ok(background),
    }
}

/// Reads `reasoning.effort`. Reasoning is returned in full, which also satisfies a request for a summary.
fn reasoning(fields: &Fields) -> Result<Option<String>, ApiError> {
    let Some(value) = fields.get("reasoning") else { return Ok(None) };
    let inner = Fields::at(value, "reasoning")?;
    for name in ["summary", "generate_summary"] {
        if let Some(other) = inner.string(name)?.filter(|summary| !["auto", "concise", "detailed", "none"].contains(summary)) {
            return Err(inner.invalid(name, format_args!("must be auto, concise, detailed or none, not `{}`", quoted(other))));
        }
    }
    generation::effort(&inner, "effort")
}

/// Returns the `text` object that a response repeats, with all fields that clients read.
fn text(fields: &Fields) -> Result<Value, ApiError> {
    let mut text = fields.object("text")?.cloned().unwrap_or_default();
    text.retain(|_, value| !value.is_null());
    let format = text.entry("format").or_insert_with(|| json!({"type": "text"}));
    if let Some(schema) = format.as_object_mut().filter(|format| format.get("type").is_some_and(|kind| kind == "json_schema")) {
        schema.entry("name").or_insert_with(|| "response".into());
    }
    Ok(text.into())
}

/// Returns the tools that a response repeats: those that were offered to the model.
fn shown_tools(fields: &Fields) -> Result<Vec<Value>, ApiError> {
    Ok(offers(fields, "tools", Shape::Flat)?.into_iter().map(|(_, tool)| shown_tool(tool)).collect())
}

fn shown_tool(tool: &Value) -> Value {
    let mut shown = match tool["type"].as_str() {
        Some("custom") => json!({"type": "custom", "description": null, "format": {"type": "text"}}),
        Some("namespace") => json!({"description": ""}),
        _ => json!({"type": "function", "description": null, "parameters": null, "strict": true}),
    };
    for (key, value) in tool.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()) {
        shown[key] = match value {
            Value::Array(members) if tool["type"] == "namespace" => members.iter().map(shown_tool).collect(),
            other => other.clone(),
        };
    }
    shown
}

/// Returns the type and the name of a tool.
fn shown_name(tool: &Value) -> Value {
    let mut shown = json!({"type": if tool["type"] == "custom" { "custom" } else { "function" }, "name": tool.get("name")});
    if let Some(namespace) = tool.get("namespace").filter(|namespace| !namespace.is_null()) {
        shown["namespace"] = namespace.clone();
    }
    shown
}

/// Returns the `tool_choice` that a response repeats, under the names that clients know.
fn shown_choice(choice: &Value) -> Value {
    match choice {
        Value::String(any) if any == "any" => "required".into(),
        Value::Object(some) if choice["type"] == "allowed_tools" => {
            let tools: Vec<Value> = some.get("tools").and_then(Value::as_array).into_iter().flatten().map(shown_name).collect();
            json!({"type": "allowed_tools", "mode": some.get("mode"), "tools": tools})
        }
        Value::Object(_) => shown_name(choice),
        other => other.clone(),
    }
}

/// Checks an `include` query parameter. Each known value names something that is returned anyway, or never.
pub fn check_included(name: Option<&str>) -> Result<(), ApiError> {
    match name.filter(|name| !INCLUDABLE.contains(name)) {
        None => Ok(()),
        Some(name) => Err(ApiError::field("include", format!("`include` names `{}`, which cannot be included", quoted(name)))),
    }
}

/// Reads `top_logprobs`, or `include` with the log-probabilities of the text.
fn logprobs(fields: &Fields) -> Result<Option<u8>, ApiError> {
    let mut wanted = false;
    for item in fields.array("include")?.unwrap_or_default() {
        let name = item.as_str().ok_or_else(|| wrong_type("include", "a list of strings", item))?;
        if !INCLUDABLE.contains(&name) {
            return Err(fields.invalid("include", format_args!("names `{}`, which cannot be included", quoted(name))));
        }
        wanted |= name == LOGPROBS;
    }
    let top = fields.integer("top_logprobs", 0..=MAX_LOGPROBS as i64)?;
    Ok(top.or(wanted.then_some(0)).filter(|top| wanted || *top > 0).map(|top| top as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_response_repeats_is_bounded() {
        for name in ["instructions", "text", "user"] {
            let body = json!({name: "x".repeat(MAX_REPEATED)});
            assert_eq!(settings(&Fields::root(&body).unwrap(), None).unwrap_err().param.as_deref(), Some(name));
        }
    }

    #[test]
    fn log_probabilities_are_returned_if_they_are_included() {
        let asked = |body: Value| logprobs(&Fields::root(&body).unwrap()).map_err(|error| error.param.unwrap());
        assert_eq!(asked(json!({})), Ok(None));
        assert_eq!(asked(json!({"include": [LOGPROBS]})), Ok(Some(0)));
        assert_eq!(asked(json!({"include": [LOGPROBS], "top_logprobs": 3})), Ok(Some(3)));
        assert_eq!(asked(json!({"top_logprobs": 3})), Ok(Some(3)));
        assert_eq!(asked(json!({"top_logprobs": 0, "include": ["reasoning.encrypted_content"]})), Ok(None));
        assert_eq!(asked(json!({"top_logprobs": 21})), Err("top_logprobs".into()));
        assert_eq!(asked(json!({"include": ["made_up"]})), Err("include".into()));
    }
}

//! The blocks of a message's content.

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::cache_control::cache_control;
use chat::Part;
use http::error::{ApiError, quoted};
use http::fields::{Fields, wrong_type};
use http::left_out;

/// The most blocks of one message.
const MAX_BLOCKS: usize = 16_384;
/// The line that some agents begin their system prompt with. It changes with every request, so no prefix after it would be found again.
const BILLING: &str = "x-anthropic-billing-header:";
/// What a signature begins with that carries the reasoning itself.
pub const CARRIED: &str = "reasoning:";

/// Where blocks stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    System,
    Message,
    Result,
}

/// A block that is no text has been met: what it is, and who may have it.
pub type Other<'a, 'b> = &'a mut dyn FnMut(&Fields<'b>, &str) -> Result<Option<Part>, ApiError>;

/// The parts of a string or of a list of blocks. `other` reads the blocks that are not text.
pub fn parts<'b>(fields: &Fields<'b>, name: &str, place: Place, other: Other<'_, 'b>) -> Result<Vec<Part>, ApiError> {
    let path = fields.path(name);
    let blocks = match fields.required(name, fields.get(name))? {
        Value::String(text) => return Ok(text_part(text, place).into_iter().collect()),
        Value::Array(blocks) => blocks,
        wrong => return Err(wrong_type(&path, "a string or a list of blocks", wrong)),
    };
    if blocks.len() > MAX_BLOCKS {
        return Err(fields.invalid(name, format_args!("holds more than {MAX_BLOCKS} blocks")));
    }
    let mut parts = Vec::with_capacity(blocks.len());
    for (i, value) in blocks.iter().enumerate() {
        let path = format!("{path}[{i}]");
        let block = fields.within(value, &path)?;
        cache_control(&block)?;
        match block.required("type", block.string("type")?)? {
            "text" => {
                parts.extend(text_part(block.required("text", block.string("text")?)?, place));
            }
            kind if place == Place::Result && left_out::in_result(kind).is_some() => {
                parts.extend(left_out::in_result(kind).map(|text| Part::Text(text.into())));
            }
            "document" => parts.extend(document(&block, place)?),
            "search_result" => parts.extend(search_result(&block, place)?),
            kind => parts.extend(other(&block, kind)?),
        }
    }
    Ok(parts)
}

/// Refuses a block that only text may stand in place of.
pub fn refused(block: &Fields, kind: &str) -> ApiError {
    let path = block.path("type");
    let problem = match kind {
        "image" => "the model takes no images".to_owned(),
        "tool_use" | "thinking" | "redacted_thinking" => "only an assistant's message may hold it".to_owned(),
        "tool_result" => "only a user's message may hold it".to_owned(),
        "tool_reference" => "only a tool's result may hold it".to_owned(),
        other if other.starts_with("server_tool") || other.ends_with("_tool_result") => "this server runs no tools of its own".to_owned(),
        _ => "the blocks are text, document (of text), tool_use, tool_result, thinking and redacted_thinking".to_owned(),
    };
    ApiError::unsupported(&path, format!("`{path}` is `{}`, which is not supported here: {problem}", quoted(kind)))
}

/// A system prompt loses the line of the billing header. `None` if nothing else is in it.
fn text_part(text: &str, place: Place) -> Option<Part> {
    let rest = match place == Place::System && text.starts_with(BILLING) {
        true => text.split_once('\n').map(|(_, rest)| rest).filter(|rest| !rest.trim().is_empty())?,
        false => text,
    };
    Some(Part::Text(rest.to_owned()))
}

/// A document of plain text.
fn document(block: &Fields, place: Place) -> Result<Vec<Part>, ApiError> {
    let path = block.path("source");
    check_citations(block)?;
    let source = block.within(block.required("source", block.get("source"))?, &path)?;
    let texts = match source.required("type", source.string("type")?)? {
        "text" => vec![Part::Text(source.required("data", source.string("data")?)?.to_owned())],
        "content" => parts(&source, "content", place, &mut |block, kind| Err(refused(block, kind)))?,
        _ if place == Place::Result => vec![Part::Text(left_out::DOCUMENT.into())],
        other => {
            let path = source.path("type");
            let message = format!("`{path}` is `{}`; only documents of text are supported (type text or content)", quoted(other));
            return Err(ApiError::unsupported(&path, message));
        }
    };
    let heads = [block.string("title")?, block.string("context")?].into_iter().flatten().map(|head| Part::Text(head.to_owned()));
    Ok(heads.chain(texts).collect())
}

/// What a search has found, with its title and where it is from.
fn search_result(block: &Fields, place: Place) -> Result<Vec<Part>, ApiError> {
    check_citations(block)?;
    let head = |name| Ok::<_, ApiError>(Part::Text(block.required(name, block.string(name)?)?.to_owned()));
    let texts = parts(block, "content", place, &mut |part, kind| Err(refused(part, kind)))?;
    Ok([head("title")?, head("source")?].into_iter().chain(texts).collect())
}

fn check_citations(block: &Fields) -> Result<(), ApiError> {
    let asks = block.get("citations").and_then(|citations| citations.get("enabled")).and_then(Value::as_bool);
    if asks != Some(true) {
        return Ok(());
    }
    let path = block.path("citations");
    Err(ApiError::unsupported(&path, format!("`{path}` cannot be enabled: the models here do not cite")))
}

/// The reasoning of a block of thinking. If it was left out of the answer, its signature has it.
pub fn thinking(block: &Fields) -> Result<String, ApiError> {
    let text = block.required("thinking", block.string("thinking")?)?;
    let signature = block.string("signature")?.unwrap_or_default();
    let carried = || String::from_utf8(STANDARD.decode(signature.strip_prefix(CARRIED)?).ok()?).ok();
    Ok(if text.is_empty() { carried().unwrap_or_default() } else { text.to_owned() })
}

/// The text of a tool's result. `tools`: the names that a reference may have.
pub fn result(block: &Fields, tools: &HashSet<&str>) -> Result<Vec<Part>, ApiError> {
    let mut found = match block.get("content") {
        None => Vec::new(),
        Some(_) => parts(block, "content", Place::Result, &mut |part, kind| match kind {
            "tool_reference" => reference(part, tools).map(Some),
            kind => Err(refused(part, kind)),
        })?,
    };
    if block.bool("is_error")?.unwrap_or(false) {
        found.insert(0, Part::Text("The tool failed:".into()));
    }
    Ok(found)
}

fn reference(part: &Fields, tools: &HashSet<&str>) -> Result<Part, ApiError> {
    let name = part.required("tool_name", part.string("tool_name")?)?;
    match tools.contains(name) {
        true => Ok(Part::Text(format!("The tool {name} can be called."))),
        false => Err(part.invalid("tool_name", format_args!("names `{}`, which is not among `tools`", quoted(name)))),
    }
}

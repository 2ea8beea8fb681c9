//! Conversion of the blocks in a message's content.

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::cache_control::cache_control;
use chat::Part;
use http::error::{ApiError, quoted};
use http::fields::{Fields, wrong_type};
use http::omitted_content;
use http::pictures::{self, PicturePlace};

/// The most blocks in one message.
const MAX_BLOCKS: usize = 16_384;
/// The first line of some agents' system prompts. It changes with every request, so the prefix cache would find nothing after it.
const BILLING: &str = "x-anthropic-billing-header:";
/// The prefix of a signature that carries the reasoning itself.
pub const CARRIED: &str = "reasoning:";

/// The place of a block in the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockPlace {
    System,
    User,
    Assistant,
    Result,
}

/// Reads a block that is not text, given its type. Returns the part that it becomes, if any.
pub type Other<'a, 'b> = &'a mut dyn FnMut(&Fields<'b>, &str) -> Result<Option<Part>, ApiError>;

/// Reads the parts of a string or of a list of blocks. `other` reads the blocks that are not text.
pub fn parts<'b>(fields: &Fields<'b>, name: &str, place: BlockPlace, other: Other<'_, 'b>) -> Result<Vec<Part>, ApiError> {
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
            "image" if place == BlockPlace::Result => parts.push(image(&block, PicturePlace::Result)?),
            "image" if place == BlockPlace::User => parts.push(image(&block, PicturePlace::Message)?),
            kind if place == BlockPlace::Result && omitted_content::in_result(kind).is_some() => {
                parts.extend(omitted_content::in_result(kind).map(|text| Part::Text(text.into())));
            }
            "document" => parts.extend(document(&block, place)?),
            "search_result" => parts.extend(search_result(&block, place)?),
            kind => parts.extend(other(&block, kind)?),
        }
    }
    Ok(parts)
}

/// Returns the error for a block in a place that takes only text.
pub fn refused(block: &Fields, kind: &str) -> ApiError {
    let path = block.path("type");
    let problem = match kind {
        "image" => "only a user's message or a tool's result may hold it".to_owned(),
        "tool_use" | "thinking" | "redacted_thinking" => "only an assistant's message may hold it".to_owned(),
        "tool_result" => "only a user's message may hold it".to_owned(),
        "tool_reference" => "only a tool's result may hold it".to_owned(),
        other if other.starts_with("server_tool") || other.ends_with("_tool_result") => "this server runs no tools of its own".to_owned(),
        _ => "the blocks are text, document (of text), tool_use, tool_result, thinking and redacted_thinking".to_owned(),
    };
    ApiError::unsupported(&path, format!("`{path}` is `{}`, which is not supported here: {problem}", quoted(kind)))
}

/// Makes a part of a text. In a system prompt, the billing header's line is removed. `None` if nothing else remains.
fn text_part(text: &str, place: BlockPlace) -> Option<Part> {
    let rest = match place == BlockPlace::System && text.starts_with(BILLING) {
        true => text.split_once('\n').map(|(_, rest)| rest).filter(|rest| !rest.trim().is_empty())?,
        false => text,
    };
    Some(Part::Text(rest.to_owned()))
}

/// Reads a picture. Its type is told by its bytes, since many clients send a wrong `media_type`.
fn image(block: &Fields, place: PicturePlace) -> Result<Part, ApiError> {
    let path = block.path("source");
    let source = match block.get("source") {
        Some(source @ Value::Object(_)) => block.within(source, &path)?,
        _ => return Ok(pictures::of_nothing(&path, "has to be an object with a `type`", place)),
    };
    match source.string("type")? {
        Some("base64") => Ok(match source.string("data")? {
            Some(data) => pictures::of_base64(&source.path("data"), data, place),
            None => pictures::of_nothing(&source.path("data"), "is required", place),
        }),
        Some("url") => pictures::of_url(&source, "url", place),
        _ => Ok(pictures::of_nothing(&source.path("type"), "has to be `base64` or `url`", place)),
    }
}

/// Reads a plain-text document.
fn document(block: &Fields, place: BlockPlace) -> Result<Vec<Part>, ApiError> {
    let path = block.path("source");
    check_citations(block)?;
    let source = block.within(block.required("source", block.get("source"))?, &path)?;
    let texts = match source.required("type", source.string("type")?)? {
        "text" => vec![Part::Text(source.required("data", source.string("data")?)?.to_owned())],
        "content" => parts(&source, "content", place, &mut |block, kind| Err(refused(block, kind)))?,
        _ if place == BlockPlace::Result => vec![Part::Text(omitted_content::DOCUMENT.into())],
        other => {
            let path = source.path("type");
            let message = format!("`{path}` is `{}`; only documents of text are supported (type text or content)", quoted(other));
            return Err(ApiError::unsupported(&path, message));
        }
    };
    let heads = [block.string("title")?, block.string("context")?].into_iter().flatten().map(|head| Part::Text(head.to_owned()));
    Ok(heads.chain(texts).collect())
}

/// Reads a search result: its title, its source and its text.
fn search_result(block: &Fields, place: BlockPlace) -> Result<Vec<Part>, ApiError> {
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

/// Returns the reasoning of a thinking block. If the text was omitted from the answer, the signature holds the reasoning.
pub fn thinking(block: &Fields) -> Result<String, ApiError> {
    let text = block.required("thinking", block.string("thinking")?)?;
    let signature = block.string("signature")?.unwrap_or_default();
    let carried = || String::from_utf8(STANDARD.decode(signature.strip_prefix(CARRIED)?).ok()?).ok();
    Ok(if text.is_empty() { carried().unwrap_or_default() } else { text.to_owned() })
}

/// Reads the content of a tool's result. `tools` are the names that a tool reference may have.
pub fn result(block: &Fields, tools: &HashSet<&str>) -> Result<Vec<Part>, ApiError> {
    let mut found = match block.get("content") {
        None => Vec::new(),
        Some(_) => parts(block, "content", BlockPlace::Result, &mut |part, kind| match kind {
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

//! Renders a chat template from an untrusted file.

use std::hint::black_box;

use chat::Dialect;
use serde_json::{Map, Value};
use template::{ChatTemplate, Clock, RenderInput};

use crate::sections::{sections, text};
use crate::vocabulary::TOKENIZER;

/// Reads a dialect for one input in this many, because that takes dozens of renders.
const DIALECT: usize = 16;

/// The input's parts: the template; JSON with `messages`, `tools` and further variables.
pub fn body(input: &[u8]) {
    let [source, json] = sections(input);
    let clock = Clock::from_date("2026-11-23").expect("a date");
    let Ok(template) = ChatTemplate::with_clock(&text(source), "<s>", "</s>", clock) else { return };
    let _ = black_box(template.render(&variables(json, source.len())));
    if input.len().is_multiple_of(DIALECT) {
        black_box((template.features(), Dialect::of(&template, &TOKENIZER)));
    }
}

fn variables(json: &[u8], length: usize) -> RenderInput {
    let mut kwargs = match serde_json::from_slice(json) {
        Ok(Value::Object(map)) => map,
        Ok(messages) => Map::from_iter([("messages".to_owned(), messages)]),
        Err(_) => Map::new(),
    };
    let messages = kwargs.remove("messages").unwrap_or_default();
    let tools = kwargs.remove("tools");
    RenderInput { messages, tools, add_generation_prompt: length.is_multiple_of(2), kwargs }
}

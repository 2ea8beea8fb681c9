//! Reads the chat template.

use std::path::Path;

use gguf::{Array, Value};
use serde_json::Value as Json;

use crate::error::{Fallible, fault};
use crate::json;
use crate::table::Table;

/// Adds the chat template, if there is one, from `chat_template.jinja`, else from `tokenizer_config.json`, else from `chat_template.json`.
pub fn add(table: &mut Table, dir: &Path, settings: &Json) -> Fallible<()> {
    let path = dir.join("chat_template.jinja");
    if let Some(text) = json::text(&path)? {
        let Ok(text) = String::from_utf8(text) else { return fault(&path, "is not UTF-8") };
        table.keys.push(("tokenizer.chat_template".into(), text.into()));
        return Ok(());
    }
    let other: Json = json::read(&dir.join("chat_template.json"))?.unwrap_or_default();
    let template = [&settings["chat_template"], &other["chat_template"]].into_iter().find(|template| !template.is_null());
    match template {
        Some(Json::String(text)) => table.keys.push(("tokenizer.chat_template".into(), text.as_str().into())),
        Some(Json::Array(named)) => named_templates(table, dir, named)?,
        Some(_) => return fault(&dir.join("tokenizer_config.json"), "chat_template is neither a string nor a list of named templates"),
        None => {}
    }
    Ok(())
}

fn named_templates(table: &mut Table, dir: &Path, named: &[Json]) -> Fallible<()> {
    let mut names = Vec::new();
    for template in named {
        let (Some(name), Some(text)) = (template["name"].as_str(), template["template"].as_str()) else {
            return fault(&dir.join("tokenizer_config.json"), "chat_template holds an entry without name or template");
        };
        if name == "default" {
            table.keys.push(("tokenizer.chat_template".into(), text.into()));
        } else {
            names.push(name.to_owned());
            table.keys.push((format!("tokenizer.chat_template.{name}"), text.into()));
        }
    }
    if !names.is_empty() {
        table.keys.push(("tokenizer.chat_templates".into(), Value::Array(Array::Strings(names))));
    }
    Ok(())
}

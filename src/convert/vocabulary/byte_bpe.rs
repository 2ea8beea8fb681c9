//! Reads vocabularies from `vocab.json` and `merges.txt`: the byte-level BPE of older checkpoints.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value as Json;

use crate::error::{Fallible, fault};
use crate::json;
use crate::table::{NORMAL, Table, UNUSED};

/// Pre-tokenizers by `tokenizer_class`, because these files contain no pattern.
const CLASSES: &[(&str, &str)] =
    &[("GPT2Tokenizer", "gpt-2"), ("GPT2TokenizerFast", "gpt-2"), ("Qwen2Tokenizer", "qwen2"), ("Qwen2TokenizerFast", "qwen2")];
const MAX_ID: u32 = 4 << 20;

pub fn read(dir: &Path, settings: &Json) -> Fallible<Table> {
    let (vocab_path, merges_path) = (dir.join("vocab.json"), dir.join("merges.txt"));
    let ids: Option<HashMap<String, u32>> = json::read(&vocab_path)?;
    let (Some(ids), Some(merges)) = (ids, json::text(&merges_path)?) else {
        return fault(dir, "holds no tokenizer: expected tokenizer.json, tokenizer.model, or vocab.json and merges.txt");
    };
    let class = settings["tokenizer_class"].as_str().unwrap_or("GPT2Tokenizer");
    let Some((_, pre)) = CLASSES.iter().find(|(known, _)| *known == class) else {
        return fault(
            dir,
            format!("vocab.json does not say how texts are cut, and {class} is not known: save the tokenizer with tokenizer.json"),
        );
    };
    let count = ids.values().max().map_or(0, |&id| id.saturating_add(1));
    if count > MAX_ID {
        return fault(&vocab_path, format!("the largest id is {}, expected one below {MAX_ID}", count - 1));
    }
    let mut table = Table { model: "gpt2", types: vec![UNUSED; count as usize], ..Table::default() };
    table.tokens = (0..count).map(|id| format!("[PAD{id}]")).collect();
    for (token, id) in ids {
        (table.tokens[id as usize], table.types[id as usize]) = (token, NORMAL);
    }
    let Ok(merges) = String::from_utf8(merges) else { return fault(&merges_path, "is not UTF-8") };
    let lines = merges.lines().filter(|line| !line.is_empty() && !line.starts_with("#version"));
    table.merges = Some(lines.map(str::to_owned).collect());
    table.key("pre", *pre);
    Ok(table)
}

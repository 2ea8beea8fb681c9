//! Finds the tokens that begin, end and separate texts.

use std::path::Path;

use gguf::Value;
use serde_json::Value as Json;

use crate::config::Config;
use crate::error::Fallible;
use crate::json;
use crate::table::{CONTROL, NORMAL, Table};

/// The names of tokens in `tokenizer_config.json`, in `config.json` and in GGUF files. GGUF spells `separator` in its own way.
const OTHERS: &[(&str, &str, &str)] =
    &[("pad_token", "pad_token_id", "padding"), ("mask_token", "mask_token_id", "mask"), ("sep_token", "sep_token_id", "seperator")];

/// Names the special tokens. `tokenizer_config.json` takes precedence over `special_tokens_map.json` and `config.json`.
pub fn name(table: &mut Table, dir: &Path, config: &Config, settings: &Json) -> Fallible<()> {
    let map: Json = json::read(&dir.join("special_tokens_map.json"))?.unwrap_or_default();
    let generation: Json = json::read(&dir.join("generation_config.json"))?.unwrap_or_default();
    let text = |name: &str| [settings, &map].into_iter().find_map(|file| file[name].as_str().or(file[name]["content"].as_str()));
    let in_table = |table: &Table, id: u64| u32::try_from(id).ok().filter(|&id| (id as usize) < table.tokens.len());
    let find = |table: &Table, name: &str, number: &str| -> Fallible<Option<u32>> {
        let named = text(name).and_then(|text| table.id(text));
        let number = config.get(&[number]).and_then(|(_, value)| value.as_u64().or(value[0].as_u64()));
        Ok(named.or_else(|| in_table(table, number?)))
    };
    table.bos = find(table, "bos_token", "bos_token_id")?.or(table.bos);
    table.eos = find(table, "eos_token", "eos_token_id")?.or(table.eos);
    table.unknown = table.unknown.or(text("unk_token").and_then(|text| table.id(text)));
    let count = table.tokens.len() as u64;
    for id in [&mut table.bos, &mut table.eos, &mut table.unknown] {
        *id = id.filter(|&id| u64::from(id) < count);
    }
    for (name, number, key) in OTHERS {
        if let Some(id) = find(table, name, number)? {
            table.key(&format!("{key}_token_id"), id);
        }
    }
    if let Some(flag) = settings["add_bos_token"].as_bool() {
        table.adds_bos = flag;
    }
    if let Some(flag) = settings["add_eos_token"].as_bool() {
        table.adds_eos = flag;
    }
    table.adds_bos &= table.bos.is_some();
    table.adds_eos &= table.eos.is_some();
    // An ordinary token of the vocabulary becomes special if the files say so.
    for id in [table.bos, table.eos].into_iter().flatten() {
        let kind = &mut table.types[id as usize];
        *kind = if *kind == NORMAL { CONTROL } else { *kind };
    }
    let ends: Vec<u64> = match &generation["eos_token_id"] {
        Json::Array(ids) => ids.iter().filter_map(Json::as_u64).collect(),
        id => id.as_u64().into_iter().collect(),
    };
    let ends: Vec<u32> = ends.into_iter().filter_map(|id| in_table(table, id)).collect();
    other_ends(table, &ends);
    Ok(())
}

/// Names the tokens besides EOS that end a generation. GGUF has two keys for them.
fn other_ends(table: &mut Table, ends: &[u32]) {
    if table.eos.is_none() {
        table.eos = ends.first().copied();
    }
    let others: Vec<u32> = ends.iter().copied().filter(|id| Some(*id) != table.eos).collect();
    let is_message = |id: &u32| table.tokens[*id as usize] == "<|eom_id|>";
    let message = others.iter().copied().find(is_message);
    let mut turns = others.into_iter().filter(|id| Some(*id) != message);
    let turn = turns.next();
    let message = message.or_else(|| turns.next());
    let left: Vec<String> = turns.map(|id| table.tokens[id as usize].clone()).collect();
    for (key, id) in [("eot_token_id", turn), ("eom_token_id", message)] {
        if let Some(id) = id {
            table.key(key, Value::U32(id));
        }
    }
    for token in left {
        table.notes.push(format!("the token {token} also ends a generation, but a GGUF file has no further key for it"));
    }
}

//! Converts the vocabulary of a checkpoint to the keys `tokenizer.ggml.*`.

mod byte_bpe;
mod ranks;
mod special;
mod template;

use std::path::Path;

use gguf::{Array, Value};
use serde_json::Value as Json;
use tokenizer::{Kind, Parts};

use crate::config::Config;
use crate::error::{Fallible, fault, wrong};
use crate::json;
use crate::table::Table;

/// A vocabulary's keys, and notes on what the keys cannot express.
pub struct Vocabulary {
    pub pairs: Vec<(String, Value)>,
    pub notes: Vec<String>,
}

/// Reads the tokenizer's files. `rows` is the number of rows of the embedding.
pub fn read(dir: &Path, config: &Config, arch: &str, rows: u64) -> Fallible<Vocabulary> {
    let settings: Json = json::read(&dir.join("tokenizer_config.json"))?.unwrap_or_default();
    let path = dir.join("tokenizer.json");
    let table = if path.exists() {
        of_json(&path, dir, arch)?
    } else if dir.join("tokenizer.model").exists() {
        crate::sentencepiece::read(&dir.join("tokenizer.model"))?
    } else {
        byte_bpe::read(dir, &settings)?
    };
    let mut table = table.with_added(dir, &settings)?.fitted(rows)?;
    special::name(&mut table, dir, config, &settings)?;
    template::add(&mut table, dir, &settings)?;
    Ok(Vocabulary { notes: std::mem::take(&mut table.notes), pairs: table.pairs() })
}

fn of_json(path: &Path, dir: &Path, arch: &str) -> Fallible<Table> {
    let parts = Parts::open(path).or_else(|error| wrong(error.to_string()))?;
    let mut table = Table { tokens: parts.tokens, types: parts.types, ..Table::default() };
    for (id, token) in table.tokens.iter_mut().enumerate().filter(|(_, token)| token.is_empty()) {
        *token = format!("[PAD{id}]");
    }
    for token in &parts.stripping {
        table.notes.push(format!("the token {token} includes the white space next to it, which a GGUF file cannot express"));
    }
    let model = match parts.kind {
        Kind::Bytes => {
            let Some(name) = preferred(&parts.names, arch) else {
                let (patterns, ignored) = (parts.patterns.join("\n"), if parts.ignore_merges { " and ignore_merges" } else { "" });
                return fault(path, format!("no known pre-tokenizer of GGUF files has these patterns{ignored}:\n{patterns}"));
            };
            table.key("pre", name);
            table.merges = Some(parts.merges.iter().map(|(left, right)| format!("{left} {right}")).collect());
            "gpt2"
        }
        Kind::Characters => {
            table.key("pre", "default");
            table.scores = Some(
                crate::sentencepiece::scores(&dir.join("tokenizer.model"), &table.tokens)?
                    .map_or_else(|| ranks::scores(&table.tokens, &table.types, &parts.merges).or_else(|text| fault(path, text)), Ok)?,
            );
            table.key("add_space_prefix", parts.add_space_prefix);
            "llama"
        }
        Kind::Unigram => {
            table.key("pre", "default");
            table.scores = Some(parts.scores);
            table.key("add_space_prefix", parts.add_space_prefix);
            table.key("remove_extra_whitespaces", parts.squeeze_spaces);
            if !parts.charsmap.is_empty() {
                table.key("precompiled_charsmap", Value::Array(Array::U8(parts.charsmap)));
            }
            "t5"
        }
    };
    table.model = model;
    (table.bos, table.eos, table.unknown) = (parts.bos, parts.eos, parts.unknown);
    (table.adds_bos, table.adds_eos) = (parts.adds_bos, parts.adds_eos);
    Ok(table)
}

/// The name that files of the architecture use, for a pre-tokenizer with several names.
fn preferred(names: &[&'static str], arch: &str) -> Option<&'static str> {
    let usual = match arch {
        "starcoder" | "starcoder2" => "starcoder",
        "command-r" | "cohere2" => "command-r",
        "stablelm" => "stablelm2",
        _ => "",
    };
    names.iter().find(|name| **name == usual).or(names.first()).copied()
}

//! `penstock show`: what a model is, from its file's metadata.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value as Json, json};

use super::list::{columns, human, print};
use crate::config::{Config, Overrides};
use crate::gguf::{GgufFile, Value};
use crate::registry::{Store, resolve};

#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  penstock show smollm2
  penstock show ./model.gguf --json")]
pub struct Args {
    /// An id or alias of a model on disk, or a GGUF file
    #[arg(value_name = "MODEL|FILE.gguf")]
    model: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args, config: Option<&Path>) -> anyhow::Result<()> {
    let config = Config::load(config, &Overrides::default())?;
    let (id, path) = locate(&config, &args.model)?;
    let file = GgufFile::open(&path)?;
    let shown = describe(&id, &path, &file);
    print(&if args.json { format!("{shown:#}\n") } else { text(&shown) })
}

/// A file of the user's own is shown even where it has another suffix than `.gguf`.
fn locate(config: &Config, name: &str) -> anyhow::Result<(String, PathBuf)> {
    match resolve(config, name) {
        Ok(entry) => {
            let path = Store::new(&config.server.models_dir).path(&entry);
            let path = path.with_context(|| format!("`{}` is not on disk: `penstock pull {}` fetches it", entry.id, entry.id))?;
            Ok((entry.id, path))
        }
        Err(_) if Path::new(name).is_file() => Ok((name.into(), name.into())),
        Err(error) => Err(error),
    }
}

fn describe(id: &str, path: &Path, file: &GgufFile) -> Json {
    let string = |key: &str| file.get(key).and_then(Value::as_str);
    let architecture = string("general.architecture").unwrap_or_default();
    let int = |key: &str| file.get(&format!("{architecture}.{key}")).and_then(Value::as_int).and_then(|n| u64::try_from(n).ok());
    let heads = int("attention.head_count");
    let head_dim = int("attention.key_length").or_else(|| int("embedding_length")?.checked_div(heads?));
    let parameters = file.tensors().iter().fold(0u64, |sum, tensor| sum.saturating_add(tensor.elements()));
    let vocab = file.get("tokenizer.ggml.tokens").and_then(Value::as_array).map(|tokens| tokens.len());
    json!({
        "id": id,
        "path": std::path::absolute(path).unwrap_or_else(|_| path.into()),
        "name": string("general.name"),
        "licence": string("general.license"),
        "architecture": architecture,
        "parameters": parameters,
        "size": file.file_bytes(),
        "quantisation": shares(file),
        "context_length": int("context_length"),
        "num_layers": int("block_count"),
        "hidden_dim": int("embedding_length"),
        "ffn_dim": int("feed_forward_length"),
        "num_heads": heads,
        "num_kv_heads": int("attention.head_count_kv").or(heads),
        "head_dim": head_dim,
        "vocab_size": vocab,
        "chat_template": string("tokenizer.chat_template").is_some(),
    })
}

/// Tensor types by their share of the weights' bytes, the largest first.
fn shares(file: &GgufFile) -> Vec<Json> {
    let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
    for tensor in file.tensors() {
        let sum = bytes.entry(tensor.type_name()).or_default();
        *sum = sum.saturating_add(tensor.nbytes);
    }
    let total = bytes.values().fold(0u64, |sum, bytes| sum.saturating_add(*bytes)).max(1) as f64;
    let mut shares: Vec<_> = bytes.into_iter().collect();
    shares.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    shares
        .into_iter()
        .map(|(name, bytes)| json!({ "type": name, "bytes": bytes, "share": (bytes as f64 / total * 1e4).round() / 1e4 }))
        .collect()
}

fn text(shown: &Json) -> String {
    let mut rows = Vec::new();
    for (key, value) in shown.as_object().into_iter().flatten() {
        let value = match (key.as_str(), value) {
            (_, Json::Null) => "not said".to_owned(),
            ("size", Json::Number(bytes)) => format!("{bytes} bytes ({})", human(bytes.as_u64().unwrap_or(0))),
            ("parameters", Json::Number(count)) => format!("{count} ({:.1} M)", count.as_f64().unwrap_or(0.0) / 1e6),
            (_, Json::Bool(flag)) => if *flag { "yes" } else { "no" }.to_owned(),
            (_, Json::String(text)) => text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect(),
            (_, Json::Array(types)) => {
                let one = |share: &Json| {
                    format!("{} {:.1} %", share["type"].as_str().unwrap_or_default(), share["share"].as_f64().unwrap_or(0.0) * 100.0)
                };
                types.iter().map(one).collect::<Vec<_>>().join(", ")
            }
            (_, value) => value.to_string(),
        };
        rows.push([key.replace('_', " "), value]);
    }
    columns(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::GgufBuilder;

    #[test]
    fn a_file_is_described_by_its_metadata() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        let builder = GgufBuilder::new()
            .kv("general.architecture", "llama")
            .kv("general.name", "Tiny\u{1b}[31m")
            .kv("llama.block_count", 3u32)
            .kv("llama.embedding_length", 64u32)
            .kv("llama.attention.head_count", 4u32)
            .kv("llama.attention.head_count_kv", 2u32)
            .tensor_f32("a", &[32, 3], &[0.5; 96])
            .tensor("b", &[32], 8, vec![0; 34]);
        std::fs::write(&path, builder.build()).unwrap();
        let shown = describe("tiny", &path, &GgufFile::open(&path).unwrap());
        assert_eq!(shown["path"].as_str(), path.to_str());
        let expected = json!(["llama", 128, 3, 4, 2, 16, false, null]);
        let keys = ["architecture", "parameters", "num_layers", "num_heads", "num_kv_heads", "head_dim", "chat_template", "licence"];
        assert_eq!(Json::from(keys.map(|key| shown[key].clone()).to_vec()), expected);
        assert_eq!(
            shown["quantisation"],
            json!([{ "type": "F32", "bytes": 384, "share": 0.9187 }, { "type": "Q8_0", "bytes": 34, "share": 0.0813 }])
        );
        let text = text(&shown);
        assert!(text.contains("quantisation    F32 91.9 %, Q8_0 8.1 %") && text.contains("licence         not said"), "{text}");
        assert!(!text.contains('\u{1b}'), "a file cannot send escape sequences to the terminal");
    }
}

//! `penstock show`: a model's metadata, and whether it fits into this machine's memory.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::names::{ModelLocation, locate};
use super::output::{columns, human_bytes, print, print_json};
use super::unfetched::{self, unfetched};
use crate::catalogue::{Store, resolve};
use crate::config::{Config, Context, Overrides};
use crate::engine::{EngineOptions, Footprint, find_device, footprints, longest_context};
use crate::gguf::{GgufFile, Value};
use crate::logits::SamplingChoice;
use crate::model::Weights;
use crate::registry::{FoundEncoder, PictureEncoder, backend, default_sampling, draft_bytes, engine_options, mmproj};
use crate::serving::{ModelFile, RowShape, chat_template, file_sampling};
use crate::template::Features;
use crate::tokenizer::Tokenizer;

#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  penstock show smollm2
  penstock show ./model.gguf --json
  penstock show qwen3 --context 32768 --sequences 8")]
pub struct ShowArgs {
    /// An id or alias of a model, or a GGUF file. If the model is not on disk, what the catalogue knows is shown
    #[arg(value_name = "MODEL|FILE.gguf")]
    model: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The context to compute memory for [default: the context that would be served]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,
    /// The number of sequences to compute memory for
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    sequences: u32,
}

pub fn run(args: ShowArgs, config: Option<&Path>) -> anyhow::Result<()> {
    let config = Config::load(config, &Overrides::default())?;
    let store = Store::new(&config.server.models_dir);
    if let Ok(entry) = resolve(&config, &args.model)
        && let Some(shown) = unfetched(&entry, &store)
    {
        return if args.json { print_json(&shown) } else { print(&unfetched::text(&entry, &shown)) };
    }
    let located = locate(&config, &args.model)?;
    let file = Arc::new(GgufFile::open(&located.path)?);
    let mut shown = describe(&located.entry.id, &located.path, &file);
    shown["on_disk"] = true.into();
    shown["template"] = template(&located, &file);
    shown["base"] = (located.entry.base || shown["template"].is_null() && !makes_vectors(&file)).into();
    shown["sampling"] = sampling(default_sampling(&located.entry, file_sampling(&file)));
    let (fault, (pictures, memory)) = match memory(&config, &located, &args, file) {
        Ok(known) => (Json::Null, known),
        Err(error) => (format!("{error:#}").into(), Default::default()),
    };
    if let Some(draft) = &located.entry.draft {
        shown["draft"] = draft.as_str().into();
    }
    shown["pictures"] = pictures;
    shown["runnable"] = fault.is_null().into();
    shown["fault"] = fault;
    shown["memory"] = memory;
    if args.json { print_json(&shown) } else { print(&text(&shown)) }
}

/// Whether the file says how rows are pooled to a vector.
fn makes_vectors(file: &GgufFile) -> bool {
    file.get_str("general.architecture").is_some_and(|name| file.get(&format!("{name}.pooling_type")).is_some())
}

/// The features of the chat template. Null without a template.
fn template(located: &ModelLocation, file: &GgufFile) -> Json {
    if located.entry.chat_template.is_none() && file.get_str("tokenizer.chat_template").is_none() {
        return Json::Null;
    }
    let compile = || chat_template(file, &Tokenizer::open(file)?, located.entry.chat_template.as_deref());
    match compile().map(|template| template.map(|template| template.features())) {
        Err(fault) => json!({ "fault": format!("{fault:#}") }),
        Ok(None) => Json::Null,
        Ok(Some(Features { system, tools, tool_results, thinking_switch })) => {
            json!({ "system": system, "tools": tools, "tool_results": tool_results, "thinking_switch": thinking_switch })
        }
    }
}

/// The sampling values for requests that do not choose. Null if none are recommended.
fn sampling(choice: SamplingChoice) -> Json {
    let SamplingChoice { temperature, top_k, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty, .. } = choice;
    let shown = |value: Option<f32>| value.map_or(Json::Null, |value| value.to_string().parse::<f64>().unwrap_or(f64::from(value)).into());
    let all = [
        ("temperature", shown(temperature)),
        ("top_k", top_k.into()),
        ("top_p", shown(top_p)),
        ("min_p", shown(min_p)),
        ("presence_penalty", shown(presence_penalty)),
        ("frequency_penalty", shown(frequency_penalty)),
        ("repetition_penalty", shown(repetition_penalty)),
    ];
    let set = all.into_iter().filter(|(_, value)| !value.is_null());
    let set: serde_json::Map<String, Json> = set.map(|(name, value)| (name.to_owned(), value)).collect();
    if set.is_empty() { Json::Null } else { set.into() }
}

/// The model's picture encoder, and the memory that weights and KV cache need on each device.
///
/// # Errors
/// No engine can run the model, or its entry names a wrong picture encoder.
fn memory(config: &Config, located: &ModelLocation, args: &ShowArgs, file: Arc<GgufFile>) -> anyhow::Result<(Json, Json)> {
    let engine = &config.engine;
    let target = ModelFile::of(file.clone())?;
    let weights = Weights::load(file)?;
    let most = weights.spec.context_length;
    let found = mmproj(config, &located.entry, &located.path, &RowShape::of(&weights.spec))?;
    let encoder = |backend| found.encoder.as_ref().map_or(0, |encoder| encoder.facts.bytes_on(backend));
    let options = |context: usize| EngineOptions { context, ..engine_options(engine, &located.entry) };
    let draft = |options: &EngineOptions| draft_bytes(config, &located.entry, &target, options);
    let context = match (args.context, located.entry.context.unwrap_or(engine.context)) {
        (Some(tokens), _) => tokens as usize,
        (None, Context::Tokens(tokens)) => tokens.min(most),
        (None, Context::Auto) => {
            let device = find_device(backend(engine.backend), engine.device)?;
            let kind = device.place().0;
            let longest = |context: usize| -> anyhow::Result<usize> {
                let beside = encoder(kind).saturating_add(draft(&options(context))?(kind));
                Ok(longest_context(&*device, &weights, &options(context), beside)?)
            };
            longest(longest(1)?)?
        }
    };
    anyhow::ensure!(context <= most, "--context is {context}, but the model's context ends at {most}");
    let kv_tokens = context.next_multiple_of(engine.block_size).saturating_mul(args.sequences as usize);
    let options = EngineOptions { kv_tokens, ..options(context) };
    let draft = draft(&options)?;
    let all = footprints(&weights, &options)?.into_iter().map(|footprint| footprint.with(encoder).with(&draft));
    let devices: Vec<Json> = all.map(|footprint| device(&footprint)).collect();
    Ok((pictures(&found), json!({ "context": context, "sequences": args.sequences, "devices": devices })))
}

/// What reads the model's pictures. Null if nothing does.
fn pictures(found: &FoundEncoder) -> Json {
    match &found.encoder {
        Some(PictureEncoder { path, facts }) => {
            json!({ "family": facts.family, "most_rows": facts.most_rows, "path": path, "size": facts.bytes, "notes": found.notes })
        }
        None if found.notes.is_empty() => Json::Null,
        None => json!({ "family": null, "notes": found.notes }),
    }
}

fn device(footprint: &Footprint) -> Json {
    let Footprint { backend, device, weights, cache_type, kv, scratch, memory } = footprint;
    json!({
        "device": device,
        "backend": backend.name(),
        "weights": weights,
        "cache_type": cache_type.name(),
        "kv": kv,
        "scratch": scratch,
        "needed": footprint.needed(),
        "available": memory.map(|memory| memory.free),
        "total": memory.map(|memory| memory.total),
        "fits": footprint.fits(),
    })
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
            ("fault", Json::Null) => continue,
            ("template", value) => features(value),
            ("pictures", value) => seen(value),
            ("sampling", Json::Object(values)) => {
                values.iter().map(|(name, value)| format!("{} {value}", name.replace('_', " "))).collect::<Vec<_>>().join(", ")
            }
            ("memory", value) => {
                rows.extend(devices(value));
                continue;
            }
            (_, Json::Null) => "not given".to_owned(),
            ("size", Json::Number(bytes)) => format!("{bytes} bytes ({})", human_bytes(bytes.as_u64().unwrap_or(0))),
            ("parameters", Json::Number(count)) => format!("{count} ({:.1} M)", count.as_f64().unwrap_or(0.0) / 1e6),
            (_, Json::Bool(flag)) => if *flag { "yes" } else { "no" }.to_owned(),
            (_, Json::String(text)) => text.clone(),
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

fn features(template: &Json) -> String {
    if let Some(fault) = template["fault"].as_str() {
        return fault.to_owned();
    }
    let shown = template.as_object().into_iter().flatten().filter(|(_, has)| **has == true);
    let names: Vec<String> = shown.map(|(name, _)| name.replace('_', " ")).collect();
    if template.is_null() { "none".into() } else { std::iter::once("messages".to_owned()).chain(names).collect::<Vec<_>>().join(", ") }
}

/// What reads the model's pictures, or why nothing does.
fn seen(pictures: &Json) -> String {
    let notes = pictures["notes"].as_array().into_iter().flatten().filter_map(Json::as_str);
    let notes: String = notes.map(|note| format!(" ({note})")).collect();
    match pictures["family"].as_str() {
        Some(family) => {
            let (path, size) = (pictures["path"].as_str().unwrap_or_default(), human_bytes(pictures["size"].as_u64().unwrap_or(0)));
            format!("{family}, {} rows per picture at most, {path}, {size}{notes}", pictures["most_rows"])
        }
        None => format!("none{notes}"),
    }
}

/// One row per device: the memory needed and available, and whether the model fits.
fn devices(memory: &Json) -> Vec<[String; 2]> {
    let bytes = |value: &Json| value.as_u64().map_or("?".into(), human_bytes);
    let row = |device: &Json| {
        let verdict = match device["fits"].as_bool() {
            Some(true) => "fits",
            Some(false) => "does not fit",
            None => "free memory is unknown",
        };
        let [weights, kv, scratch, needed, available] = ["weights", "kv", "scratch", "needed", "available"].map(|key| bytes(&device[key]));
        let (context, sequences) = (&memory["context"], &memory["sequences"]);
        let cache_type = device["cache_type"].as_str().unwrap_or_default();
        let parts = format!("weights {weights}, KV {kv} ({cache_type}) for {sequences} x {context} tokens, scratch up to {scratch}");
        [device["device"].as_str().unwrap_or_default().to_owned(), format!("{verdict}: {needed} of {available} available ({parts})")]
    };
    memory["devices"].as_array().into_iter().flatten().map(row).collect()
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
        assert!(text.contains("quantisation    F32 91.9 %, Q8_0 8.1 %") && text.contains("licence         not given"), "{text}");
        assert!(!text.contains('\u{1b}'), "escape sequences of a file do not reach the terminal");
    }
}

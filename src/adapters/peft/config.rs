//! [`PeftConfig`]: `adapter_config.json`. A setting that changes what the adapter computes is followed, or refused by name.

use std::path::Path;

use convert::Config;
use model::Weights;
use serde_json::Value;

use super::files::{CONFIG, fault_of};
use super::modules::Module;
use super::pattern::Patterns;
use crate::open_adapter::invocation_of;

/// The most bytes of the file. Those that list every module have about a megabyte.
const MAX_BYTES: u64 = 4 << 20;

/// Variants of LoRA with a setting that this program follows.
const KNOWN_USES: &[&str] = &["use_rslora", "use_dora"];
/// Initialisations that leave the model's weights as they are.
const PLAIN_STARTS: &[&str] = &["gaussian", "eva", "orthogonal"];
/// Settings that must be absent, false or empty, and what they do.
const REFUSED: &[(&str, &str)] = &[
    ("target_parameters", "parameters outside of modules"),
    ("trainable_token_indices", "single rows of a table"),
    ("layer_replication", "layers that occur twice"),
    ("lora_bias", "biases of the adapter"),
    ("megatron_config", "modules that are split over devices"),
    ("arrow_config", "a choice between adapters for each token"),
];

#[derive(Debug)]
pub struct PeftConfig {
    rank: u64,
    alpha: f64,
    ranks: Patterns<u64>,
    alphas: Patterns<f64>,
    is_stabilised: bool,
    pub uses_dora: bool,
    saved: Vec<String>,
    base: String,
    pub invocation: Vec<u32>,
}

impl PeftConfig {
    /// # Errors
    /// Names the setting that is malformed or cannot be followed.
    pub fn read(path: &Path, weights: &Weights) -> Result<Self, String> {
        let Some(config) = Config::read(path, MAX_BYTES).map_err(fault_of)? else {
            return Err(format!("has no {CONFIG}: expected PEFT's folder, or a GGUF file"));
        };
        refuse_others(&config)?;
        let flag = |name: &str| config.flag(&[name]).map_err(fault_of);
        let rank = config.need_count(&["r"]).map_err(fault_of)?;
        let Some(alpha) = config.number(&["lora_alpha"]).map_err(fault_of)? else {
            return config.fault("lora_alpha", "a number").map_err(fault_of);
        };
        Ok(Self {
            rank: rank.into(),
            alpha,
            ranks: patterns(&config, "rank_pattern", |value| value.as_u64().filter(|&rank| rank > 0))?,
            alphas: patterns(&config, "alpha_pattern", |value| value.as_f64().filter(|alpha| alpha.is_finite()))?,
            is_stabilised: flag("use_rslora")?.unwrap_or(false),
            uses_dora: flag("use_dora")?.unwrap_or(false),
            saved: texts(&config, "modules_to_save")?,
            base: config.text(&["base_model_name_or_path"]).map_err(fault_of)?.unwrap_or("a model without a name").to_owned(),
            invocation: invocation(&config, weights)?,
        })
    }

    /// The model that the adapter was trained on, as a part of a message.
    pub fn base_name(&self) -> String {
        outside::in_line(&self.base).chars().take(120).collect()
    }

    pub fn rank_of(&self, module: &str) -> u64 {
        self.ranks.get(module).copied().unwrap_or(self.rank)
    }

    /// The factor of B A.
    pub fn scale_of(&self, module: &str, rank: usize) -> Result<f32, String> {
        let alpha = self.alphas.get(module).copied().unwrap_or(self.alpha);
        let rank = rank as f64;
        let scale = (alpha / if self.is_stabilised { rank.sqrt() } else { rank }) as f32;
        match scale.is_finite() {
            true => Ok(scale),
            false => Err(format!("{CONFIG}: lora_alpha is {alpha:e}, which float32 cannot hold")),
        }
    }

    /// Checks that the file has the modules that the configuration says were saved.
    pub fn check_saved(&self, modules: &[Module]) -> Result<(), String> {
        let is_there = |saved: &String| {
            let named = |module: &&Module| module.name == saved || module.name.ends_with(&format!(".{saved}"));
            modules.iter().filter(|module| module.saved.is_some()).any(|module| named(&module))
        };
        match self.saved.iter().find(|saved| !is_there(saved)) {
            Some(saved) => {
                let saved = outside::in_line(saved);
                Err(format!("{CONFIG}: modules_to_save has {saved}, but the file of tensors has no weights of it: is it complete?"))
            }
            None => Ok(()),
        }
    }
}

/// Refuses kinds of adapters and settings that this program does not follow.
fn refuse_others(config: &Config) -> Result<(), String> {
    let wanted = |name: &str, expected: &str| config.fault(name, expected).map_err(fault_of);
    match config.text(&["peft_type"]).map_err(fault_of)? {
        Some(kind) if kind.eq_ignore_ascii_case("LORA") => {}
        _ => return wanted("peft_type", "\"LORA\""),
    }
    if config.text(&["bias"]).map_err(fault_of)?.is_some_and(|bias| bias != "none") {
        return wanted("bias", "\"none\": adapters cannot change biases, so merge this one into its model");
    }
    for (name, what) in REFUSED {
        if config.get(&[name]).is_some_and(|(_, value)| !is_empty(value)) {
            return Err(format!("{CONFIG}: {name} is set ({what}), which cannot be used: merge the adapter into its model"));
        }
    }
    let unknown = |(name, value): &(&String, &Value)| name.starts_with("use_") && !KNOWN_USES.contains(&name.as_str()) && !is_empty(value);
    if let Some((name, _)) = config.all().find(unknown) {
        return Err(format!("{CONFIG}: {} is set, a variant of LoRA that cannot be used", outside::in_line(name)));
    }
    match config.get(&["init_lora_weights"]) {
        Some((name, Value::String(start))) if !PLAIN_STARTS.contains(&start.as_str()) => {
            wanted(&name, "true: this start changes the model's own weights, so convert the adapter to plain LoRA when it is saved")
        }
        _ => Ok(()),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

/// The values of a table of patterns.
fn patterns<T>(config: &Config, name: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Patterns<T>, String> {
    let Some((_, table)) = config.get(&[name]) else { return Patterns::new([]) };
    let Some(table) = table.as_object() else { return config.fault(name, "an object").map_err(fault_of) };
    let malformed = |key: &str| format!("{CONFIG}: {name} has a value for {} that is no positive number", outside::in_line(key));
    let entries = table.iter().map(|(key, value)| Ok((key.clone(), read(value).ok_or_else(|| malformed(key))?)));
    Patterns::new(entries.collect::<Result<Vec<_>, String>>()?).map_err(|fault| format!("{CONFIG}: {name}: {fault}"))
}

fn texts(config: &Config, name: &str) -> Result<Vec<String>, String> {
    let Some((_, list)) = config.get(&[name]) else { return Ok(Vec::new()) };
    let texts = list.as_array().and_then(|items| items.iter().map(|item| item.as_str().map(str::to_owned)).collect());
    texts.map_or_else(|| config.fault(name, "a list of names").map_err(fault_of), Ok)
}

fn invocation(config: &Config, weights: &Weights) -> Result<Vec<u32>, String> {
    let name = "alora_invocation_tokens";
    let Some((_, list)) = config.get(&[name]) else { return Ok(Vec::new()) };
    let ids: Option<Vec<i64>> = list.as_array().and_then(|items| items.iter().map(Value::as_i64).collect());
    match ids {
        Some(ids) => invocation_of(name, &ids, weights).map_err(|fault| format!("{CONFIG}: {fault}")),
        None => config.fault(name, "a list of token ids").map_err(fault_of),
    }
}

//! Conversion of `options`. Each option is honoured, known to have no effect here, or refused by name.

use serde_json::Value;

use config::Limits;
use http::error::ApiError;
use http::fields::{Fields, wrong_type};
use http::stop::{MOST, stop_texts};
use logits::{SamplingChoice, SamplingParams};
use serving::{Budget, Model, Options};

const FIELD: &str = "options";
/// The largest temperature. Beyond it, all tokens are equally likely.
const MAX_TEMPERATURE: f64 = 1000.0;
/// The seed that means a random one.
const ANY_SEED: i64 = -1;

/// Options for loading a model. They have no effect, because the server's configuration decides how models are loaded.
const OF_LOADING: &[&str] =
    &["num_gpu", "main_gpu", "num_thread", "num_batch", "num_keep", "use_mmap", "use_mlock", "numa", "low_vram", "f16_kv"];
/// Known but unsupported options, and the values with which they ask for nothing.
const OFF: &[(&str, &[f64])] = &[("typical_p", &[1.0, 0.0]), ("tfs_z", &[1.0, 0.0]), ("mirostat", &[0.0])];
/// Options that have an effect only together with `mirostat`.
const OF_MIROSTAT: &[&str] = &["mirostat_tau", "mirostat_eta"];
/// Known but unsupported switches, and the value with which they ask for nothing.
const SWITCHES: &[(&str, bool)] = &[("penalize_newline", true), ("logits_all", false), ("vocab_only", false), ("embedding_only", false)];

/// The generation options, and the values that are checked against the model.
#[derive(Debug)]
pub struct Settings {
    pub options: Options,
    repeat_last_n: Option<i64>,
}

pub fn settings(fields: &Fields, limits: &Limits) -> Result<Settings, ApiError> {
    let empty = Value::Object(serde_json::Map::new());
    let options = fields.within(fields.get(FIELD).unwrap_or(&empty), FIELD)?;
    refuse(&options)?;
    let repeat_last_n = options.integer("repeat_last_n", -1..=i64::from(u32::MAX))?;
    let chosen = match repeat_last_n {
        // With 0, penalties see no tokens, so they are switched off.
        Some(0) => chosen(&options)?.without_penalties(),
        _ => chosen(&options)?,
    };
    let seed = uuid::Uuid::new_v4().as_u64_pair().0;
    // A model's context is the one that it is served with. Clients send the context that they know, and prompts that do not fit are
    // refused.
    options.count("num_ctx", 0)?;
    let sampling = chosen.applied_to(SamplingParams { seed, ..SamplingParams::default() });
    Ok(Settings {
        options: Options {
            chosen: Some(chosen),
            stop: stop_texts(&options, "stop", limits.max_stop_sequences.max(MOST))?,
            ..Options::new(sampling, budget(&options, limits)?)
        },
        repeat_last_n,
    })
}

/// Refuses known but unsupported options.
fn refuse(options: &Fields) -> Result<(), ApiError> {
    let unsupported = |name: &str, neutral: &str| {
        let path = options.path(name);
        ApiError::unsupported(&path, format!("`{path}` is not supported: leave it out, or send {neutral}"))
    };
    for (name, neutral) in OFF {
        let number = options.number(name, f64::MIN..=f64::MAX)?;
        if number.is_some_and(|number| !neutral.contains(&number)) {
            return Err(unsupported(name, &neutral[0].to_string()));
        }
    }
    for (name, neutral) in SWITCHES {
        if options.bool(name)?.is_some_and(|value| value != *neutral) {
            return Err(unsupported(name, &neutral.to_string()));
        }
    }
    for name in OF_MIROSTAT {
        options.number(name, f64::MIN..=f64::MAX)?;
    }
    for name in OF_LOADING {
        if let Some(value) = options.get(name).filter(|value| !value.is_number() && !value.is_boolean()) {
            return Err(wrong_type(&options.path(name), "a number or a boolean", value));
        }
    }
    Ok(())
}

fn budget(options: &Fields, limits: &Limits) -> Result<Budget, ApiError> {
    match options.integer("num_predict", i64::from(i32::MIN)..=i64::from(u32::MAX))? {
        // Zero and negative values mean as many tokens as the context has left. Nothing is moved out of the context to make room.
        None | Some(..=0) => Ok(Budget::Rest),
        Some(count) if limits.strict_max_tokens => Ok(Budget::Strict(count as u32)),
        Some(count) => Ok(Budget::Explicit(count as u32)),
    }
}

fn chosen(options: &Fields) -> Result<SamplingChoice, ApiError> {
    let number = |field: &str, range| Ok::<_, ApiError>(options.number(field, range)?.map(|value| value as f32));
    let positive = |field: &str, most: f64| match number(field, 0.0..=most)? {
        Some(0.0) => Err(options.invalid(field, "must be greater than 0")),
        value => Ok(value),
    };
    Ok(SamplingChoice {
        temperature: number("temperature", 0.0..=MAX_TEMPERATURE)?,
        top_k: options.integer("top_k", -1..=i64::from(u32::MAX))?.map(|value| value.max(0) as u32),
        // With a share of 0, only the likeliest token remains.
        top_p: number("top_p", 0.0..=1.0)?.map(|share| share.max(f32::MIN_POSITIVE)),
        min_p: number("min_p", 0.0..=1.0)?,
        presence_penalty: number("presence_penalty", -2.0..=2.0)?,
        frequency_penalty: number("frequency_penalty", -2.0..=2.0)?,
        repetition_penalty: positive("repeat_penalty", 10.0)?,
        seed: options.integer("seed", i64::MIN..=i64::MAX)?.filter(|seed| *seed != ANY_SEED).map(|seed| seed as u64),
    })
}

impl Settings {
    /// Logs how the model deviates from the request: its penalties see more than the last tokens.
    pub fn log_differences(&self, model: &Model) {
        let sampling = model.sampling_of(&self.options);
        let penalises = sampling.repetition_penalty != 1.0 || sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0;
        if let Some(last @ 1..) = self.repeat_last_n.filter(|&last| penalises && last < model.context() as i64) {
            tracing::warn!("{}: `options.repeat_last_n` is {last}, but penalties see the whole text", model.id);
        }
    }
}

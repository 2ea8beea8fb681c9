//! `options`: each is honoured, known to mean nothing here, or refused by name.

use serde_json::Value;

use crate::http::error::{ApiError, quoted};
use crate::http::fields::{Fields, wrong_type};
use config::Limits;
use logits::{SamplingChoice, SamplingParams};
use serving::{Budget, Model, Options};

const FIELD: &str = "options";
/// The most bytes of one stop text.
const MAX_STOP_BYTES: usize = 1024;

const HONOURED: &[&str] = &[
    "num_predict",
    "num_ctx",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "stop",
    "seed",
];
/// How Ollama would load the model. The server's configuration says how models are loaded, so they change nothing.
const OF_LOADING: &[&str] =
    &["num_gpu", "main_gpu", "num_thread", "num_batch", "num_keep", "use_mmap", "use_mlock", "numa", "low_vram", "f16_kv"];
/// Known and not supported, with the values that ask for nothing.
const OFF: &[(&str, &[f64])] = &[("typical_p", &[1.0, 0.0]), ("tfs_z", &[1.0, 0.0]), ("mirostat", &[0.0])];
/// They mean something with `mirostat` alone.
const OF_MIROSTAT: &[&str] = &["mirostat_tau", "mirostat_eta"];
/// Switches that are known and not supported, with the value that asks for nothing.
const SWITCHES: &[(&str, bool)] = &[("penalize_newline", true), ("logits_all", false), ("vocab_only", false), ("embedding_only", false)];

/// How to generate, and what the model must agree with.
#[derive(Debug)]
pub struct Settings {
    pub options: Options,
    num_ctx: Option<u32>,
    repeat_last_n: Option<i64>,
}

pub fn settings(fields: &Fields, limits: &Limits) -> Result<Settings, ApiError> {
    let empty = Value::Object(serde_json::Map::new());
    let options = fields.within(fields.get(FIELD).unwrap_or(&empty), FIELD)?;
    let others = OFF.iter().map(|(name, _)| *name).chain(SWITCHES.iter().map(|(name, _)| *name));
    let known: Vec<&str> = HONOURED.iter().chain(OF_LOADING).chain(OF_MIROSTAT).copied().chain(others).collect();
    options.only(&known)?;
    refuse(&options)?;
    let repeat_last_n = options.integer("repeat_last_n", -1..=i64::from(u32::MAX))?;
    let chosen = match repeat_last_n {
        // A penalty over no tokens is none.
        Some(0) => {
            SamplingChoice { presence_penalty: Some(0.0), frequency_penalty: Some(0.0), repetition_penalty: Some(1.0), ..chosen(&options)? }
        }
        _ => chosen(&options)?,
    };
    let seed = options.integer("seed", i64::MIN..=i64::MAX)?;
    let seed = seed.map_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0, |seed| seed as u64);
    let sampling = chosen.applied_to(SamplingParams { seed, ..SamplingParams::default() });
    Ok(Settings {
        options: Options {
            chosen: Some(chosen),
            stop: stop(&options, limits.max_stop_sequences)?,
            ..Options::new(sampling, budget(&options, limits)?)
        },
        num_ctx: options.count("num_ctx", 1)?,
        repeat_last_n,
    })
}

/// Refuses what is known and not supported.
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
    match options.integer("num_predict", -2..=i64::from(u32::MAX))? {
        // As many as the context has left: nothing is moved out of it to make room.
        None | Some(-1 | -2) => Ok(Budget::Rest),
        Some(0) => Err(options.invalid("num_predict", "must be at least 1, or -1 for as many tokens as the context has left, not 0")),
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
        temperature: number("temperature", 0.0..=2.0)?,
        top_k: options.integer("top_k", -1..=i64::from(u32::MAX))?.map(|value| value.max(0) as u32),
        top_p: positive("top_p", 1.0)?,
        min_p: number("min_p", 0.0..=1.0)?,
        presence_penalty: number("presence_penalty", -2.0..=2.0)?,
        frequency_penalty: number("frequency_penalty", -2.0..=2.0)?,
        repetition_penalty: positive("repeat_penalty", 10.0)?,
    })
}

fn stop(options: &Fields, most: usize) -> Result<Vec<String>, ApiError> {
    let wrong = |value: &Value| wrong_type(&options.path("stop"), "a string or a list of strings", value);
    let texts = match options.get("stop") {
        None => Vec::new(),
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(items)) if items.len() > most => {
            return Err(options.invalid("stop", format_args!("holds {} texts, and {most} are allowed", items.len())));
        }
        Some(Value::Array(items)) => {
            items.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(|| wrong(item))).collect::<Result<_, _>>()?
        }
        Some(other) => return Err(wrong(other)),
    };
    match texts.iter().find(|text| text.is_empty() || text.len() > MAX_STOP_BYTES) {
        Some(text) if text.is_empty() => Err(options.invalid("stop", "must not hold an empty text")),
        Some(text) => Err(options.invalid(
            "stop",
            format_args!("holds `{}`, of more than {MAX_STOP_BYTES} bytes", quoted(&text[..text.floor_char_boundary(40)])),
        )),
        None => Ok(texts),
    }
}

impl Settings {
    /// Checks what depends on the model: its context, and penalties that it may bring itself.
    pub fn check(&self, model: &Model) -> Result<(), ApiError> {
        let context = model.base.context;
        if let Some(asked) = self.num_ctx.filter(|&asked| asked as usize > context) {
            let most = model.base.spec.context_length;
            let advice = match context < most {
                true => format!("start the server with a larger --context (the model was made for up to {most})"),
                false => "the model was made for no more".to_owned(),
            };
            let message =
                format!("`options.num_ctx` is {asked}, but `{}` is served with a context of {context} tokens: {advice}", model.id);
            return Err(ApiError::field("options.num_ctx", message));
        }
        let sampling = model.sampling_of(&self.options);
        let penalises = sampling.repetition_penalty != 1.0 || sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0;
        match self.repeat_last_n {
            Some(last @ 1..) if penalises && last < context as i64 => {
                let message = format!(
                    "`options.repeat_last_n` is {last}, but penalties see the whole text: send -1, or at least {context}, the context"
                );
                Err(ApiError::unsupported("options.repeat_last_n", message))
            }
            _ => Ok(()),
        }
    }
}

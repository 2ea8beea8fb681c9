//! The parameters of made models, under Ollama's names: their types and ranges, and what they do here.

use logits::SamplingChoice;
use serde_json::{Map, Value};

use super::nearest::nearest_model;

/// The effect of a parameter.
#[derive(Clone, Copy)]
enum Effect {
    Honoured,
    /// Nothing, for this reason.
    None(&'static str),
    /// The parameter is refused, unless it has one of these values, with which it asks for nothing.
    Refused(&'static [f64]),
}

#[derive(Clone, Copy)]
enum Type {
    Number(f64, f64),
    Integer(i64, i64),
    Flag,
    /// One or several texts.
    Texts,
}

const LOADING: Effect = Effect::None("the configuration says how models are loaded");
const ANY: Type = Type::Number(f64::MIN, f64::MAX);
const COUNT: Type = Type::Integer(i32::MIN as i64, u32::MAX as i64);

#[rustfmt::skip]
const PARAMETERS: &[(&str, Type, Effect)] = &[
    ("temperature", Type::Number(0.0, 1000.0), Effect::Honoured),
    ("top_k", Type::Integer(-1, u32::MAX as i64), Effect::Honoured),
    ("top_p", Type::Number(0.0, 1.0), Effect::Honoured),
    ("min_p", Type::Number(0.0, 1.0), Effect::Honoured),
    ("repeat_penalty", Type::Number(f32::MIN_POSITIVE as f64, 10.0), Effect::Honoured),
    ("presence_penalty", Type::Number(-2.0, 2.0), Effect::Honoured),
    ("frequency_penalty", Type::Number(-2.0, 2.0), Effect::Honoured),
    ("seed", Type::Integer(i64::MIN, i64::MAX), Effect::Honoured),
    ("num_predict", COUNT, Effect::Honoured),
    ("stop", Type::Texts, Effect::Honoured),
    ("repeat_last_n", COUNT, Effect::None("penalties see the whole text; 0 switches them off")),
    ("num_ctx", COUNT, Effect::Honoured),
    ("num_keep", COUNT, Effect::None("nothing is moved out of the context")),
    ("num_batch", COUNT, LOADING),
    ("num_gpu", COUNT, LOADING),
    ("main_gpu", COUNT, LOADING),
    ("num_thread", COUNT, LOADING),
    ("use_mmap", Type::Flag, LOADING),
    ("use_mlock", Type::Flag, LOADING),
    ("numa", Type::Flag, LOADING),
    ("low_vram", Type::Flag, LOADING),
    ("f16_kv", Type::Flag, LOADING),
    ("mirostat_tau", ANY, Effect::None("it means something with `mirostat` alone")),
    ("mirostat_eta", ANY, Effect::None("it means something with `mirostat` alone")),
    ("mirostat", ANY, Effect::Refused(&[0.0])),
    ("typical_p", ANY, Effect::Refused(&[1.0, 0.0])),
    ("tfs_z", ANY, Effect::Refused(&[1.0, 0.0])),
    ("penalize_newline", Type::Flag, Effect::Refused(&[1.0])),
    ("vocab_only", Type::Flag, Effect::Refused(&[0.0])),
    ("logits_all", Type::Flag, Effect::Refused(&[0.0])),
    ("embedding_only", Type::Flag, Effect::Refused(&[0.0])),
];

/// The most texts that end an answer, and the longest one [bytes]. The same as for a request.
const MAX_STOPS: usize = 64;
const MAX_STOP: usize = 1024;

/// Checks a parameter and brings it to its type. A text is read as a number or a flag if its parameter is one, as Modelfiles write them.
///
/// # Errors
/// The parameter is unknown or not supported, or its value is wrong.
pub fn parameter(name: &str, value: &Value) -> Result<Value, String> {
    let Some((_, kind, effect)) = PARAMETERS.iter().find(|(known, ..)| *known == name) else {
        let near = nearest_model(PARAMETERS.iter().map(|(known, ..)| (*known, *known)), name);
        let hint = near.map_or(String::new(), |near| format!(": did you mean {near}?"));
        return Err(format!("unknown parameter '{}'{hint}", name.chars().take(60).collect::<String>().escape_debug()));
    };
    let wrong = |expected: String| format!("the parameter {name} must be {expected}, not {}", shown(value));
    let checked = match *kind {
        Type::Texts => texts(value).map_err(wrong)?,
        Type::Flag => match value {
            Value::Bool(_) => value.clone(),
            Value::String(text) => text.parse::<bool>().map_err(|_| wrong("true or false".to_owned()))?.into(),
            _ => return Err(wrong("true or false".to_owned())),
        },
        Type::Integer(least, most) => {
            let number = match value {
                Value::String(text) => text.parse::<i64>().ok(),
                // Clients write whole numbers as 40.0, too.
                _ => value.as_i64().or_else(|| value.as_f64().filter(|number| number.fract() == 0.0).map(|number| number as i64)),
            };
            let number = number.filter(|number| (least..=most).contains(number));
            number.ok_or_else(|| wrong(format!("a whole number from {least} to {most}")))?.into()
        }
        Type::Number(least, most) => {
            let number = match value {
                Value::String(text) => text.parse::<f64>().ok(),
                _ => value.as_f64(),
            };
            let range = if least == f64::MIN { "a number".to_owned() } else { format!("a number from {least} to {most}") };
            number.filter(|number| (least..=most).contains(number)).ok_or_else(|| wrong(range))?.into()
        }
    };
    if let Effect::Refused(neutral) = effect {
        let number = checked.as_f64().or_else(|| checked.as_bool().map(f64::from));
        if number.is_some_and(|number| !neutral.contains(&number)) {
            return Err(format!("the parameter {name} is not supported: leave it out"));
        }
    }
    Ok(checked)
}

/// Why a parameter that is set changes nothing. None: it is honoured.
pub fn without_effect(name: &str) -> Option<&'static str> {
    PARAMETERS.iter().find(|(known, ..)| *known == name).and_then(|(_, _, effect)| match effect {
        Effect::None(reason) => Some(*reason),
        _ => None,
    })
}

fn texts(value: &Value) -> Result<Value, String> {
    let list = match value {
        Value::String(_) => vec![value.clone()],
        Value::Array(items) => items.clone(),
        _ => return Err("a text or a list of texts".to_owned()),
    };
    let right = list.iter().all(|item| item.as_str().is_some_and(|text| !text.is_empty() && text.len() <= MAX_STOP));
    match right && list.len() <= MAX_STOPS {
        true => Ok(list.into()),
        false => Err(format!("at most {MAX_STOPS} texts of 1 to {MAX_STOP} bytes")),
    }
}

fn shown(value: &Value) -> String {
    let text = match value {
        Value::String(text) => format!("`{}`", text.escape_debug()),
        other => other.to_string(),
    };
    text.chars().take(80).collect()
}

/// The sampling values among checked parameters.
pub(super) fn sampling(parameters: &Map<String, Value>) -> SamplingChoice {
    let number = |name: &str| parameters.get(name).and_then(Value::as_f64).map(|number| number as f32);
    let integer = |name: &str| parameters.get(name).and_then(Value::as_i64);
    let chosen = SamplingChoice {
        temperature: number("temperature"),
        top_k: integer("top_k").map(|k| k.clamp(0, i64::from(u32::MAX)) as u32),
        top_p: number("top_p").map(|share| share.max(f32::MIN_POSITIVE)),
        min_p: number("min_p"),
        presence_penalty: number("presence_penalty"),
        frequency_penalty: number("frequency_penalty"),
        repetition_penalty: number("repeat_penalty"),
        // -1 means a random seed.
        seed: integer("seed").filter(|seed| *seed != -1).map(|seed| seed as u64),
    };
    match integer("repeat_last_n") {
        Some(0) => chosen.without_penalties(),
        _ => chosen,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parameters_are_brought_to_their_types() {
        for (name, given, due) in [
            ("temperature", json!("0.5"), json!(0.5)),
            ("top_k", json!(40.0), json!(40)),
            ("num_ctx", json!("4096"), json!(4096)),
            ("stop", json!("x"), json!(["x"])),
            ("stop", json!(["x", "y"]), json!(["x", "y"])),
            ("use_mmap", json!("true"), json!(true)),
            ("mirostat", json!(0), json!(0.0)),
            ("seed", json!(-1), json!(-1)),
        ] {
            assert_eq!(parameter(name, &given), Ok(due), "{name}");
        }
    }

    #[test]
    fn wrong_parameters_are_named_with_what_is_expected() {
        for (name, given, words) in [
            ("tempreature", json!(1), "unknown parameter 'tempreature': did you mean temperature?"),
            ("blob", json!(1), "unknown parameter 'blob'"),
            ("temperature", json!("hot"), "a number from 0 to 1000, not `hot`"),
            ("temperature", json!("NaN"), "not `NaN`"),
            ("top_k", json!(1.5), "a whole number from -1"),
            ("use_mmap", json!(1), "true or false"),
            ("stop", json!([""]), "64 texts"),
            ("stop", json!(3), "a text or a list of texts, not 3"),
            ("mirostat", json!(2), "mirostat is not supported"),
            ("penalize_newline", json!(false), "penalize_newline is not supported"),
        ] {
            let error = parameter(name, &given).unwrap_err();
            assert!(error.contains(words), "{name}: {error}");
        }
    }

    #[test]
    fn sampling_values_have_the_names_of_this_server() {
        let parameters = json!({"temperature": 0.5, "top_k": -1, "top_p": 0.0, "repeat_penalty": 1.1, "seed": 7});
        let chosen = sampling(parameters.as_object().unwrap());
        assert_eq!((chosen.temperature, chosen.top_k, chosen.repetition_penalty, chosen.seed), (Some(0.5), Some(0), Some(1.1), Some(7)));
        assert!(chosen.top_p.unwrap() > 0.0 && chosen.min_p.is_none());
        let off = sampling(json!({"repeat_last_n": 0, "repeat_penalty": 1.5, "seed": -1}).as_object().unwrap());
        assert_eq!((off.repetition_penalty, off.presence_penalty, off.seed), (Some(1.0), Some(0.0), None));
    }

    #[test]
    fn what_changes_nothing_has_a_reason() {
        assert!(without_effect("num_keep").is_some_and(|reason| reason.contains("context")));
        assert_eq!(without_effect("temperature"), None);
    }
}

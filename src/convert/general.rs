//! Reads the keys `general.*`: the model's name, and how to sample from it.

use std::path::Path;

use gguf::Value;
use serde_json::Value as Json;

use crate::config::Config;
use crate::error::Fallible;
use crate::json;

/// The number of lines at the start of a model card that are searched for the licence.
const CARD_LINES: usize = 400;

pub fn pairs(dir: &Path, config: &Config, arch: &str, elements: u64) -> Fallible<Vec<(String, Value)>> {
    let mut pairs = vec![
        ("general.architecture".to_owned(), Value::from(arch)),
        ("general.type".to_owned(), Value::from("model")),
        ("general.name".to_owned(), Value::from(name(dir, config)?)),
        ("general.size_label".to_owned(), Value::from(size_label(elements))),
    ];
    if let Some(licence) = licence(dir)? {
        pairs.push(("general.license".to_owned(), licence.into()));
    }
    pairs.extend(sampling(dir)?);
    Ok(pairs)
}

/// The folder's name, or the name in `config.json` if that names a repository.
fn name(dir: &Path, config: &Config) -> Fallible<String> {
    let repository = config.text(&["_name_or_path"])?.filter(|name| name.matches('/').count() == 1 && !name.starts_with(['.', '/']));
    let folder = || dir.canonicalize().ok().and_then(|dir| Some(dir.file_name()?.to_string_lossy().into_owned()));
    let last = |name: &str| name.rsplit('/').next().unwrap_or(name).to_owned();
    Ok(repository.map(last).or_else(folder).unwrap_or_else(|| "model".to_owned()))
}

/// The number of weights in at most three digits, such as `135M` or `1.2B`.
fn size_label(elements: u64) -> String {
    let (scaled, unit) = match elements as f64 {
        n if n >= 999.5e9 => (n / 1e12, "T"),
        n if n >= 999.5e6 => (n / 1e9, "B"),
        n if n >= 999.5e3 => (n / 1e6, "M"),
        n => (n / 1e3, "K"),
    };
    if scaled < 9.95 { format!("{scaled:.1}{unit}") } else { format!("{scaled:.0}{unit}") }
}

/// The licence in the model card, from the lines between its first two `---`.
fn licence(dir: &Path) -> Fallible<Option<String>> {
    let Some(card) = json::text(&dir.join("README.md"))? else { return Ok(None) };
    let card = String::from_utf8_lossy(&card);
    let mut lines = card.lines().take(CARD_LINES);
    if lines.next() != Some("---") {
        return Ok(None);
    }
    let licence = lines.take_while(|line| *line != "---").find_map(|line| line.strip_prefix("license:"));
    Ok(licence.map(|text| text.trim().trim_matches(['"', '\'']).to_owned()).filter(|text| !text.is_empty()))
}

/// The sampling values that `generation_config.json` recommends.
fn sampling(dir: &Path) -> Fallible<Vec<(String, Value)>> {
    let config: Json = json::read(&dir.join("generation_config.json"))?.unwrap_or_default();
    if config["do_sample"] == false {
        return Ok(Vec::new());
    }
    let number = |from: &str, to: &str| Some((format!("general.sampling.{to}"), Value::F32(config[from].as_f64()? as f32)));
    let top_k = config["top_k"].as_i64().and_then(|k| i32::try_from(k).ok());
    let all = [
        top_k.map(|k| ("general.sampling.top_k".to_owned(), Value::I32(k))),
        number("top_p", "top_p"),
        number("min_p", "min_p"),
        number("temperature", "temp"),
        number("repetition_penalty", "penalty_repeat"),
    ];
    Ok(all.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits_at_most() {
        for (elements, label) in
            [(134_515_008, "135M"), (1_235_814_400, "1.2B"), (70_553_706_496, "71B"), (4_000, "4.0K"), (9_960_000, "10M")]
        {
            assert_eq!(size_label(elements), label);
        }
    }
}

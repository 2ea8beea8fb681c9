//! The sampling values that a model's file recommends.

use gguf::{GgufFile, Value};
use logits::SamplingChoice;

/// Reads the recommended sampling values from a file's metadata. Values that no request could have are left out.
pub fn file_sampling(file: &GgufFile) -> SamplingChoice {
    let value = |key: &str| file.get(&format!("general.sampling.{key}"));
    let number = |key: &str, least: f64, most: f64| {
        let number = value(key).and_then(Value::as_f32).map(f64::from);
        number.filter(|number| (least..=most).contains(number)).map(|number| number as f32)
    };
    let positive = |key: &str, most: f64| number(key, 0.0, most).filter(|number| *number > 0.0);
    // a penalty over 0 tokens has no effect
    let penalised = value("penalty_last_n").and_then(Value::as_int) != Some(0);
    SamplingChoice {
        temperature: number("temp", 0.0, 2.0),
        // a number below 1 means every token
        top_k: value("top_k").and_then(Value::as_int).and_then(|k| u32::try_from(k.max(0)).ok()),
        top_p: positive("top_p", 1.0),
        min_p: number("min_p", 0.0, 1.0),
        presence_penalty: None,
        frequency_penalty: None,
        repetition_penalty: positive("penalty_repeat", 10.0).filter(|_| penalised),
        seed: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf::GgufBuilder;

    fn of(builder: GgufBuilder) -> SamplingChoice {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        std::fs::write(&path, builder.kv("general.architecture", "llama").build()).unwrap();
        file_sampling(&GgufFile::open(&path).unwrap())
    }

    #[test]
    fn a_file_says_what_to_sample_with() {
        let key = |name: &str| format!("general.sampling.{name}");
        let builder = GgufBuilder::new().kv(&key("temp"), 0.5f32).kv(&key("top_k"), 20i32).kv(&key("top_p"), 0.75f32);
        let expected = SamplingChoice { temperature: Some(0.5), top_k: Some(20), top_p: Some(0.75), ..SamplingChoice::default() };
        assert_eq!(of(builder), expected);
        assert_eq!(of(GgufBuilder::new()), SamplingChoice::default());
        let off = GgufBuilder::new().kv(&key("top_k"), -1i32).kv(&key("penalty_repeat"), 1.5f32).kv(&key("penalty_last_n"), 0i32);
        assert_eq!(of(off), SamplingChoice { top_k: Some(0), ..SamplingChoice::default() });
        let wrong = GgufBuilder::new().kv(&key("temp"), 7.0f32).kv(&key("top_p"), 0.0f32).kv(&key("min_p"), "much");
        assert_eq!(of(wrong), SamplingChoice::default());
    }
}

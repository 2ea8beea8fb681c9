//! Shortens lines of JSON that are too long for the log, so that they stay JSON.

use serde_json::{Map, Value, json};

/// The longest text that is not cut [characters].
const MAX_TEXT: usize = 500;

/// Cuts the long texts of a line. If the line is still longer than `max` bytes, keeps only the fields that every line has.
pub fn shortened(line: &[u8], max: usize) -> Vec<u8> {
    let length = line.len();
    let Ok(Value::Object(fields)) = serde_json::from_slice(line) else { return written(&json!({"level": "WARN", "cut_bytes": length})) };
    let few = fields.iter().filter(|(name, _)| ["timestamp", "level", "target"].contains(&name.as_str()));
    let few: Map<String, Value> = few.map(|(name, value)| (name.clone(), cut(value.clone()))).collect();
    let whole: Map<String, Value> = fields.into_iter().map(|(name, value)| (name, cut(value))).collect();
    let [whole, few] = [whole, few].map(|mut fields| {
        fields.insert("cut_bytes".into(), length.into());
        written(&Value::Object(fields))
    });
    if whole.len() <= max { whole } else { few }
}

fn cut(value: Value) -> Value {
    match value {
        Value::String(text) if text.chars().nth(MAX_TEXT).is_some() => Value::String(text.chars().take(MAX_TEXT).chain(['…']).collect()),
        other => other,
    }
}

fn written(value: &Value) -> Vec<u8> {
    format!("{value}\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_stays_an_object() {
        let read = |line: &[u8]| -> Value { serde_json::from_slice(line).unwrap() };
        let long = written(&json!({"level": "ERROR", "message": "ä".repeat(10_000), "status": 500}));
        let cut = read(&shortened(&long, 8 << 10));
        assert_eq!((&cut["level"], &cut["status"], cut["cut_bytes"].as_u64()), (&json!("ERROR"), &json!(500), Some(long.len() as u64)));
        assert_eq!(cut["message"].as_str().unwrap().chars().count(), MAX_TEXT + 1);
        let many: Map<String, Value> = (0..1000).map(|i| (format!("field{i}"), json!("x".repeat(100)))).collect();
        assert!(shortened(&written(&Value::Object(many)), 8 << 10).len() < 100);
        assert!(read(&shortened(b"no JSON", 8 << 10)).is_object());
    }
}

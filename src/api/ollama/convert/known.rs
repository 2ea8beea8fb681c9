//! Unknown fields are refused, with the nearest name that is known: a misspelt field would otherwise do nothing.

use crate::http::error::{ApiError, quoted};
use crate::http::fields::Fields;

/// How alike two names must be for one to be offered for the other: 1 is equal.
const ALIKE: f64 = 0.8;
/// The longest name that is compared, and that an error repeats. In bytes.
const MAX_NAME: usize = 64;

/// Refuses a field that is not in `known`.
pub fn check(fields: &Fields, known: &[&str]) -> Result<(), ApiError> {
    let Some(name) = fields.names().find(|name| !known.contains(name)) else { return Ok(()) };
    let hint = nearest(known.iter().copied(), name).map_or(String::new(), |near| format!(": did you mean `{near}`?"));
    let shown = if name.len() > MAX_NAME { quoted(name).chars().take(MAX_NAME).collect() } else { quoted(name) };
    Err(fields.invalid(&shown, format_args!("is not known here{hint}")))
}

/// The name that is most like an unknown one.
fn nearest<'a>(known: impl Iterator<Item = &'a str>, unknown: &str) -> Option<&'a str> {
    let unknown = unknown.get(..MAX_NAME).unwrap_or(unknown).to_ascii_lowercase();
    if unknown.len() > MAX_NAME {
        return None;
    }
    let scored = known.map(|name| (strsim::jaro_winkler(name, &unknown), name)).filter(|(score, _)| *score >= ALIKE);
    scored.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_unknown_field_is_refused_with_the_nearest_name() {
        let refused = |body: serde_json::Value| {
            let error = check(&Fields::at(&body, "options").unwrap(), &["temperature", "repeat_penalty", "top_k"]).err()?;
            Some((error.param.unwrap(), error.message))
        };
        assert_eq!(refused(json!({"temperature": 1, "tempreature": null})), None, "null asks for nothing");
        let (param, message) = refused(json!({"tempreature": 1})).unwrap();
        assert_eq!(
            (param.as_str(), message.as_str()),
            ("options.tempreature", "`options.tempreature` is not known here: did you mean `temperature`?")
        );
        assert_eq!(refused(json!({"xyz": 1})).unwrap().1, "`options.xyz` is not known here");
        assert!(refused(json!({"é".repeat(5000): 1})).unwrap().1.len() < 200);
    }
}

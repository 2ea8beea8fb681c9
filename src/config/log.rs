//! The log's filter and format.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// The level of a filter that sets none, for targets that it does not name.
const DEFAULT: &str = "info";
/// Targets of the HTTP framework, the level that they are reduced to, and the filter levels at which that happens. The framework logs its
/// start at `info` and malformed requests at `error`, which only helps to debug the framework. Our own log line of such a request says
/// more.
const FRAMEWORK: [(&str, &str, &[&str]); 2] = [("actix_server", "warn", &["info"]), ("actix_http", "off", &["error", "warn", "info"])];

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line, for programs.
    Json,
}

impl LogFormat {
    pub const NAMES: [&'static str; 2] = ["text", "json"];

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err("choose text or json".into()),
        }
    }
}

/// Parses a filter: a level, or a list such as `warn,penstock=debug`. Targets that the list does not name are shown at `info` and above.
///
/// # Errors
/// A part of the list is neither a level nor a target with a level. The library would take a lone word for a target and mute everything
/// else.
pub fn log_filter(text: &str) -> Result<EnvFilter, String> {
    EnvFilter::try_new(directives(text)?).map_err(|error| format!("{text:?}: {error}"))
}

fn directives(text: &str) -> Result<String, String> {
    let mut parts = split(text)?;
    let is_level = |part: &str| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(part));
    if let Some(bad) = parts.iter().find(|part| !is_level(part) && !has_level(part, is_level)) {
        let levels = LEVELS.join(", ");
        return Err(format!("{bad:?} is neither a level ({levels}) nor a target with a level, such as penstock::access=debug"));
    }
    let base = parts.iter().rev().find(|part| is_level(part)).map_or(DEFAULT, |part| *part).to_ascii_lowercase();
    parts.retain(|part| !is_level(part));
    let is_quieted = |target: &str, at: &[&str]| at.contains(&base.as_str()) && !parts.iter().any(|part| part.starts_with(target));
    let quieted = FRAMEWORK.iter().filter(|(target, _, at)| is_quieted(target, at));
    let framework: Vec<String> = quieted.map(|(target, level, _)| format!("{target}={level}")).collect();
    let list = std::iter::once(base).chain(framework).chain(parts.into_iter().map(str::to_owned));
    Ok(list.collect::<Vec<_>>().join(","))
}

/// Whether a directive ends with a level. The library checks the rest.
fn has_level(part: &str, is_level: impl Fn(&str) -> bool) -> bool {
    part.rsplit_once('=').is_some_and(|(target, level)| !target.trim().is_empty() && is_level(level.trim()))
}

/// Splits a list into directives. A comma within brackets or braces belongs to a directive.
fn split(text: &str) -> Result<Vec<&str>, String> {
    let mut depth = 0_i32;
    let parts = text.split(|symbol: char| {
        match symbol {
            '[' | '{' => depth += 1,
            ']' | '}' => depth -= 1,
            _ => {}
        }
        symbol == ',' && depth <= 0
    });
    let parts = parts.map(str::trim).collect();
    if depth == 0 { Ok(parts) } else { Err(format!("{text:?}: its brackets do not match")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_has_a_level_for_everything() {
        let of = |text: &str| directives(text).unwrap();
        assert_eq!(of("info"), "info,actix_server=warn,actix_http=off");
        assert_eq!(of("DEBUG"), "debug", "the start of the framework is shown");
        assert_eq!(of("penstock=debug"), "info,actix_server=warn,actix_http=off,penstock=debug", "the rest is not muted");
        assert_eq!(of("penstock::access=off, warn"), "warn,actix_http=off,penstock::access=off");
        assert_eq!(of("info,actix_server=info"), "info,actix_http=off,actix_server=info");
        assert_eq!(of("warn,penstock[span{a=1,b=2}]=trace"), "warn,actix_http=off,penstock[span{a=1,b=2}]=trace");
    }

    #[test]
    fn a_word_that_is_no_level_is_named() {
        for (bad, part) in [("bogus", "bogus"), ("info,loud", "loud"), ("penstock", "penstock"), ("penstock=loud", "penstock=loud")] {
            let error = log_filter(bad).unwrap_err();
            assert!(error.contains(&format!("{part:?}")) && error.contains("off, error, warn, info, debug, trace"), "{error}");
        }
        for bad in ["", ",", "=info", "info,", "a[b=info", "a{{{=info"] {
            assert!(log_filter(bad).is_err(), "{bad:?}");
        }
    }
}

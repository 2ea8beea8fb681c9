//! The section `[traces]`: export of OpenTelemetry spans.

use serde::{Deserialize, Serialize};

/// The section `[traces]`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Traces {
    /// The URL of a collector for OTLP over HTTP (`http://127.0.0.1:4318/v1/traces`). "": no spans are made.
    pub endpoint: String,
    /// The share of requests that have spans, unless the client's `traceparent` decides.
    pub sample: f64,
    /// `service.name` of the spans.
    pub service: String,
    /// Headers of requests to the endpoint, as `name=value`.
    pub headers: Vec<String>,
    /// Time that the endpoint may take to answer [s].
    pub timeout_seconds: u64,
}

impl Traces {
    /// The headers as (name, value). Malformed headers were refused when the setting was read.
    pub fn header_pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().filter_map(|header| pair(header))
    }
}

fn pair(header: &str) -> Option<(&str, &str)> {
    let (name, value) = header.split_once('=')?;
    let (name, value) = (name.trim(), value.trim());
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    let is_value = value.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    (is_name && is_value).then_some((name, value))
}

/// Checks the setting that was set last.
pub(super) fn check(key: &str, traces: &Traces) -> Result<(), String> {
    match key {
        "endpoint" if !traces.endpoint.is_empty() && !is_url(&traces.endpoint) => {
            Err(format!("{:?} is not a URL such as http://127.0.0.1:4318/v1/traces", traces.endpoint))
        }
        "sample" if !(0.0..=1.0).contains(&traces.sample) => Err(format!("{} is not between 0 and 1", traces.sample)),
        "service" if traces.service.is_empty() => Err("the name is empty".into()),
        // A header may be a secret, so the error gives only its position.
        "headers" => match traces.headers.iter().position(|header| pair(header).is_none()) {
            Some(index) => Err(format!("entry {} is not name=value", index + 1)),
            None => Ok(()),
        },
        "timeout_seconds" if !(1..=300).contains(&traces.timeout_seconds) => {
            Err(format!("{} is not between 1 and 300", traces.timeout_seconds))
        }
        _ => Ok(()),
    }
}

/// Whether `text` is an HTTP URL with a host and a path.
fn is_url(text: &str) -> bool {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let parts = rest.and_then(|rest| rest.split_once('/'));
    parts.is_some_and(|(host, path)| !host.is_empty() && !path.is_empty()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

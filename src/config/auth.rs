//! The section `[auth]`: access to the server.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Paths that may be opened to requests without a key. `/docs` includes the paths below it.
const MAY_BE_OPEN: [&str; 7] = ["/", "/health", "/ready", "/version", "/metrics", "/openapi.json", "/docs"];
/// The largest limit.
const MAX_LIMIT: u64 = 1_000_000_000_000;

/// Whether a request needs a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", try_from = "String")]
pub enum RequireKeys {
    /// If there is a file of keys or a key in the configuration.
    Auto,
    Always,
    Never,
}

impl TryFrom<String> for RequireKeys {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err(format!("{text:?}: choose auto, always or never")),
        }
    }
}

/// The section `[auth]`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Auth {
    pub require_keys: RequireKeys,
    /// The file of keys. "" in a file means the default path in the user's data directory, and is replaced by that path if there is such a
    /// directory.
    pub keys_file: PathBuf,
    /// Further keys, as `NAME:SHA256`.
    pub keys: Vec<String>,
    /// Paths that need no key.
    pub open_paths: Vec<String>,
    /// Limits of keys that set none themselves. 0: no limit.
    pub requests_per_minute: u64,
    pub tokens_per_minute: u64,
    pub max_concurrent: u64,
}

/// Checks the setting of `[auth]` that was set last.
pub(super) fn check(key: &str, auth: &Auth) -> Result<(), String> {
    match key {
        "keys" => auth.keys.iter().try_for_each(|pair| check_pair(pair)),
        "open_paths" => match auth.open_paths.iter().find(|path| !MAY_BE_OPEN.contains(&path.as_str())) {
            Some(path) => Err(format!("{path:?} always needs a key: choose from {}", MAY_BE_OPEN.join(", "))),
            None => Ok(()),
        },
        "requests_per_minute" => check_limit(auth.requests_per_minute),
        "tokens_per_minute" => check_limit(auth.tokens_per_minute),
        "max_concurrent" => check_limit(auth.max_concurrent),
        _ => Ok(()),
    }
}

fn check_limit(limit: u64) -> Result<(), String> {
    if limit <= MAX_LIMIT { Ok(()) } else { Err(format!("{limit} is more than {MAX_LIMIT}")) }
}

/// Checks the form of `NAME:SHA256`. The error does not repeat the hash, because the user may have put a key in its place.
fn check_pair(pair: &str) -> Result<(), String> {
    let form = "expected NAME:SHA256, a name of letters, digits and `._@-` and 64 hex digits";
    let Some((name, digest)) = pair.split_once(':') else { return Err(format!("an entry has no colon: {form}")) };
    if !(1..=64).contains(&name.len()) || !name.chars().all(|c| c.is_ascii_alphanumeric() || "._@-".contains(c)) {
        return Err(format!("the name {:?} is wrong: {form}", name.chars().take(64).collect::<String>()));
    }
    if digest.len() != 64 || !digest.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(format!("the hash of `{name}` is wrong: {form} (`printf %s KEY | sha256sum`)"));
    }
    Ok(())
}

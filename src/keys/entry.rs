//! A key's entry in a file.

use std::fmt::Write as _;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use crate::digest::Digest;

/// The priority of a key that sets none.
const DEFAULT_PRIORITY: u32 = 10;
/// The highest priority. The lowest is 1, so this is also the largest ratio of shares.
const MAX_PRIORITY: u32 = 100;
/// The largest limit.
const MAX_LIMIT: u64 = 1_000_000_000_000;
/// The longest name [characters].
const MAX_NAME: usize = 64;
/// The longest name of a model [bytes], and the most models per key.
const MAX_MODEL: usize = 500;
const MAX_MODELS: usize = 1000;

/// A table of `[[keys]]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyEntry {
    /// The key's name in lists and logs.
    pub name: String,
    #[serde(deserialize_with = "digest")]
    pub sha256: Digest,
    /// The tenant that the key belongs to. `None`: the key's name.
    pub tenant: Option<String>,
    /// The models that the key may use. `None`: every model.
    pub models: Option<Vec<String>>,
    /// 0: no limit. `None`: the configuration's value. The same holds for the other limits.
    pub requests_per_minute: Option<u64>,
    pub tokens_per_minute: Option<u64>,
    pub max_concurrent: Option<u64>,
    /// The weight of the key's requests when an engine is shared.
    pub priority: Option<u32>,
    /// Whether the key may manage the server's models.
    #[serde(default)]
    pub admin: bool,
    /// When the key was created [Unix seconds].
    pub created: Option<u64>,
}

fn digest<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

impl KeyEntry {
    /// A key without limits of its own.
    pub fn new(name: &str, sha256: Digest) -> Self {
        Self {
            name: name.to_owned(),
            sha256,
            tenant: None,
            models: None,
            requests_per_minute: None,
            tokens_per_minute: None,
            max_concurrent: None,
            priority: None,
            admin: false,
            created: None,
        }
    }

    /// Reads `NAME:SHA256`.
    pub fn from_pair(text: &str) -> Result<Self, String> {
        let (name, digest) = text.split_once(':').ok_or("a key has the form NAME:SHA256")?;
        let entry = Self::new(name, digest.parse().map_err(|fault| format!("sha256 of `{}`: {fault}", name.escape_debug()))?);
        entry.check()?;
        Ok(entry)
    }

    pub fn tenant(&self) -> &str {
        self.tenant.as_deref().unwrap_or(&self.name)
    }

    pub fn priority(&self) -> u32 {
        self.priority.unwrap_or(DEFAULT_PRIORITY)
    }

    /// Checks the values.
    ///
    /// # Errors
    /// A value is wrong. The message names the field.
    pub fn check(&self) -> Result<(), String> {
        check_name("name", &self.name)?;
        self.tenant.iter().try_for_each(|tenant| check_name("tenant", tenant))?;
        if let Some(models) = &self.models {
            if models.is_empty() {
                return Err("models is empty: leave it out to allow every model".into());
            }
            if models.len() > MAX_MODELS {
                return Err(format!("models has {} entries, at most {MAX_MODELS} are allowed", models.len()));
            }
            if let Some(bad) = models.iter().find(|id| id.is_empty() || id.len() > MAX_MODEL || id.chars().any(char::is_control)) {
                return Err(format!("models: {:?} is not the name of a model", bad.chars().take(MAX_NAME).collect::<String>()));
            }
        }
        let limits = [
            ("requests_per_minute", self.requests_per_minute),
            ("tokens_per_minute", self.tokens_per_minute),
            ("max_concurrent", self.max_concurrent),
        ];
        if let Some((name, limit)) = limits.into_iter().find_map(|(name, limit)| Some((name, limit.filter(|&limit| limit > MAX_LIMIT)?))) {
            return Err(format!("{name} is {limit}, at most {MAX_LIMIT} is allowed"));
        }
        match self.priority {
            Some(priority) if !(1..=MAX_PRIORITY).contains(&priority) => {
                Err(format!("priority is {priority}, expected 1 to {MAX_PRIORITY}"))
            }
            _ => Ok(()),
        }
    }

    /// Writes the table as TOML.
    pub fn to_toml(&self) -> String {
        let mut text = format!("[[keys]]\nname = \"{}\"\nsha256 = \"{}\"\n", self.name, self.sha256);
        // Names have no characters that TOML escapes. JSON strings without control characters are valid TOML strings.
        if let Some(tenant) = &self.tenant {
            let _ = writeln!(text, "tenant = \"{tenant}\"");
        }
        if let Some(models) = &self.models {
            let _ = writeln!(text, "models = {}", serde_json::to_string(models).expect("strings are JSON"));
        }
        if self.admin {
            text.push_str("admin = true\n");
        }
        let numbers = [
            ("requests_per_minute", self.requests_per_minute),
            ("tokens_per_minute", self.tokens_per_minute),
            ("max_concurrent", self.max_concurrent),
            ("priority", self.priority.map(u64::from)),
            ("created", self.created),
        ];
        for (name, number) in numbers.into_iter().filter_map(|(name, number)| Some((name, number?))) {
            let _ = writeln!(text, "{name} = {number}");
        }
        text
    }
}

fn check_name(field: &str, name: &str) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._@-".contains(c);
    if (1..=MAX_NAME).contains(&name.len()) && name.chars().all(is_plain) {
        return Ok(());
    }
    let shown: String = name.chars().take(MAX_NAME).collect();
    Err(format!("{field} {shown:?} must have 1 to {MAX_NAME} characters, of letters, digits and `._@-`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_values_are_named() {
        let good = KeyEntry::new("a.b_c@d-1", Digest::of(b"x"));
        assert_eq!(good.check(), Ok(()));
        let fault = |change: fn(&mut KeyEntry)| {
            let mut entry = good.clone();
            change(&mut entry);
            entry.check().unwrap_err()
        };
        assert!(fault(|e| e.name.clear()).starts_with("name \"\""));
        assert!(fault(|e| e.name = "a\u{1b}b".into()).starts_with(r#"name "a\u{1b}b""#));
        assert!(fault(|e| e.tenant = Some("x".repeat(65))).starts_with("tenant"));
        assert!(fault(|e| e.models = Some(Vec::new())).starts_with("models is empty"));
        assert!(fault(|e| e.models = Some(vec!["a\n".into()])).starts_with("models: \"a\\n\""));
        assert!(fault(|e| e.tokens_per_minute = Some(u64::MAX)).starts_with("tokens_per_minute is 18446744073709551615"));
        assert_eq!(fault(|e| e.priority = Some(0)), "priority is 0, expected 1 to 100");
        assert_eq!(fault(|e| e.priority = Some(101)), "priority is 101, expected 1 to 100");
    }

    #[test]
    fn a_pair_is_a_name_and_a_hash() {
        let digest = Digest::of(b"x");
        assert_eq!(KeyEntry::from_pair(&format!("ci:{digest}")), Ok(KeyEntry::new("ci", digest)));
        for bad in ["ci", "ci:12", &format!(":{digest}"), &format!("c i:{digest}")] {
            assert!(KeyEntry::from_pair(bad).is_err(), "{bad}");
        }
    }
}

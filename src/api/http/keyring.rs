//! The server's API keys. The key file is read again when it changes, so keys can be added and revoked while the server runs.

use std::path::Path;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use config::{Config, RequireKeys};
use keys::{Digest, Key, KeyEntry, KeyFile, Limits, Ring, Version};

pub struct Keyring {
    /// The key file. `None` if no path is set.
    file: Option<KeyFile>,
    /// The keys from the configuration.
    fixed: Vec<KeyEntry>,
    defaults: Limits,
    require: RequireKeys,
    open_paths: Vec<String>,
    current: RwLock<Current>,
}

#[derive(Clone, Default)]
struct Current {
    ring: Arc<Ring>,
    version: Option<Version>,
    /// Whether requests need a key.
    required: bool,
    /// The last error that was logged.
    fault: Option<String>,
}

impl Keyring {
    /// Reads the keys that the configuration names.
    ///
    /// # Errors
    /// Fails if the key file exists but cannot be read, or if two keys are equal.
    pub fn open(config: &Config) -> anyhow::Result<Self> {
        if config.cache.disk.bytes.is_some() {
            keep_marks(&config.cache.folder);
        }
        let auth = &config.auth;
        let fixed = auth.keys.iter().map(|pair| KeyEntry::from_pair(pair)).collect::<Result<_, _>>().map_err(anyhow::Error::msg)?;
        let defaults = Limits {
            requests_per_minute: auth.requests_per_minute,
            tokens_per_minute: auth.tokens_per_minute,
            max_concurrent: auth.max_concurrent,
        };
        let has_file = auth.require_keys != RequireKeys::Never && !auth.keys_file.as_os_str().is_empty();
        let file = has_file.then(|| KeyFile::new(&auth.keys_file));
        let (require, open_paths) = (auth.require_keys, auth.open_paths.clone());
        let keyring = Self { file, fixed, defaults, require, open_paths, current: RwLock::default() };
        let current = keyring.read(&Current::default()).map_err(anyhow::Error::msg)?;
        if require == RequireKeys::Always && current.ring.is_empty() {
            tracing::warn!("every request needs a key (auth.require_keys), and there is none yet: `penstock keys add NAME` makes one");
        }
        *keyring.current.write().unwrap_or_else(PoisonError::into_inner) = current;
        Ok(keyring)
    }

    fn current(&self) -> Current {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether requests need a key.
    pub fn is_required(&self) -> bool {
        self.current.read().unwrap_or_else(PoisonError::into_inner).required
    }

    /// Whether a request for `path` needs no key.
    pub fn is_open(&self, path: &str) -> bool {
        // The documentation and the chat page serve files from these paths. `/health` has a second path.
        let below = |open: &str| match open {
            "/health" => path == "/v1/health",
            "/docs" => path.starts_with("/docs/"),
            "/" => path.starts_with("/page/"),
            _ => false,
        };
        let covers = |open: &String| path == open || below(open);
        !self.is_required() || self.open_paths.iter().any(covers)
    }

    /// Returns the key with this secret.
    pub fn find(&self, secret: &[u8]) -> Option<Arc<Key>> {
        let ring = self.current.read().unwrap_or_else(PoisonError::into_inner).ring.clone();
        ring.find(secret).cloned()
    }

    /// Returns the key with this name, for work that continues after its request has ended.
    pub fn named(&self, name: &str) -> Option<Arc<Key>> {
        let ring = self.current.read().unwrap_or_else(PoisonError::into_inner).ring.clone();
        ring.named(name).cloned()
    }

    /// Reads the keys again if the file has changed. If the new file is invalid or missing, the keys stay as they are and the error is
    /// logged.
    pub fn refresh(&self) {
        let before = self.current();
        let Some(file) = &self.file else { return };
        let after = match file.version() {
            Ok(version) if version == before.version => Ok(Current { fault: None, ..before.clone() }),
            Ok(None) => Err("the file of keys is gone".to_owned()),
            Ok(Some(_)) => self.read(&before),
            Err(error) => Err(error.to_string()),
        };
        let after = after.unwrap_or_else(|fault| {
            if before.fault.as_ref() != Some(&fault) {
                tracing::error!("the keys stay as they were: {}", fault.escape_debug());
            }
            Current { fault: Some(fault), ..before.clone() }
        });
        if after.version != before.version {
            tracing::info!(keys = after.ring.len(), "the file of keys was read");
        }
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = after;
    }

    fn read(&self, before: &Current) -> Result<Current, String> {
        // The version is read first. If the file changes before the keys are read, it is only read once more than needed.
        let version = self.file.as_ref().map(KeyFile::version).transpose().map_err(|error| error.to_string())?.flatten();
        let listed = self.file.as_ref().map(KeyFile::read).transpose().map_err(|error| error.to_string())?.flatten();
        let required = match self.require {
            RequireKeys::Always => true,
            RequireKeys::Never => false,
            RequireKeys::Auto => listed.is_some() || !self.fixed.is_empty(),
        };
        let entries = self.fixed.iter().cloned().chain(listed.unwrap_or_default()).collect();
        let ring = Ring::new(entries, self.defaults, &before.ring)?;
        Ok(Current { ring: Arc::new(ring), version, required, fault: None })
    }
}

/// Lets tenants have the marks of earlier processes, so that they find what a prefix cache has kept on disk.
fn keep_marks(folder: &Path) {
    match tiers::secret(folder) {
        // Marks that have been computed stay as they are.
        Ok(secret) => drop(SECRET.set(secret.into())),
        Err(error) => {
            tracing::warn!("{}: {error}: tenants' prompts are not found after a restart", folder.display().to_string().escape_debug())
        }
    }
}

/// What the marks of this process' tenants are computed with.
static SECRET: OnceLock<Vec<u8>> = OnceLock::new();

/// Computes the mark of a tenant's entries in a shared cache. Only a process with the secret can compute it, so no client can search for a
/// user name that yields another tenant's mark.
pub fn mark(tenant: &str, user: u64) -> u64 {
    let secret = SECRET.get_or_init(|| uuid::Uuid::new_v4().into_bytes().into());
    let text = [&secret[..], &user.to_le_bytes(), tenant.as_bytes()].concat();
    u64::from_le_bytes(Digest::of(&text).index())
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{ConfigSources, Overrides};

    fn keyring(file: &Path, require: RequireKeys, keys: &[String]) -> anyhow::Result<Keyring> {
        let env = vec![("HOME".to_owned(), "/home/u".to_owned())];
        let mut config = Config::load_from(&ConfigSources { env, ..Default::default() }, &Overrides::default()).unwrap();
        (config.auth.keys_file, config.auth.require_keys, config.auth.keys) = (file.to_owned(), require, keys.to_vec());
        Keyring::open(&config)
    }

    fn entry(name: &str) -> KeyEntry {
        KeyEntry::new(name, Digest::of(name.as_bytes()))
    }

    #[test]
    fn a_file_that_appears_closes_the_server_and_nothing_opens_it_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        let ring = keyring(&path, RequireKeys::Auto, &[]).unwrap();
        let is_known = |name: &str| ring.find(name.as_bytes()).is_some();
        assert!(ring.is_open("/v1/models") && !is_known("a"));
        let file = KeyFile::new(&path);
        file.add(entry("a")).unwrap();
        ring.refresh();
        assert!(!ring.is_open("/v1/models") && ring.is_open("/health") && ring.is_open("/v1/health") && is_known("a"));
        file.add(entry("b")).unwrap();
        file.revoke("a").unwrap();
        ring.refresh();
        assert!(is_known("b") && !is_known("a"));
        std::fs::write(&path, "what?").unwrap();
        ring.refresh();
        assert!(ring.is_required() && is_known("b"), "a file that cannot be read changes nothing");
        std::fs::remove_file(&path).unwrap();
        ring.refresh();
        assert!(ring.is_required() && is_known("b"), "nor does one that is gone");
        file.add(entry("b")).unwrap();
        file.revoke("b").unwrap();
        ring.refresh();
        assert!(ring.is_required() && !is_known("b"), "a file without keys lets nobody in");
    }

    #[test]
    fn the_configuration_says_whether_keys_are_needed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        let pair = format!("ci:{}", Digest::of(b"ci"));
        let needs = |require, keys: &[String]| keyring(&path, require, keys).unwrap().is_required();
        assert!(!needs(RequireKeys::Auto, &[]) && needs(RequireKeys::Auto, std::slice::from_ref(&pair)) && needs(RequireKeys::Always, &[]));
        KeyFile::new(&path).add(entry("ci")).unwrap();
        assert!(needs(RequireKeys::Auto, &[]) && !needs(RequireKeys::Never, &[]));
        let alike = keyring(&path, RequireKeys::Auto, &[pair]).err().unwrap().to_string();
        assert_eq!(alike, "two keys have the name `ci`");
    }

    #[test]
    fn marks_differ_by_tenant_and_by_user() {
        assert_eq!(mark("a", 1), mark("a", 1));
        let all = [mark("a", 1), mark("a", 2), mark("b", 1), mark("", 1)];
        assert!((0..4).all(|i| !all[i + 1..].contains(&all[i])));
    }
}

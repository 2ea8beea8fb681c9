//! The file of keys. Each change replaces the file as a whole, so that a reader sees either the old or the new version.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use outside::{Output, read_text};
use serde::Deserialize;

use crate::entry::KeyEntry;
use crate::version::Version;

/// The most keys in a file, and the largest size of a file [bytes].
const MAX_KEYS: usize = 10_000;
const MAX_SIZE: u64 = 16 << 20;

const HEAD: &str = "# Penstock's API keys: the hash of each, and what it allows. `penstock keys` adds, lists and revokes them. It\n\
                    # keeps no comments but this one. A running server reads the file again when it changes.\n";

#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: std::io::Error },
    #[error("{}: {fault}", path.display())]
    KeyFileContent { path: PathBuf, fault: String },
    #[error("{}: there is a key `{name}` already: revoke it first, or choose another name", path.display())]
    Exists { path: PathBuf, name: String },
    #[error("{}: there is no key `{name}`: see `penstock keys list`", path.display())]
    Unknown { path: PathBuf, name: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFileContent {
    #[serde(default)]
    keys: Vec<KeyEntry>,
}

pub struct KeyFile {
    path: PathBuf,
}

impl KeyFile {
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    fn io(&self, error: std::io::Error) -> KeyFileError {
        KeyFileError::Io { path: self.path.clone(), error }
    }

    fn content(&self, fault: impl Into<String>) -> KeyFileError {
        KeyFileError::KeyFileContent { path: self.path.clone(), fault: fault.into() }
    }

    /// The present version of the file. `None` if there is no file.
    ///
    /// # Errors
    /// The file's metadata cannot be read.
    pub fn version(&self) -> Result<Option<Version>, KeyFileError> {
        Version::of(&self.path).map_err(|error| self.io(error))
    }

    /// Reads the keys of the file. `None` if there is no file.
    ///
    /// # Errors
    /// The file cannot be read, or is no list of keys with distinct names and hashes.
    pub fn read(&self) -> Result<Option<Vec<KeyEntry>>, KeyFileError> {
        let text = match read_text(&self.path, MAX_SIZE) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.io(error)),
        };
        let content: KeyFileContent = toml::from_str(&text).map_err(|error| self.content(one_line(&error.to_string())))?;
        check(&content.keys).map_err(|fault| self.content(fault))?;
        Ok(Some(content.keys))
    }

    /// Adds a key. Creates the file if there is none.
    ///
    /// # Errors
    /// The file cannot be read or written, or already has a key of that name.
    pub fn add(&self, entry: KeyEntry) -> Result<(), KeyFileError> {
        self.change(|keys| {
            if keys.iter().any(|key| key.name == entry.name) {
                return Err(KeyFileError::Exists { path: self.path.clone(), name: entry.name });
            }
            keys.push(entry);
            Ok(())
        })
    }

    /// Removes a key. The file stays even if it has no keys left, so that a server that requires keys continues to do so.
    ///
    /// # Errors
    /// The file cannot be read or written, or has no key of that name.
    pub fn revoke(&self, name: &str) -> Result<(), KeyFileError> {
        self.change(|keys| {
            let before = keys.len();
            keys.retain(|key| key.name != name);
            let unknown = || KeyFileError::Unknown { path: self.path.clone(), name: name.to_owned() };
            if keys.len() < before { Ok(()) } else { Err(unknown()) }
        })
    }

    /// Reads, changes and writes the file under a lock against other processes.
    fn change(&self, change: impl FnOnce(&mut Vec<KeyEntry>) -> Result<(), KeyFileError>) -> Result<(), KeyFileError> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(|error| self.io(error))?;
        // The file itself is replaced, so the lock is on its folder.
        let lock = File::open(folder).map_err(|error| self.io(error))?;
        lock.lock().map_err(|error| self.io(error))?;
        let mut keys = self.read()?.unwrap_or_default();
        change(&mut keys)?;
        check(&keys).map_err(|fault| self.content(fault))?;
        self.write(&keys).map_err(|error| self.io(error))?;
        lock.sync_all().map_err(|error| self.io(error))
    }

    fn write(&self, keys: &[KeyEntry]) -> std::io::Result<()> {
        let tables: Vec<String> = keys.iter().map(KeyEntry::to_toml).collect();
        let text = format!("{HEAD}\n{}", tables.join("\n"));
        let mut file = Output::create_private(&self.path)?;
        file.write_all(text.as_bytes())?;
        file.finish()
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Checks each key, and that no two keys have the same name or hash.
pub(crate) fn check(keys: &[KeyEntry]) -> Result<(), String> {
    if keys.len() > MAX_KEYS {
        return Err(format!("there are {} keys, at most {MAX_KEYS} are allowed", keys.len()));
    }
    let (mut names, mut digests) = (std::collections::HashSet::new(), std::collections::HashMap::new());
    for key in keys {
        key.check().map_err(|fault| format!("key `{}`: {fault}", key.name.chars().take(100).collect::<String>().escape_debug()))?;
        if !names.insert(key.name.as_str()) {
            return Err(format!("two keys have the name `{}`", key.name));
        }
        if let Some(other) = digests.insert(key.sha256.to_string(), key.name.as_str()) {
            return Err(format!("the keys `{other}` and `{}` have the same sha256", key.name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;
    use crate::digest::Digest;

    fn entry(name: &str) -> KeyEntry {
        KeyEntry::new(name, Digest::of(name.as_bytes()))
    }

    #[test]
    fn keys_are_added_and_revoked_and_the_file_is_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new").join("keys.toml");
        let file = KeyFile::new(&path);
        assert!(file.read().unwrap().is_none() && file.version().unwrap().is_none());
        file.add(entry("a")).unwrap();
        let first = file.version().unwrap();
        let second = KeyEntry { tenant: Some("t".into()), models: Some(vec!["m \"é\\".into()]), priority: Some(3), ..entry("b") };
        file.add(second.clone()).unwrap();
        assert_ne!(file.version().unwrap(), first);
        assert_eq!(file.read().unwrap(), Some(vec![entry("a"), second.clone()]));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(file.add(entry("a")), Err(KeyFileError::Exists { .. })));
        assert!(matches!(file.revoke("c"), Err(KeyFileError::Unknown { .. })));
        file.revoke("a").unwrap();
        assert_eq!(file.read().unwrap(), Some(vec![second]));
        file.revoke("b").unwrap();
        assert_eq!(file.read().unwrap(), Some(Vec::new()), "the file stays");
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn a_wrong_file_is_an_error_that_says_what_is_wrong_and_is_not_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        let hash = Digest::of(b"a");
        let key = format!("[[keys]]\nname = \"a\"\nsha256 = \"{hash}\"\n");
        for (text, fault) in [
            ("[[keys]]\nname = \"a\"\n", "missing field `sha256`"),
            ("[[keys]]\nname = \"a\"\nsha256 = \"12\"\n", "not a SHA-256 of 64 hex digits"),
            (&format!("{key}requests = 5\n"), "unknown field `requests`"),
            (&format!("{key}priority = -1\n"), "-1"),
            (&format!("{key}priority = 0\n"), "key `a`: priority is 0"),
            (&format!("{key}{key}"), "two keys have the name `a`"),
            (&format!("{key}{}", key.replace("\"a\"", "\"b\"")), "the keys `a` and `b` have the same sha256"),
            ("keys = 1\n", "invalid type"),
            ("\0", "TOML"),
        ] {
            std::fs::write(&path, text).unwrap();
            for error in [KeyFile::new(&path).read().unwrap_err(), KeyFile::new(&path).add(entry("z")).unwrap_err()] {
                let error = error.to_string();
                assert!(error.contains(fault) && error.contains("keys.toml") && !error.contains('\n'), "{fault}: {error}");
            }
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn a_link_to_the_file_stays_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("real.toml"), folder.path().join("keys.toml"));
        KeyFile::new(&path).add(entry("a")).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        KeyFile::new(&link).add(entry("b")).unwrap();
        assert!(link.is_symlink());
        assert_eq!(KeyFile::new(&path).read().unwrap().unwrap().len(), 2);
    }

    #[test]
    fn no_key_is_lost_when_several_add_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let path = &path;
                scope.spawn(move || (0..5).for_each(|i| KeyFile::new(path).add(entry(&format!("k{thread}-{i}"))).unwrap()));
            }
        });
        assert_eq!(KeyFile::new(&path).read().unwrap().unwrap().len(), 20);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        /// A written file is read back unchanged.
        #[test]
        fn a_written_file_is_read_as_it_was(
            names in prop::collection::hash_set("[a-zA-Z0-9._@-]{1,64}", 0..6),
            models in prop::option::of(prop::collection::vec("[^\\p{Cc}]{1,20}", 1..4)),
            limits in prop::array::uniform4(prop::option::of(0u64..1_000_000_000)),
            priority in prop::option::of(1u32..=100),
            admin in any::<bool>(),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let file = KeyFile::new(&folder.path().join("keys.toml"));
            let [requests_per_minute, tokens_per_minute, max_concurrent, created] = limits;
            let keys: Vec<KeyEntry> = names.iter().map(|name| KeyEntry {
                tenant: Some(name.chars().rev().collect()), models: models.clone(), requests_per_minute, tokens_per_minute,
                max_concurrent, priority, admin, created, ..entry(name)
            }).collect();
            for key in &keys {
                file.add(key.clone()).unwrap();
            }
            prop_assert_eq!(file.read().unwrap().unwrap_or_default(), keys);
        }
    }
}

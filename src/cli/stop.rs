//! `penstock stop`: unloads models of a running server.

use std::path::Path;

use serde_json::json;

use super::output::{print, print_json};
use super::remote::{Remote, RemoteArgs};

#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  penstock stop smollm2:135m
  penstock stop qwen3 --force          also if requests use it: they end with an error")]
pub struct StopArgs {
    /// Ids or aliases
    #[arg(required = true, value_name = "MODEL")]
    models: Vec<String>,
    #[command(flatten)]
    remote: RemoteArgs,
    /// Unload models even if requests use them
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: StopArgs, config: Option<&Path>) -> anyhow::Result<()> {
    let remote = Remote::new(&args.remote, config)?;
    for model in &args.models {
        let answer = remote.post("/admin/models/unload", &json!({"model": model, "force": args.force}))?;
        match args.json {
            true => print_json(&answer)?,
            false => print(&format!("{} is not loaded any more\n", answer["id"].as_str().unwrap_or(model)))?,
        }
    }
    Ok(())
}

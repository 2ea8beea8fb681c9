//! `penstock man`: writes manual pages, one per command.

use std::path::PathBuf;

use anyhow::Context;
use clap::CommandFactory;

use super::output::print;

#[derive(clap::Args, Debug)]
#[command(after_help = "Example:
  penstock man ~/.local/share/man/man1 && man penstock-run")]
pub struct ManArgs {
    /// The folder to write penstock.1, penstock-serve.1 and so on to; created if missing
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// `Line`: the type of the whole command line.
pub fn run<Line: CommandFactory>(args: &ManArgs) -> anyhow::Result<()> {
    let named = || format!("cannot write to {}", args.dir.display());
    std::fs::create_dir_all(&args.dir).with_context(named)?;
    // The command `help` would only repeat the others.
    let command = Line::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, &args.dir).with_context(named)?;
    print(&format!("wrote the pages to {}\n", args.dir.display()))
}

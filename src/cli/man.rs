//! `penstock man`: writes manual pages, one per command.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_mangen::Man;

use super::output::print;

#[derive(clap::Args, Debug)]
#[command(after_help = "Example:
  penstock man ~/.local/share/man/man1 && man penstock-run")]
pub struct ManArgs {
    /// The folder to write penstock.1, penstock-serve.1 and so on to; created if missing
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Writes the pages of a command and of those below it.
fn write(command: Command, dir: &Path) -> anyhow::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()).cloned() {
        write(below, dir)?;
    }
    let page = Man::new(command);
    let path = dir.join(page.get_filename());
    outside::write(&path, |file| page.render(file)).with_context(|| format!("cannot write {}", path.display()))
}

/// `Line`: the type of the whole command line.
pub fn run<Line: CommandFactory>(args: &ManArgs) -> anyhow::Result<()> {
    let named = || format!("cannot write to {}", args.dir.display());
    std::fs::create_dir_all(&args.dir).with_context(named)?;
    // The command `help` would only repeat the others.
    let mut command = Line::command().disable_help_subcommand(true);
    command.build();
    write(command, &args.dir)?;
    print(&format!("wrote the pages to {}\n", args.dir.display()))
}

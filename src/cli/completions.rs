//! `penstock completions`: completion scripts for shells.

use clap::CommandFactory;
use clap_complete::Shell;

use super::output::print;

#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  penstock completions bash > ~/.local/share/bash-completion/completions/penstock
  penstock completions zsh > ~/.zfunc/_penstock                     with `fpath+=~/.zfunc` before `compinit`
  penstock completions fish > ~/.config/fish/completions/penstock.fish")]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// `Line`: the type of the whole command line.
pub fn run<Line: CommandFactory>(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Line::command(), "penstock", &mut script);
    print(&String::from_utf8(script)?)
}

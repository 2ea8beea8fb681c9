//! `penstock completions`: completion scripts for shells. Those for bash, zsh and fish complete names of models, which they take from
//! `penstock list --names`.

use clap::builder::Str;
use clap::{Arg, Command, CommandFactory, ValueHint};
use clap_complete::Shell;

use super::output::print;

#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  penstock completions bash > ~/.local/share/bash-completion/completions/penstock
  penstock completions zsh > ~/.zfunc/_penstock                     with `fpath+=~/.zfunc` before `compinit`
  penstock completions fish > ~/.config/fish/completions/penstock.fish

In bash, zsh and fish, Tab completes the names of models, too: those on disk and those of the catalogue.")]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// `Line`: the type of the whole command line.
pub fn run<Line: CommandFactory>(args: &CompletionsArgs) -> anyhow::Result<()> {
    print(&script(args.shell, Line::command())?)
}

fn script(shell: Shell, command: Command) -> anyhow::Result<String> {
    let mut text = Vec::new();
    // The generators have no hint for models. That for users stands in for it, since no argument is a user.
    let mut hinted = command.mut_subcommands(|sub| sub.mut_args(hinted));
    clap_complete::generate(shell, &mut hinted, "penstock", &mut text);
    let text = String::from_utf8(text)?;
    Ok(match shell {
        Shell::Bash => text + &bash(&hinted),
        Shell::Zsh => text.replace(":_users'", ":_penstock_models'").replacen("autoload -U is-at-least\n", ZSH, 1),
        Shell::Fish => {
            text.replace("-r -f -a \"(__fish_complete_users)\"", "-r -a \"(__fish_penstock_models)\"") + FISH + &fish_arguments(&hinted)
        }
        _ => text,
    })
}

fn hinted(arg: Arg) -> Arg {
    if is_model(&arg) { arg.value_hint(ValueHint::Username) } else { arg }
}

/// Whether an argument is the name of a model.
fn is_model(arg: &Arg) -> bool {
    let name = arg.get_value_names().and_then(|names| names.first()).map(Str::as_str);
    let first = name.unwrap_or(arg.get_id().as_str()).split('|').next();
    arg.get_action().takes_values() && first.is_some_and(|name| name.eq_ignore_ascii_case("model"))
}

/// The commands whose arguments are names of models.
fn commands(command: &Command) -> Vec<&str> {
    let takes_model = |sub: &&Command| sub.get_positionals().any(is_model);
    command.get_subcommands().filter(takes_model).map(Command::get_name).collect()
}

/// The long options that `chosen` accepts, each once.
fn options(command: &Command, chosen: fn(&Arg) -> bool) -> Vec<String> {
    let args = command.get_subcommands().flat_map(Command::get_arguments).chain(command.get_arguments());
    let mut names: Vec<_> = args.filter(|arg| chosen(arg)).filter_map(|arg| Some(format!("--{}", arg.get_long()?))).collect();
    names.sort();
    names.dedup();
    names
}

fn bash(command: &Command) -> String {
    let commands = commands(command).join(" ");
    let models = options(command, is_model).join(" ");
    let others = options(command, |arg| arg.get_action().takes_values() && !is_model(arg)).join(" ");
    BASH.replace("COMMANDS", &commands).replace("MODEL_OPTIONS", &models).replace("OTHER_OPTIONS", &others)
}

fn fish_arguments(command: &Command) -> String {
    let line = |name| format!("complete -c penstock -n \"__fish_penstock_using_subcommand {name}\" -k -a \"(__fish_penstock_models)\"\n");
    commands(command).into_iter().map(line).collect()
}

/// Readline takes the colon of a name for the end of a word, so words are read from the whole line, and what is before the last colon is
/// left out of the answer.
const BASH: &str = r#"
_penstock_and_models() {
    _penstock "$@"
    local line="${COMP_LINE:0:COMP_POINT}" word before previous name command="" start=""
    word="${line##*[[:space:]]}"
    before="${line%"${word}"}"
    before="${before%"${before##*[![:space:]]}"}"
    previous="${before##*[[:space:]]}"
    if [[ ${word} == --*=* && " MODEL_OPTIONS " == *" ${word%%=*} "* ]]; then
        previous="${word%%=*}"
        word="${word#*=}"
    fi
    [[ ${word} == -* || " OTHER_OPTIONS " == *" ${previous} "* ]] && return
    if [[ " MODEL_OPTIONS " != *" ${previous} "* ]]; then
        for name in ${before#*[[:space:]]}; do
            [[ " COMMANDS " == *" ${name} "* ]] && command="${name}" && break
        done
        [[ -z ${command} ]] && return
    fi
    [[ ${COMP_WORDBREAKS} == *:* && ${word} == *:* ]] && start="${word%"${word##*:}"}"
    COMPREPLY=()
    for name in $("$1" list --names 2>/dev/null); do
        [[ ${name} == "${word}"* ]] && COMPREPLY+=("${name#"${start}"}")
    done
}

complete -F _penstock_and_models -o nosort -o bashdefault -o default penstock 2>/dev/null ||
    complete -F _penstock_and_models -o bashdefault -o default penstock
"#;

const ZSH: &str = r#"autoload -U is-at-least

_penstock_models() {
    local -a names
    names=(${(f)"$(penstock list --names 2>/dev/null)"})
    compadd -V models -a names || _files
}
"#;

const FISH: &str = r#"
function __fish_penstock_models
    penstock list --names 2>/dev/null
end
"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(shell: Shell) -> String {
        script(shell, crate::cli::Cli::command()).unwrap()
    }

    #[test]
    fn every_argument_that_is_a_model_is_completed() {
        let command = crate::cli::Cli::command();
        let takers = commands(&command);
        for name in ["run", "pull", "show", "rm", "stop", "cp", "bench", "quantize", "inspect"] {
            assert!(takers.contains(&name), "{name}: {takers:?}");
        }
        assert!(!takers.contains(&"serve") && !takers.contains(&"create") && !takers.contains(&"list"), "{takers:?}");
        assert!(options(&command, is_model).contains(&"--model".to_owned()));
        let zsh = of(Shell::Zsh);
        assert!(zsh.contains("':model -- A model (see `penstock list`), or a GGUF file:_penstock_models'"));
        assert!(zsh.starts_with("#compdef penstock") && zsh.contains("_penstock_models() {") && !zsh.contains("_users"));
        let fish = of(Shell::Fish);
        assert!(fish.contains("using_subcommand serve\" -l model -d") && !fish.contains("complete_users"));
        assert!(fish.contains("-n \"__fish_penstock_using_subcommand run\" -k -a \"(__fish_penstock_models)\""));
        assert!(of(Shell::Elvish).contains("penstock"));
    }
}

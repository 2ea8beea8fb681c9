//! The command line: one file per command.

use std::borrow::Cow;
use std::io::ErrorKind;

use clap::{Parser, Subcommand};

use crate::api::Interrupted;
use crate::config::misnamed_variables;
use crate::{engine, telemetry};
use grammar::enable_trials;

mod adapter_args;
pub mod bench;
mod colour;
pub mod completions;
pub mod convert;
pub mod cp;
pub mod create;
mod device;
pub mod doctor;
mod engine_args;
mod estimate;
pub mod eval;
mod eval_sums;
pub mod health;
pub mod import;
pub mod inspect;
pub mod keys;
pub mod list;
mod log_args;
pub mod logits;
mod logits_pictures;
pub mod man;
mod names;
mod npy;
mod output;
pub mod ps;
pub mod pull;
pub mod quantize;
mod reload;
mod remote;
pub mod render;
pub mod rm;
mod rows;
pub mod run;
pub mod serve;
pub mod show;
pub mod stop;
mod supervise;
pub mod tokenize;
mod unfetched;
mod version;

/// Runs GGUF models and serves them to clients of OpenAI, Anthropic and Ollama.
#[derive(Parser, Debug)]
#[command(name = "penstock", version, long_version = version::LONG, propagate_version = true)]
pub struct Cli {
    /// A configuration file that overrides config/*.toml
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<std::path::PathBuf>,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Serve models over HTTP
    Serve(serve::ServeArgs),
    /// Chat with a model, or answer one prompt
    Run(run::RunArgs),
    /// Check the health of a running server
    Health(health::HealthArgs),
    /// Fetch a model
    Pull(pull::PullArgs),
    /// List the models on disk and in the catalogue
    List(list::ListArgs),
    /// List the models that a running server has loaded
    Ps(ps::PsArgs),
    /// Unload models of a running server
    Stop(stop::StopArgs),
    /// Add, list and revoke API keys
    Keys(keys::KeysArgs),
    /// Remove a model from disk
    Rm(rm::RmArgs),
    /// Make a model from a Modelfile: another model with a system message, a template and parameters of its own
    Create(create::CreateArgs),
    /// Give a model a second name
    Cp(cp::CpArgs),
    /// Take over the models of Ollama, without copying them
    Import(import::ImportArgs),
    /// Show a model's metadata and the memory that it needs
    Show(show::ShowArgs),
    /// Print the contents of a GGUF file: metadata, tensors, types, sizes
    Inspect(inspect::InspectArgs),
    /// Turn text on stdin into token ids
    Tokenize(tokenize::TokenizeArgs),
    /// Render a chat template
    Render(render::RenderArgs),
    /// Measure the speed of an engine with a model
    Bench(bench::BenchArgs),
    /// Write the logits at the last position of each prompt
    Logits(logits::LogitsArgs),
    /// Measure a model on a text: perplexity, and the divergence of its logits from a reference
    Eval(eval::EvalArgs),
    /// Convert a Hugging Face checkpoint to a GGUF file
    Convert(convert::ConvertArgs),
    /// Convert a model's tensors to other types
    Quantize(quantize::QuantizeArgs),
    /// Show this machine's hardware, the models that fit, and advice to make it faster
    Doctor(doctor::DoctorArgs),
    /// Write a shell's completion script
    Completions(completions::CompletionsArgs),
    /// Write manual pages
    Man(man::ManArgs),
}

/// Ends the process with what is wrong with its arguments, or with the help that they ask for.
fn refuse(error: &clap::Error) -> ! {
    let text = error.to_string();
    // Arguments may be names of files that others chose. Only without them, the text has clap's colours.
    match outside::visible(&text) {
        Cow::Borrowed(_) => error.exit(),
        Cow::Owned(text) => {
            output::say(text.trim_end());
            std::process::exit(error.exit_code())
        }
    }
}

/// Runs a command and ends the process. Errors go to stderr.
pub fn main() -> ! {
    enable_trials();
    let cli = Cli::try_parse().unwrap_or_else(|error| refuse(&error));
    let config = cli.config.as_deref();
    // The server logs these warnings, and the other commands here read no settings.
    if !matches!(cli.command, Command::Serve(_) | Command::Convert(_) | Command::Completions(_) | Command::Man(_)) {
        misnamed_variables().iter().for_each(|warning| output::say(warning));
    }
    let result = match cli.command {
        Command::Serve(args) => serve::run(args, config),
        Command::Run(args) => run::run(args, config),
        Command::Health(args) => health::run(&args, config),
        Command::Pull(args) => pull::run(args, config),
        Command::List(args) => list::run(args, config),
        Command::Ps(args) => ps::run(args, config),
        Command::Stop(args) => stop::run(args, config),
        Command::Keys(args) => keys::run(args, config),
        Command::Rm(args) => rm::run(args, config),
        Command::Create(args) => create::run(args, config),
        Command::Cp(args) => cp::run(&args, config),
        Command::Import(args) => import::run(args, config),
        Command::Show(args) => show::run(args, config),
        Command::Inspect(args) => inspect::run(args, config),
        Command::Tokenize(args) => tokenize::run(args, config),
        Command::Render(args) => render::run(args, config),
        Command::Bench(args) => bench::run(args, config),
        Command::Logits(args) => logits::run(args, config),
        Command::Eval(args) => eval::run(args, config),
        Command::Convert(args) => convert::run(args),
        Command::Quantize(args) => quantize::run(args, config),
        Command::Doctor(args) => doctor::run(&args, config),
        Command::Completions(args) => completions::run::<Cli>(&args),
        Command::Man(args) => man::run::<Cli>(&args),
    };
    let code = match result {
        Ok(()) => 0,
        // The reader has closed the pipe: `penstock list | head -1`.
        Err(error) if error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe) => 1,
        Err(error) => {
            telemetry::print_error(&format!("{error:#}"));
            match error.downcast_ref::<supervise::ChildExit>() {
                Some(ended) => ended.code(),
                None if error.is::<Interrupted>() || error.is::<run::Interrupted>() => 130,
                None => 1,
            }
        }
    };
    telemetry::flush();
    // Skipping exit handlers loses no output: stdout flushes at each newline, and commands flush other text themselves.
    engine::end_process(code)
}

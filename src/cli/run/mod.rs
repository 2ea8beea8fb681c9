//! `penstock run`: chats with a model in this process, without a server.

mod chat;
mod command;
mod completion;
mod echo_guard;
mod exported;
mod markdown;
mod picture_paths;
mod pictures;
mod repl;
mod saved;
mod screen;
mod settings;
mod wrap;

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

use super::engine_args::EngineArgs;
use super::names::hint;
use super::output::say;
use crate::config::{AdapterEntry, Config, LogFormat, Mmproj, Overrides};
use crate::logits::SamplingChoice;
use crate::registry::{ModelKind, Registry};
use crate::telemetry;
use chat::{Chat, TurnEnd};
use pictures::Draft;
use settings::Settings;

const EXAMPLES: &str = "Examples:
  penstock run smollm2:135m                           chat; /? lists the commands
  penstock run smollm2:135m 'Name three rivers.'      one answer
  penstock run MODEL 'What is in ./cat.png?'          attaches the picture, if the model reads pictures
  cat notes.txt | penstock run smollm2:135m 'Summarise this.'
  penstock run ./some.gguf --temperature 0 < question.txt";

/// Ctrl-C ended the only answer.
#[derive(Debug)]
pub struct Interrupted;

impl std::error::Error for Interrupted {}

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

/// The name of the adapter that a flag names.
const ADAPTER: &str = "adapter";
/// The most models that advice names.
const MAX_SHOWN: usize = 5;
/// The most that is read from stdin, more than any context holds [bytes].
const MAX_STDIN: u64 = 64 << 20;

#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// A model (see `penstock list`), or a GGUF file
    model: String,
    /// One prompt, appended to the text on stdin; without it, a chat starts if stdin is a terminal
    prompt: Vec<String>,
    /// Instructions for the model before the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Whether to reason before the answer: on, off, or a level that the model knows
    #[arg(long, value_name = "HOW")]
    think: Option<String>,
    /// The temperature; 0 always picks the likeliest token [default: as the model's authors recommend, or 0.7]
    #[arg(long, value_parser = parse_temperature)]
    temperature: Option<f32>,
    /// The most tokens per answer [default: the rest of the context]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// The seed; the same seed gives the same answers
    #[arg(long)]
    seed: Option<u64>,
    /// Show the speed of each answer
    #[arg(short, long)]
    verbose: bool,
    /// Do not wrap long lines
    #[arg(long)]
    nowordwrap: bool,
    /// Show answers as the model writes them, without rendering their Markdown
    #[arg(long)]
    plain: bool,
    /// Neither read nor write the history of typed lines
    #[arg(long)]
    nohistory: bool,
    /// The picture encoder of a model that is a file, or none [default: the file beside the model, if one fits]
    #[arg(long, value_name = "FILE.gguf|none")]
    mmproj: Option<Mmproj>,
    /// A smaller model with the same vocabulary that drafts the answers: an id, or a GGUF file
    #[arg(long, value_name = "MODEL", alias = "model-draft")]
    draft: Option<String>,
    /// An adapter (LoRA, control vector) of the model: a GGUF file or a PEFT folder
    #[arg(long, value_name = "PATH")]
    adapter: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
}

fn parse_temperature(text: &str) -> Result<f32, String> {
    text.parse().ok().filter(|value| (0.0..=2.0).contains(value)).ok_or_else(|| "must be a number from 0 to 2".into())
}

impl RunArgs {
    fn settings(&self) -> anyhow::Result<Settings> {
        let mut settings = Settings {
            system: self.system.clone(),
            sampling: SamplingChoice { temperature: self.temperature, ..SamplingChoice::default() },
            max_tokens: self.max_tokens,
            seed: self.seed,
            verbose: self.verbose,
            wordwrap: !self.nowordwrap,
            history: !self.nohistory,
            plain: self.plain,
            ..Settings::default()
        };
        if let Some(think) = &self.think {
            settings.set(&format!("think {think}")).map_err(|fault| anyhow::anyhow!("--think: {fault}"))?;
        }
        Ok(settings)
    }
}

pub fn run(args: RunArgs, config: Option<&Path>) -> anyhow::Result<()> {
    let settings = args.settings()?;
    let adapter = args.adapter.as_ref().map(|path| AdapterEntry { eager: true, ..AdapterEntry::new(ADAPTER, None, path.clone()) });
    let overrides = Overrides {
        models: vec![args.model.clone()],
        mmproj: args.mmproj.clone(),
        draft: args.draft.clone(),
        adapters: adapter.into_iter().collect(),
        ..args.engine.overrides()
    };
    let config = Config::load(config, &overrides)?;
    telemetry::init(&telemetry::Log { filter: "warn", is_flag: false, format: LogFormat::Text })?;
    hint(&config, &args.model);
    let registry = Registry::new(&config, std::slice::from_ref(&args.model))?;
    registry.load_eager()?;
    // A file is served under its name, not its path.
    let first = || registry.list().into_iter().next().map(|info| info.id);
    let id = if args.adapter.is_some() { Some(ADAPTER.to_owned()) } else { first() }.context("no model is served")?;
    let model = registry.get(&id)?;
    if model.only_continues {
        say(&format!("{} is a base model: it continues each text and does not chat{}", model.id, chatting(&registry)));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut chat = Chat::new(model, Settings::default());
    chat.try_settings(&settings).map_err(anyhow::Error::msg)?;
    chat.settings = settings;
    let result = match prompt(&args)? {
        Some(draft) => match runtime.block_on(chat.answer(&draft))? {
            TurnEnd::Complete => Ok(()),
            TurnEnd::Interrupted => Err(Interrupted.into()),
        },
        None => repl::run(&mut chat, &registry, &runtime),
    };
    registry.stop();
    result
}

/// Models on disk that chat, as advice.
fn chatting(registry: &Registry) -> String {
    let chats = registry.offered().into_iter().filter(|offered| offered.kind == Some(ModelKind::Chat)).map(|offered| offered.info.id);
    let chats: Vec<String> = chats.take(MAX_SHOWN).collect();
    if chats.is_empty() { String::new() } else { format!("; on this disk, these do: {}", chats.join(", ")) }
}

/// The prompt: the text on stdin, followed by the one on the command line. None if there is none and stdin is a terminal to chat on. A text
/// before the prompt, which others may have written, attaches no pictures.
fn prompt(args: &RunArgs) -> anyhow::Result<Option<Draft>> {
    let asked = args.prompt.join(" ");
    let asked = Some(asked).filter(|text| !text.trim().is_empty());
    ensure!(args.prompt.is_empty() || asked.is_some(), "the prompt is empty");
    if std::io::stdin().is_terminal() {
        return asked.map(|asked| Draft::new(&asked, Vec::new())).transpose();
    }
    let mut text = String::new();
    std::io::stdin().lock().take(MAX_STDIN + 1).read_to_string(&mut text).context("cannot read the prompt from stdin")?;
    ensure!(text.len() as u64 <= MAX_STDIN, "stdin holds more than {} MiB, the most that is read", MAX_STDIN >> 20);
    // The newline at the end usually comes from a command, not from the user.
    let piped = text.strip_suffix('\n').map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));
    let mut draft = match (&asked, piped.trim().is_empty()) {
        (None, true) => bail!("the prompt on stdin is empty"),
        (None, false) => return Draft::new(piped, Vec::new()).map(Some),
        (Some(asked), _) => Draft::new(asked, Vec::new())?,
    };
    if !piped.trim().is_empty() {
        draft.text = format!("{piped}\n\n{}", draft.text);
    }
    Ok(Some(draft))
}

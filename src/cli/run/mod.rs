//! `penstock run`: a model in this process, without a server.

use std::io::{IsTerminal, Read};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use rustyline::error::ReadlineError;

use super::engine_args::EngineArgs;
use super::output::{for_terminal, show};
use crate::chat::{Conversation, Message, Piece, Role};
use crate::config::{Config, LogFormat, Overrides};
use crate::logits::{SamplingChoice, SamplingParams};
use crate::registry::Registry;
use crate::serving::{self, Budget, Model, Options, Output, Prompt, ValidRequest};
use crate::telemetry;

const EXAMPLES: &str = "Examples:
  penstock run smollm2:135m                           chat; /help lists the commands
  penstock run smollm2:135m 'Name three rivers.'      one answer
  penstock run ./some.gguf --temperature 0 < question.txt";

const HELP: &str = "/clear  forget the conversation\n/help   this list\n/bye    leave (also Ctrl-D); Ctrl-C stops an answer";

/// The temperature of a model for which nobody recommends one.
const TEMPERATURE: f32 = 0.7;

#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// An id of the catalogue or the path of a GGUF file
    model: String,
    /// One prompt; without it, a chat starts if stdin is a terminal
    prompt: Option<String>,
    /// Instructions for the model before the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// 0 always picks the likeliest token [default: what the model's authors recommend, or 0.7]
    #[arg(long, value_parser = parse_temperature)]
    temperature: Option<f32>,
    /// The most tokens per answer [default: what the context has left]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// The same seed gives the same answers
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    engine: EngineArgs,
}

fn parse_temperature(text: &str) -> Result<f32, String> {
    text.parse().ok().filter(|value| (0.0..=2.0).contains(value)).ok_or_else(|| "must be a number from 0 to 2".into())
}

pub fn run(args: Args, config: Option<&Path>) -> anyhow::Result<()> {
    let overrides = Overrides { models: vec![args.model.clone()], ..args.engine.overrides() };
    let config = Config::load(config, &overrides)?;
    telemetry::init(&telemetry::Log { filter: "warn", is_flag: false, format: LogFormat::Text })?;
    let registry = Registry::new(&config, std::slice::from_ref(&args.model))?;
    registry.load_eager()?;
    // A file is served under its own name, not under its path.
    let id = registry.list().into_iter().next().context("no model is served")?.id;
    let model = registry.get(&id)?;
    if model.only_continues {
        eprintln!("{} is a base model: it continues your text and was not tuned to answer", for_terminal(&model.id));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut chat = Chat::new(model, &args);
    let result = match prompt(&args)? {
        Some(prompt) => match runtime.block_on(chat.answer(&prompt))? {
            End::Complete => Ok(()),
            End::Interrupted => bail!("interrupted"),
        },
        None => repl(&mut chat, &runtime),
    };
    registry.stop();
    result
}

/// The prompt from the command line or from a pipe. None: stdin is a terminal to chat on.
fn prompt(args: &Args) -> anyhow::Result<Option<String>> {
    if args.prompt.is_some() || std::io::stdin().is_terminal() {
        return Ok(args.prompt.clone());
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("cannot read the prompt from stdin")?;
    if text.trim().is_empty() {
        bail!("the prompt on stdin is empty");
    }
    // The newline at the end comes from the shell, not from the user.
    let text = text.strip_suffix('\n').map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));
    Ok(Some(text.into()))
}

fn repl(chat: &mut Chat, runtime: &tokio::runtime::Runtime) -> anyhow::Result<()> {
    let mut editor = rustyline::DefaultEditor::new().context("cannot use the terminal")?;
    eprintln!("{}: type a message, or /help", for_terminal(&chat.model.id));
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let text = line.trim();
        if text.is_empty() {
            continue;
        }
        // A line that the history does not accept is no error.
        let _ = editor.add_history_entry(text);
        match text {
            "/bye" => return Ok(()),
            "/clear" => chat.clear(),
            "/help" => eprintln!("{HELP}"),
            command if command.starts_with('/') => eprintln!("{command} is not a command: /help lists the commands"),
            text => {
                if let Err(error) = runtime.block_on(chat.answer(text)) {
                    eprintln!("{} (/clear forgets the conversation)", for_terminal(&format!("{error:#}")));
                }
            }
        }
    }
}

#[derive(Debug, PartialEq)]
enum End {
    Complete,
    Interrupted,
}

/// A conversation with a model.
struct Chat {
    model: Arc<Model>,
    system: Option<String>,
    options: Options,
    messages: Vec<Message>,
}

impl Chat {
    fn new(model: Arc<Model>, args: &Args) -> Self {
        let mut chat = Self { model, system: args.system.clone(), options: options(args), messages: Vec::new() };
        chat.clear();
        chat
    }

    fn clear(&mut self) {
        self.messages = self.system.iter().map(|text| Message::of_text(Role::System, text)).collect();
    }

    /// Streams the answer to stdout. If the answer fails, the conversation stays as it was. An interrupted answer becomes part of it.
    async fn answer(&mut self, text: &str) -> anyhow::Result<End> {
        let before = self.messages.len();
        self.messages.push(Message::of_text(Role::User, text));
        let result = self.generate(text).await;
        match result {
            Ok((answer, end)) => {
                self.messages.push(Message::of_text(Role::Assistant, answer));
                Ok(end)
            }
            Err(error) => {
                self.messages.truncate(before);
                Err(error)
            }
        }
    }

    async fn generate(&self, text: &str) -> anyhow::Result<(String, End)> {
        let request = ValidRequest::new(self.model.clone(), self.prompt(text), &self.options)?;
        let mut generation = serving::submit(request)?;
        let mut answer = String::new();
        loop {
            let output = tokio::select! {
                output = generation.next() => output,
                _ = tokio::signal::ctrl_c() => {
                    show("\n")?;
                    return Ok((answer, End::Interrupted));
                }
            };
            match output {
                Some(Ok(Output::Piece(Piece::Text(piece)))) => {
                    show(&piece.text)?;
                    answer += &piece.text;
                }
                // Reasoning is shown, but it is not part of the conversation.
                Some(Ok(Output::Piece(Piece::Reasoning(text)))) => show(&text)?,
                Some(Ok(Output::Piece(_))) => {}
                Some(Err(failure)) => return Err(failure.into()),
                Some(Ok(Output::End(_))) | None => {
                    show("\n")?;
                    return Ok((answer, End::Complete));
                }
            }
        }
    }

    /// A base model continues the text, without a conversation.
    fn prompt(&self, text: &str) -> Prompt {
        if self.model.only_continues || self.model.template.is_none() {
            return Prompt::Text(text.into());
        }
        Prompt::Chat(Conversation { messages: self.messages.clone(), ..Conversation::default() })
    }
}

fn options(args: &Args) -> Options {
    let seed = args.seed.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0);
    let sampling = SamplingParams { temperature: TEMPERATURE, seed, ..SamplingParams::default() };
    let chosen = Some(SamplingChoice { temperature: args.temperature, ..SamplingChoice::default() });
    Options { chosen, ..Options::new(sampling, args.max_tokens.map_or(Budget::Rest, Budget::Explicit)) }
}

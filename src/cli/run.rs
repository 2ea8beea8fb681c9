//! `penstock run`: a model in this process, without a server.

use std::io::{IsTerminal, Read, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use rustyline::error::ReadlineError;
use serde_json::{Map, Value, json};

use super::serve::parse_backend;
use crate::config::{Backend, Config, Overrides};
use crate::registry::{LoadedModel, Registry};
use crate::serving::{self, Budget, Options, Output, Prompt, SamplingParams, ValidRequest};
use crate::telemetry;
use crate::template::RenderInput;

const EXAMPLES: &str = "Examples:
  penstock run smollm2:135m                           chat; /help lists the commands
  penstock run smollm2:135m 'Name three rivers.'      one answer
  penstock run ./some.gguf --temperature 0 < question.txt";

const HELP: &str = "/clear  forget the conversation\n/help   this list\n/bye    leave (also Ctrl-D); Ctrl-C stops an answer";

#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// An id of the catalogue or the path of a GGUF file
    model: String,
    /// One prompt; without it (and with a terminal) a chat begins
    prompt: Option<String>,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// 0 always takes the likeliest token
    #[arg(long, default_value_t = 0.7, value_parser = parse_temperature)]
    temperature: f32,
    /// At most this many tokens an answer; absent: up to the end of the context
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// The same seed gives the same answers
    #[arg(long)]
    seed: Option<u64>,
    /// Where to compute: auto, cpu or cuda
    #[arg(long, value_parser = parse_backend)]
    backend: Option<Backend>,
    /// Index of the GPU
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    /// CPU threads; 0: one a physical core
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// The longest context, in tokens
    #[arg(long, value_name = "TOKENS")]
    context: Option<usize>,
}

fn parse_temperature(text: &str) -> Result<f32, String> {
    text.parse().ok().filter(|value| (0.0..=2.0).contains(value)).ok_or_else(|| "must be a number from 0 to 2".into())
}

pub fn run(args: Args, config: Option<&Path>) -> anyhow::Result<()> {
    let overrides = Overrides {
        models: vec![args.model.clone()],
        backend: args.backend,
        threads: args.threads,
        device: args.device,
        context: args.context,
        ..Overrides::default()
    };
    let config = Config::load(config, &overrides)?;
    telemetry::init("warn")?;
    let registry = Registry::new(&config, std::slice::from_ref(&args.model))?;
    registry.load_eager()?;
    // A file is served under a name of its own.
    let id = registry.list().into_iter().next().context("no model is served")?.id;
    let model = registry.get(&id)?;
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

/// The prompt given, or what is piped in; None: there is a terminal to chat on.
fn prompt(args: &Args) -> anyhow::Result<Option<String>> {
    if args.prompt.is_some() || std::io::stdin().is_terminal() {
        return Ok(args.prompt.clone());
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("the prompt on stdin could not be read")?;
    if text.trim().is_empty() {
        bail!("the prompt on stdin is empty");
    }
    // The end of the last line is the shell's, not the prompt's.
    let text = text.strip_suffix('\n').map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));
    Ok(Some(text.into()))
}

fn repl(chat: &mut Chat, runtime: &tokio::runtime::Runtime) -> anyhow::Result<()> {
    let mut editor = rustyline::DefaultEditor::new().context("the terminal cannot be used")?;
    eprintln!("{}: type a message, or /help", chat.model.id);
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
        // The history is a comfort: a line that it does not take is no error.
        let _ = editor.add_history_entry(text);
        match text {
            "/bye" => return Ok(()),
            "/clear" => chat.clear(),
            "/help" => eprintln!("{HELP}"),
            command if command.starts_with('/') => eprintln!("{command} is no command: /help lists them"),
            text => {
                if let Err(error) = runtime.block_on(chat.answer(text)) {
                    eprintln!("{error:#} (/clear forgets the conversation)");
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
    model: Arc<LoadedModel>,
    system: Option<String>,
    options: Options,
    messages: Vec<Value>,
}

impl Chat {
    fn new(model: Arc<LoadedModel>, args: &Args) -> Self {
        let mut chat = Self { model, system: args.system.clone(), options: options(args), messages: Vec::new() };
        chat.clear();
        chat
    }

    fn clear(&mut self) {
        self.messages = self.system.iter().map(|text| json!({"role": "system", "content": text})).collect();
    }

    /// Streams the answer to stdout. An answer that failed leaves the conversation as it was; one that was stopped stays in it.
    async fn answer(&mut self, text: &str) -> anyhow::Result<End> {
        let before = self.messages.len();
        self.messages.push(json!({"role": "user", "content": text}));
        let result = self.generate(text).await;
        match result {
            Ok((answer, end)) => {
                self.messages.push(json!({"role": "assistant", "content": answer}));
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
                Some(Output::Text(piece)) => {
                    show(&piece.text)?;
                    answer += &piece.text;
                }
                // Shown, but no part of the conversation.
                Some(Output::Reasoning(text)) => show(&text)?,
                Some(Output::Prompt(_) | Output::Call(..) | Output::Arguments(..) | Output::Repeated(..)) => {}
                Some(Output::Failed(message) | Output::Unfollowable(_, message)) => bail!(message),
                Some(Output::Finished(..)) | None => {
                    show("\n")?;
                    return Ok((answer, End::Complete));
                }
            }
        }
    }

    /// A model without a chat template continues the text; it has no conversation.
    fn prompt(&self, text: &str) -> Prompt {
        if self.model.template.is_none() {
            return Prompt::Text(text.into());
        }
        let messages = Value::Array(self.messages.clone());
        Prompt::Chat(RenderInput { messages, tools: None, add_generation_prompt: true, kwargs: Map::new() })
    }
}

fn options(args: &Args) -> Options {
    Options {
        sampling: SamplingParams {
            temperature: args.temperature,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            seed: args.seed.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0),
            min_tokens: 0,
            suppressed: Vec::new(),
        },
        budget: args.max_tokens.map_or(Budget::Rest, Budget::Explicit),
        stop: Vec::new(),
        stop_token_ids: Vec::new(),
        ignore_eos: false,
        structure: None,
        tools: None,
        effort: None,
        continue_final: false,
        logprobs: None,
        echo: false,
        tenant: 0,
    }
}

fn show(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

//! `penstock render`: the prompt that a chat template produces.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use outside::{open_regular, read_text};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::names::file_of;
use super::output::print_exact;
use crate::gguf::GgufFile;
use crate::template::{ChatTemplate, Clock, RenderInput};
use crate::tokenizer::Tokenizer;

/// Renders a conversation with a chat template and writes exactly the resulting prompt.
#[derive(clap::Args, Debug)]
pub struct RenderArgs {
    /// A model on disk, a GGUF file, or a Jinja template
    #[arg(value_name = "MODEL|FILE.gguf|TEMPLATE.jinja")]
    model: String,
    /// JSON: {"messages", "tools"?, "add_generation_prompt"? (true), "bos_token"?, "eos_token"?, "chat_template_kwargs"?}
    #[arg(long, value_name = "FILE.json")]
    input: PathBuf,
    /// The date for the template's strftime_now [default: now, in UTC]
    #[arg(long, value_name = "YYYY-MM-DD")]
    date: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    #[serde(default = "yes")]
    add_generation_prompt: bool,
    bos_token: Option<String>,
    eos_token: Option<String>,
    #[serde(default)]
    chat_template_kwargs: Map<String, Value>,
}

fn yes() -> bool {
    true
}

/// Far above any real template [bytes].
const MAX_TEMPLATE: u64 = 16 << 20;

/// A template's source, with the texts of the special tokens that it may use.
struct Source {
    template: String,
    bos: String,
    eos: String,
}

pub fn run(args: RenderArgs, config: Option<&Path>) -> anyhow::Result<()> {
    let clock = match args.date.as_deref() {
        None => Clock::System,
        Some(date) => Clock::from_date(date).with_context(|| format!("--date: `{date}` is not a date (YYYY-MM-DD)"))?,
    };
    let shown = args.input.display();
    let json = std::fs::read_to_string(&args.input).with_context(|| format!("cannot read {shown}"))?;
    let input: Input = serde_json::from_str(&json).with_context(|| shown.to_string())?;
    let file = file_of(config, &args.model)?;
    let source = read_source(&file).with_context(|| file.display().to_string())?;
    let bos = input.bos_token.unwrap_or(source.bos);
    let eos = input.eos_token.unwrap_or(source.eos);
    let template = ChatTemplate::with_clock(&source.template, &bos, &eos, clock)?;
    let prompt = template.render(&RenderInput {
        messages: Value::Array(input.messages),
        tools: input.tools.map(Value::Array),
        add_generation_prompt: input.add_generation_prompt,
        kwargs: input.chat_template_kwargs,
    })?;
    print_exact(&prompt)
}

fn read_source(path: &Path) -> anyhow::Result<Source> {
    if !is_gguf(path)? {
        return Ok(Source { template: read_text(path, MAX_TEMPLATE)?, bos: String::new(), eos: String::new() });
    }
    let file = GgufFile::open(path)?;
    let Some(template) = file.get_str("tokenizer.chat_template") else {
        bail!("the model has no chat template (tokenizer.chat_template)");
    };
    let tokenizer = Tokenizer::open(&file)?;
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or_default().to_string();
    Ok(Source { template: template.to_string(), bos: text(tokenizer.bos()), eos: text(tokenizer.eos()) })
}

fn is_gguf(path: &Path) -> anyhow::Result<bool> {
    let mut magic = Vec::new();
    open_regular(path)?.take(4).read_to_end(&mut magic)?;
    Ok(magic == *b"GGUF")
}

//! `penstock tokenize`: turns text into token ids.

use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::json;

use super::names::file_of;
use super::output::print;
use crate::gguf::GgufFile;
use crate::tokenizer::Tokenizer;

/// Reads text (UTF-8) from stdin, writes a JSON array of token ids to stdout.
#[derive(clap::Args, Debug)]
pub struct TokenizeArgs {
    /// A model on disk, a GGUF file (a vocabulary without weights is enough), or a Hugging Face tokenizer.json
    #[arg(value_name = "MODEL|FILE.gguf|FILE.json")]
    model: String,
    /// Turn the texts of control tokens (such as <|im_end|>) into these tokens, not into plain text
    #[arg(long)]
    special: bool,
    /// Measure instead: encode the text repeatedly for this many seconds and print the best time as JSON
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    time: Option<u64>,
}

pub fn run(args: TokenizeArgs, config: Option<&Path>) -> anyhow::Result<()> {
    let file = file_of(config, &args.model)?;
    let is_json = file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    let opened = if is_json { Tokenizer::from_json(&file) } else { Tokenizer::open(&GgufFile::open(&file)?) };
    let tokenizer = opened.with_context(|| file.display().to_string())?;
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).context("cannot read stdin")?;
    let text = String::from_utf8(bytes).map_err(|e| anyhow::anyhow!("stdin is not UTF-8 at byte {}", e.utf8_error().valid_up_to()))?;
    if let Some(seconds) = args.time {
        return print(&timed(&tokenizer, &text, args.special, Duration::from_secs(seconds)));
    }
    let mut line = serde_json::to_string(&tokenizer.encode_with_bos_eos(&text, args.special))?;
    line.push('\n');
    print(&line)
}

fn timed(tokenizer: &Tokenizer, text: &str, special: bool, total: Duration) -> String {
    let (start, mut best, mut tokens) = (Instant::now(), Duration::MAX, 0);
    while start.elapsed() < total {
        let one = Instant::now();
        tokens = tokenizer.encode(text, special).len();
        best = best.min(one.elapsed());
    }
    let rate = text.len() as f64 / best.as_secs_f64().max(1e-9) / 1e6;
    let report = json!({ "bytes": text.len(), "tokens": tokens, "seconds": best.as_secs_f64(), "megabytes_per_second": rate });
    format!("{report}\n")
}

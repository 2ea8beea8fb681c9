//! `penstock tokenize`

use std::io::{ErrorKind, Read, Write};
use std::path::PathBuf;

use anyhow::Context;

use crate::gguf::GgufFile;
use crate::tokenizer::Tokenizer;

/// Reads text (UTF-8) from stdin, writes a JSON array of token ids to stdout.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A GGUF file; one that holds a vocabulary alone will do
    #[arg(value_name = "FILE.gguf")]
    file: PathBuf,
    /// Take control tokens' texts (such as <|im_end|>) as those tokens, not as plain text
    #[arg(long)]
    special: bool,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let tokenizer = Tokenizer::from_gguf(&GgufFile::open(&args.file)?).with_context(|| args.file.display().to_string())?;
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).context("cannot read stdin")?;
    let text = String::from_utf8(bytes).map_err(|e| anyhow::anyhow!("stdin is not UTF-8 at byte {}", e.utf8_error().valid_up_to()))?;
    let mut line = serde_json::to_string(&tokenizer.encode_with_bos_eos(&text, args.special))?;
    line.push('\n');
    write_stdout(&line)
}

/// Writes to stdout; a reader that went away ends the output, it is no error.
pub(super) fn write_stdout(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to stdout"),
    }
}

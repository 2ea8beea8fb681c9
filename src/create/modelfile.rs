//! Parses Modelfiles: one instruction per line, with longer texts between triple quotes.

use std::path::{Path, PathBuf};

use catalogue::PEFT_FILES;
use config::{ExampleMessage, ExampleRole, without_effect};

use super::recipe::{AdapterOrigin, Changes, Origin, Recipe, TemplateText, catalogue_name};

/// The longest Modelfile [bytes].
pub const MAX_MODELFILE: u64 = 4 << 20;
/// The instructions that are understood, with what the error for an unknown one names.
const KNOWN: &str = "FROM, PARAMETER, SYSTEM, TEMPLATE, MESSAGE, LICENSE or ADAPTER";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ModelfileError {
    /// The line, from 1.
    pub line: usize,
    pub what: String,
}

/// An instruction with its argument: a name in capitals, and the text without its quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    pub line: usize,
    pub name: String,
    /// The parameter of PARAMETER, or the role of MESSAGE.
    pub key: String,
    pub text: String,
}

/// A parsed Modelfile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Modelfile {
    pub instructions: Vec<Instruction>,
}

type Outcome<T> = Result<T, ModelfileError>;

fn fault<T>(line: usize, what: impl Into<String>) -> Outcome<T> {
    Err(ModelfileError { line, what: what.into() })
}

impl Modelfile {
    /// # Errors
    /// An instruction is unknown or has no argument, or quotes do not end.
    pub fn parse(text: &str) -> Outcome<Self> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
        let mut instructions = Vec::new();
        while let Some((line, text)) = lines.next() {
            let text = text.trim_start();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let (word, rest) = split(text);
            let name = word.to_ascii_uppercase();
            let takes_key = matches!(name.as_str(), "PARAMETER" | "MESSAGE");
            if !takes_key
                && !matches!(name.as_str(), "FROM" | "SYSTEM" | "TEMPLATE" | "LICENSE" | "ADAPTER" | "RENDERER" | "PARSER" | "REQUIRES")
            {
                let word: String = word.chars().take(40).collect();
                return fault(line, format!("unknown instruction `{}`: expected {KNOWN}", word.escape_debug()));
            }
            let (key, rest) = if takes_key { split(rest) } else { ("", rest) };
            if rest.trim_end().is_empty() {
                return fault(line, format!("{name} needs {}", if takes_key { "a name and a value" } else { "an argument" }));
            }
            let text = value(rest, line, &mut lines)?;
            instructions.push(Instruction { line, name, key: key.to_owned(), text });
        }
        Ok(Self { instructions })
    }

    /// Reads the recipe. Relative paths are resolved against `folder`. Also returns notes on instructions without an effect.
    ///
    /// # Errors
    /// FROM is missing or occurs twice, an instruction is not supported, or an argument is wrong.
    pub fn recipe(&self, folder: &Path) -> Outcome<(Recipe, Vec<String>)> {
        let (mut origin, mut adapter, mut changes, mut notes) = (None, None, Changes::default(), Vec::new());
        for Instruction { line, name, key, text } in &self.instructions {
            let line = *line;
            match name.as_str() {
                "FROM" => {
                    if let Some((first, _)) = &origin {
                        return fault(line, format!("FROM stands in line {first} already: one model is made from one"));
                    }
                    origin = Some((line, from(text, line, folder)?));
                }
                "PARAMETER" => {
                    let set = changes.set_parameter(key, &text.as_str().into());
                    set.or_else(|what| fault(line, format!("PARAMETER: {what}")))?;
                    if let Some(reason) = without_effect(key) {
                        notes.push(format!("line {line}: the parameter {key} changes nothing: {reason}"));
                    }
                }
                "SYSTEM" => changes.system = Some(text.clone()),
                "TEMPLATE" => changes.template = Some(TemplateText::new(text).or_else(|what| fault(line, format!("TEMPLATE: {what}")))?),
                "MESSAGE" => {
                    let Some(role) = ExampleRole::by_name(&key.to_ascii_lowercase()) else {
                        let key: String = key.chars().take(40).collect();
                        return fault(line, format!("MESSAGE: the role must be system, user or assistant, not `{}`", key.escape_debug()));
                    };
                    changes.messages.get_or_insert_default().push(ExampleMessage { role, content: text.clone() });
                }
                "LICENSE" => changes.licences.get_or_insert_default().push(text.clone()),
                "ADAPTER" if adapter.is_some() => return fault(line, "ADAPTER: a model has one adapter, and another line names one"),
                "ADAPTER" => {
                    let path = local_path(text, folder).or_else(|what| fault(line, format!("ADAPTER: {what}")))?;
                    let fits = check_adapter(&path).or_else(|what| fault(line, format!("ADAPTER {text}: {what}")));
                    adapter = fits.map(|()| Some(AdapterOrigin::Path(path)))?;
                }
                _ => notes.push(format!("line {line}: {name} changes nothing: the chat template says how prompts and answers are written")),
            }
        }
        match origin {
            Some((_, origin)) => Ok((Recipe { origin, adapter, changes, quantize: None }, notes)),
            None => fault(
                self.instructions.last().map_or(1, |last| last.line),
                "the file has no FROM, which names the model or file to start from",
            ),
        }
    }
}

/// Splits a text at the first white space.
fn split(text: &str) -> (&str, &str) {
    text.split_once(char::is_whitespace).map_or((text, ""), |(first, rest)| (first, rest.trim_start()))
}

/// Reads a value: up to the end of the line, or, if it begins with quotes, up to a line that ends with them.
fn value<'a>(first: &str, line: usize, lines: &mut impl Iterator<Item = (usize, &'a str)>) -> Outcome<String> {
    let quotes = ["\"\"\"", "\""].into_iter().find(|quotes| first.starts_with(quotes));
    let Some(quotes) = quotes else { return Ok(first.trim_end().to_owned()) };
    let mut text = first.to_owned();
    loop {
        let whole = text.trim_end();
        if whole.len() >= 2 * quotes.len() && whole.ends_with(quotes) {
            return Ok(whole[quotes.len()..whole.len() - quotes.len()].to_owned());
        }
        let Some((_, next)) = lines.next() else { return fault(line, format!("the text in {quotes} that begins here does not end")) };
        text.push('\n');
        text.push_str(next);
    }
}

/// Reads the argument of FROM: a path if it looks like one, or else the name of a model.
fn from(text: &str, line: usize, folder: &Path) -> Outcome<Origin> {
    if text.contains('\0') || text.contains('\n') {
        return fault(line, "FROM: expected the name of a model or the path of a GGUF file");
    }
    let is_path = text.starts_with(['.', '/', '~']) || text.to_ascii_lowercase().ends_with(".gguf") && !text.starts_with("hf:");
    if !is_path {
        return Ok(Origin::Model(catalogue_name(text)));
    }
    let path = local_path(text, folder).or_else(|what| fault(line, format!("FROM: {what}")))?;
    Ok(Origin::File(checked(path).or_else(|what| fault(line, format!("FROM {text}: {what}")))?))
}

/// A path as a Modelfile in `folder` writes it.
fn local_path(text: &str, folder: &Path) -> Result<PathBuf, String> {
    if text.contains('\0') || text.contains('\n') {
        return Err("expected a path".to_owned());
    }
    match text.strip_prefix("~/") {
        Some(rest) => Ok(std::env::home_dir().ok_or("`~` is not known, since no home directory is set")?.join(rest)),
        None => Ok(folder.join(text)),
    }
}

/// Checks that a path leads to an adapter's file or folder.
fn check_adapter(path: &Path) -> Result<(), String> {
    if path.is_dir() {
        return match PEFT_FILES.iter().find(|name| !path.join(name).is_file()) {
            Some(missing) => Err(format!("the folder has no `{missing}`: name a GGUF file, or a folder as PEFT writes it")),
            None => Ok(()),
        };
    }
    if path.extension().is_some_and(|end| end == "safetensors") {
        return Err("name the folder with `adapter_config.json` in place of the file".to_owned());
    }
    match outside::check_regular(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err("no such file or folder".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Checks that a path leads to a file that may hold a model.
fn checked(path: PathBuf) -> Result<PathBuf, String> {
    if path.is_dir() {
        let has = |end: &str| {
            std::fs::read_dir(&path).is_ok_and(|dir| dir.flatten().any(|entry| entry.path().extension().is_some_and(|found| found == end)))
        };
        return Err(match has("safetensors") {
            true => "it is a checkpoint in safetensors: convert it with `penstock convert` first".to_owned(),
            false => "it is a directory: name a GGUF file".to_owned(),
        });
    }
    if path.extension().is_some_and(|end| end == "safetensors") {
        return Err("it is a checkpoint in safetensors: convert it with `penstock convert` first".to_owned());
    }
    match outside::check_regular(&path) {
        Ok(_) => Ok(path),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err("no such file".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
#[path = "modelfile_tests.rs"]
mod tests;

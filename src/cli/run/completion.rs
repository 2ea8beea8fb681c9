//! Completes commands, settings, models and paths with the Tab key.

use std::sync::Arc;

use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::Validator;
use rustyline::{Context, Helper, Result};

use super::command::{NAMES, SHOWN};
use super::settings::{THINKING, names};
use crate::registry::Registry;

/// The completions of a word.
#[derive(Debug, PartialEq)]
enum Candidates {
    Words(Vec<String>),
    Paths,
    Models,
    Nothing,
}

/// The editor's helper.
pub struct Completion {
    registry: Arc<Registry>,
    paths: FilenameCompleter,
}

impl Completion {
    pub fn new(registry: Arc<Registry>) -> Self {
        Self { registry, paths: FilenameCompleter::new() }
    }
}

impl Completer for Completion {
    type Candidate = Pair;

    fn complete(&self, line: &str, pos: usize, _: &Context<'_>) -> Result<(usize, Vec<Pair>)> {
        let start = line[..pos].rfind(char::is_whitespace).map_or(0, |at| at + line[at..].chars().next().map_or(1, char::len_utf8));
        let word = &line[start..pos];
        let words = match candidates(&line[..pos]) {
            Candidates::Paths => return self.paths.complete_path(line, pos),
            Candidates::Models => self.registry.list().into_iter().map(|info| info.id).collect(),
            Candidates::Words(words) => words,
            Candidates::Nothing => Vec::new(),
        };
        let fitting = words.into_iter().filter(|one| one.starts_with(word));
        Ok((start, fitting.map(|one| Pair { display: one.clone(), replacement: one + " " }).collect()))
    }
}

/// The completions of the last word of the line, which ends at the cursor.
fn candidates(line: &str) -> Candidates {
    let is_new = line.ends_with(char::is_whitespace);
    let mut words: Vec<&str> = line.split_whitespace().collect();
    let last = if is_new { "" } else { words.pop().unwrap_or_default() };
    let of = |words: &[&str]| Candidates::Words(words.iter().map(|word| (*word).to_owned()).collect());
    match words[..] {
        [] if last.starts_with('/') && !last[1..].contains('/') => of(&NAMES),
        ["/set"] | ["/set", "parameter"] => Candidates::Words(names().map(str::to_owned).collect()),
        ["/set", "think"] => of(&THINKING),
        ["/set", "verbose" | "wordwrap" | "history" | "plain"] => of(&["on", "off"]),
        ["/show"] => of(&SHOWN),
        ["/model"] => Candidates::Models,
        ["/save" | "/load"] | ["/image", ..] => Candidates::Paths,
        // A message may name a file.
        _ if ["/", "./", "../", "~/"].iter().any(|begin| last.starts_with(begin)) => Candidates::Paths,
        _ => Candidates::Nothing,
    }
}

impl Helper for Completion {}

impl Hinter for Completion {
    type Hint = String;
}

impl Highlighter for Completion {}

impl Validator for Completion {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_completed_to_what_its_place_takes() {
        let has = |line: &str, word: &str| matches!(candidates(line), Candidates::Words(words) if words.iter().any(|one| one == word));
        assert!(has("/s", "/set") && has("/", "/load") && has("/set tem", "temperature") && has("/set ", "top_p"));
        assert!(has("/set think ", "off") && has("/set plain ", "on") && has("/show m", "model"));
        assert_eq!(candidates("/model smol"), Candidates::Models);
        for line in ["/load ", "/save ~/x", "/image ca", "/image a.png ", "what is in ./no", "see /etc/ho", "/usr/sha"] {
            assert_eq!(candidates(line), Candidates::Paths, "{line}");
        }
        for line in ["hello", "", "/clear x", "/set seed 1", "hello /se"] {
            assert!(matches!(candidates(line), Candidates::Nothing | Candidates::Paths), "{line}");
        }
    }
}

//! Checks that files and texts from outside the process go through the room `outside`: it opens and writes the paths that others name, and
//! makes the output of commands safe.

use proc_macro2::{Delimiter, TokenTree};

use super::{all_rust, check};
use crate::source::Source;
use crate::syntax::{flat, line_of, tokens_without_tests};

/// Where a file is opened or written in another way, and why it may be.
const FILES: &[&str] = &[
    // the border itself
    "src/outside/",
    // in folders of its own, below names of its own
    "src/api/openai/",
    "src/tiers/",
    "src/catalogue/store.rs",
    "src/catalogue/download/own_file.rs",
    // what the system tells of the machine and of the process
    "src/api/http/server.rs",
    "src/cli/doctor/machine.rs",
    "src/engine/cpu/device.rs",
    "src/engine/cpu/engine.rs",
    "src/grammar/trial_child.rs",
    "src/metrics/process.rs",
    // texts that a user gives to a command, by a FIFO too
    "src/cli/eval.rs",
    "src/cli/logits.rs",
    "src/cli/render.rs",
    // /dev/null
    "src/cli/supervise.rs",
    // a folder, for its lock
    "src/keys/file.rs",
    // a temporary file
    "src/convert/output_header.rs",
    // tests
    "src/gguf/writer.rs",
    "src/serving/faults.rs",
];

/// Where stdout and stderr are written to, or asked whether they are terminals.
const STREAMS: &[&str] = &[
    "src/catalogue/download/progress.rs",
    "src/cli/colour.rs",
    "src/cli/output.rs",
    "src/cli/run/screen.rs",
    "src/engine/cuda/load.rs",
    "src/grammar/trial_child.rs",
    "src/telemetry/",
];

/// The code of a file without its tests, comments, texts and spaces, and the line of each token by its offset.
struct Compact {
    code: String,
    lines: Vec<(usize, usize)>,
}

impl Compact {
    fn of(file: &Source) -> Self {
        let (mut code, mut lines) = (String::new(), Vec::new());
        for token in flat(tokens_without_tests(file)) {
            lines.push((code.len(), line_of(&token)));
            match &token {
                TokenTree::Group(group) => code.push(match group.delimiter() {
                    Delimiter::Parenthesis => '(',
                    Delimiter::Brace => '{',
                    Delimiter::Bracket => '[',
                    Delimiter::None => ' ',
                }),
                TokenTree::Ident(word) if code.ends_with(char::is_alphanumeric) => code.push_str(&format!(" {word}")),
                TokenTree::Ident(word) => code.push_str(&word.to_string()),
                TokenTree::Punct(mark) => code.push(mark.as_char()),
                TokenTree::Literal(_) => code.push('"'),
            }
        }
        Self { code, lines }
    }

    fn line(&self, at: usize) -> usize {
        self.lines[self.lines.partition_point(|(offset, _)| *offset <= at) - 1].1
    }
}

/// The code of the program.
fn code() -> impl Iterator<Item = (&'static Source, Compact)> {
    let is_program =
        |file: &&Source| file.path.starts_with("src/") && !file.path.ends_with("tests.rs") && !file.path.ends_with("testing.rs");
    all_rust().into_iter().filter(is_program).map(|file| (file, Compact::of(file)))
}

/// Fails where `calls` are made outside of `allowed`, and for a place of `allowed` without any.
fn only_in(rule: &str, calls: &[&str], allowed: &[&str]) {
    let (mut broken, mut used) = (Vec::new(), vec![false; allowed.len()]);
    for (file, code) in code() {
        let begins = |at: &usize| !code.code[..*at].ends_with(|c: char| c.is_alphanumeric());
        for call in calls {
            for at in code.code.match_indices(call).map(|(at, _)| at).filter(begins) {
                match allowed.iter().position(|place| file.path.starts_with(place)) {
                    Some(place) => used[place] = true,
                    None => broken.push(format!("{}:{}: `{call}`", file.path, code.line(at))),
                }
            }
        }
    }
    let gone = allowed.iter().zip(used).filter(|(_, used)| !used);
    broken.extend(gone.map(|(place, _)| format!("tests/it/tidy/outside.rs:1: {place} makes none of these calls any more: remove it")));
    check(rule, broken);
}

#[test]
fn files_are_opened_and_written_by_the_border() {
    let calls = ["File::open", "File::create", "OpenOptions", "fs::read(", "fs::read_to_string(", "fs::write(", "fs::copy("];
    only_in("files are opened by `outside::open_regular` and written by `outside::Output`", &calls, FILES);
}

#[test]
fn commands_print_by_one_file() {
    let calls = ["println!", "eprintln!", "print!", "eprint!", "io::stdout(", "io::stderr("];
    only_in("text is printed by cli/output.rs", &calls, STREAMS);
}

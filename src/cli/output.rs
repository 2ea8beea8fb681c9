//! Output of commands: text and JSON on stdout, notes on stderr, tables, sizes. No other file of a command writes to either, and what
//! others wrote (models, files, servers, hubs) is made safe here: `outside::visible`. Two things go out as they are if no terminal shows
//! them: what a model answers, and a prompt that a template gives.

use std::borrow::Cow;
use std::io::{self, ErrorKind, IsTerminal, Write};

use anyhow::Context;
use outside::{in_json, in_line, is_unsafe, visible};
use serde::Serialize;

use super::colour::{Colour, Colours};
use crate::quantize::{FILE_TYPES, FileType};

/// The longest cell of a table [characters].
const MAX_CELL: usize = 1000;

/// Writes to stdout. A closed pipe is no error. What others wrote in the text cannot control a terminal.
pub fn print(text: &str) -> anyhow::Result<()> {
    unless_gone(put(&visible(text)))
}

/// Writes a value as JSON to stdout, in which the texts of others are escaped. It is no error if the reader has gone.
pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    unless_gone(put(&in_json(&text)))
}

/// Writes to stdout what a program may read byte by byte, such as a prompt. It is no error if the reader has gone.
pub fn print_exact(text: &str) -> anyhow::Result<()> {
    unless_gone(show(text))
}

fn unless_gone(shown: io::Result<()>) -> anyhow::Result<()> {
    match shown {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to stdout"),
    }
}

/// Writes to stdout. A closed pipe is an error. A terminal gets safe text, anything else gets exactly `text`.
pub fn show(text: &str) -> io::Result<()> {
    if io::stdout().is_terminal() { put(&for_terminal(text)) } else { put(text) }
}

/// Writes text of our own, or text that was made safe.
pub fn put(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Writes a line to stderr. What others wrote in the text cannot control a terminal.
pub fn say(text: &str) {
    // Nothing can be done if nobody reads it.
    let _ = writeln!(io::stderr(), "{}", visible(text));
}

/// As [`say`], in a colour.
pub fn say_in(colour: Colour, text: &str) {
    let _ = writeln!(io::stderr(), "{}", Colours::of_stderr().paint(colour, &visible(text)));
}

/// Width of the terminal that shows stderr [columns]. 0 if there is none.
pub fn width_of_stderr() -> usize {
    let size = io::stderr().is_terminal().then(|| console::Term::stderr().size_checked()).flatten();
    size.map_or(0, |(_, columns)| columns.into())
}

/// The last line on a terminal, which says how far a command is. Elsewhere nothing is shown.
pub struct Status(bool);

impl Status {
    pub fn new() -> Self {
        Self(io::stderr().is_terminal())
    }

    pub fn show(&self, text: &str) {
        self.write(&in_line(text));
    }

    pub fn clear(&self) {
        self.write("");
    }

    fn write(&self, text: &str) {
        if self.0 {
            let _ = write!(io::stderr(), "\r\x1b[K{text}");
        }
    }
}

/// Makes the text of a model safe to print on a terminal: each unsafe character becomes U+FFFD, which is as wide as one character.
pub fn for_terminal(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    // A Windows line break is one line break.
    Cow::Owned(text.replace("\r\n", "\n").replace(is_unsafe, "\u{fffd}"))
}

/// Left-aligned columns, two spaces apart. What others wrote in a cell stays in it.
pub fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let cut = |cell: &String| match cell.char_indices().nth(MAX_CELL) {
        Some((end, _)) => format!("{}… ({} bytes)", in_line(&cell[..end]), cell.len()),
        None => in_line(cell).into_owned(),
    };
    let rows: Vec<[String; N]> = rows.iter().map(|row| row.each_ref().map(cut)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in &rows {
        let line: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Like [`columns`], but cells are not cut, and all columns except the first `left` are right-aligned.
pub fn right_columns(rows: &[Vec<String>], left: usize) -> String {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| in_line(cell).into_owned()).collect()).collect();
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, &width))| match i < left {
            true => format!("{cell:<width$}"),
            false => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ") + "\n"
    };
    rows.iter().map(line).collect()
}

/// Formats a number of bytes in binary units, as memory is counted.
pub fn human_bytes(bytes: u64) -> String {
    let (mut value, mut units) = (bytes as f64, ["B", "KiB", "MiB", "GiB", "TiB"].into_iter());
    let mut unit = units.next().unwrap_or_default();
    while value >= 1023.95 {
        let Some(larger) = units.next() else { break };
        (value, unit) = (value / 1024.0, larger);
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

/// Parses the name of a file type on the command line.
pub fn file_type(name: &str) -> Result<&'static FileType, String> {
    let names = || FILE_TYPES.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ");
    FileType::by_name(name).ok_or_else(|| format!("expected one of {}", names()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_for_a_terminal_keeps_its_lines_and_loses_what_controls_it() {
        let cases = [
            ("plain, é 漢 👩‍🔬 \u{200f}שלום\n\ttext", "plain, é 漢 👩‍🔬 \u{200f}שלום\n\ttext"),
            ("\u{1b}]0;title\u{7}\u{1b}[2J", "\u{fffd}]0;title\u{fffd}\u{fffd}[2J"),
            ("a\u{9b}31m\u{7f}\u{0}\u{8}", "a\u{fffd}31m\u{fffd}\u{fffd}\u{fffd}"),
            ("a\rb\r\nc", "a\u{fffd}b\nc"),
            ("\u{202e}txt.exe\u{2066}", "\u{fffd}txt.exe\u{fffd}"),
        ];
        for (text, safe) in cases {
            assert_eq!(for_terminal(text), safe);
        }
    }

    #[test]
    fn a_huge_cell_is_cut() {
        let text = columns(&[["name".to_owned(), "é".repeat(25_000_000)], ["a".repeat(100_000), "b".to_owned()]]);
        assert!(text.len() < 10_000 && text.contains("… (50000000 bytes)") && text.contains("… (100000 bytes)"), "{}", text.len());
    }

    #[test]
    fn sizes_use_the_largest_fitting_unit() {
        let read: Vec<_> = [0, 1023, 1024, 98_362_432, 1_073_741_000, 8 << 50].into_iter().map(human_bytes).collect();
        assert_eq!(read, ["0 B", "1023 B", "1.0 KiB", "93.8 MiB", "1.0 GiB", "8192.0 TiB"]);
    }
}

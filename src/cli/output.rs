//! Output of commands: text on stdout, tables, sizes. Text for a terminal is made safe to print.

use std::borrow::Cow;
use std::io::{self, ErrorKind, IsTerminal, Write};

use anyhow::Context;

use crate::quantize::{FILE_TYPES, FileType};

/// The longest cell of a table [characters].
const MAX_CELL: usize = 1000;

/// Writes to stdout. A closed pipe is no error.
pub fn print(text: &str) -> anyhow::Result<()> {
    match show(text) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to stdout"),
    }
}

/// Writes to stdout. A closed pipe is an error. A terminal gets safe text, anything else gets exactly `text`.
pub fn show(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let text = if stdout.is_terminal() { for_terminal(text) } else { Cow::Borrowed(text) };
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Makes foreign text (of models, files, hubs, clients) safe to print on a terminal. Line breaks and tabs stay. Other control characters,
/// and those that reorder the text around them, become U+FFFD. Such characters could rewrite the screen, the title and the clipboard, or
/// disguise the text.
pub fn for_terminal(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    // A Windows line break is one line break.
    Cow::Owned(text.replace("\r\n", "\n").replace(is_unsafe, "\u{fffd}"))
}

fn is_unsafe(c: char) -> bool {
    let reorders = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    reorders || c.is_control() && !matches!(c, '\n' | '\t')
}

/// Left-aligned columns, two spaces apart.
pub fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let cut = |cell: &String| match cell.char_indices().nth(MAX_CELL) {
        Some((end, _)) => format!("{}… ({} bytes)", &cell[..end], cell.len()),
        None => cell.clone(),
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

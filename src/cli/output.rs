//! What commands print: text on stdout, tables, sizes.

use std::io::{ErrorKind, Write};

use anyhow::Context;

/// Writes to stdout. It is no error if the reader has gone.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to stdout"),
    }
}

/// Left-aligned columns, two spaces apart.
pub fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let line: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A number of bytes in decimal units, as disks and hubs count them.
pub fn human_bytes(bytes: u64) -> String {
    let (mut value, mut units) = (bytes as f64, ["B", "kB", "MB", "GB", "TB"].into_iter());
    let mut unit = units.next().unwrap_or_default();
    while value >= 999.95 {
        let Some(larger) = units.next() else { break };
        (value, unit) = (value / 1000.0, larger);
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_use_the_largest_fitting_unit() {
        let read: Vec<_> = [0, 999, 1000, 98_362_432, 999_950_000, 8_000_000_000_000_000].into_iter().map(human_bytes).collect();
        assert_eq!(read, ["0 B", "999 B", "1.0 kB", "98.4 MB", "1.0 GB", "8000.0 TB"]);
    }
}

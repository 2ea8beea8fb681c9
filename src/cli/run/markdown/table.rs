//! Tables of Markdown: aligned columns if they fit into the terminal.

use unicode_width::UnicodeWidthStr;

use super::inline::{BOLD, DIM, rendered};

/// Whether a line separates a table's head from its rows.
pub fn is_separator(line: &str) -> bool {
    let cells = cells(line);
    let is_rule = |cell: &String| {
        let rule = cell.trim_matches(':');
        !rule.is_empty() && rule.bytes().all(|byte| byte == b'-')
    };
    !cells.is_empty() && cells.iter().all(is_rule)
}

/// The cells of a row. A vertical bar behind a backslash or inside code belongs to a cell.
fn cells(line: &str) -> Vec<String> {
    let line = line.trim();
    let line = line.strip_prefix('|').unwrap_or(line);
    let (mut cells, mut cell, mut in_code, mut before) = (Vec::new(), String::new(), false, ' ');
    for c in line.chars() {
        in_code ^= c == '`';
        match c {
            '|' if before == '\\' => {
                cell.pop();
                cell.push('|');
            }
            '|' if !in_code => cells.push(std::mem::take(&mut cell).trim().to_owned()),
            c => cell.push(c),
        }
        before = c;
    }
    // A bar at the end of the line closes the last cell.
    if !cell.trim().is_empty() {
        cells.push(cell.trim().to_owned());
    }
    cells
}

/// The width of a text on a terminal, without its codes [columns].
fn width_of(text: &str) -> usize {
    let mut plain = String::with_capacity(text.len());
    let mut in_code = false;
    for c in text.chars() {
        match c {
            '\x1b' => in_code = true,
            'm' if in_code => in_code = false,
            c if !in_code => plain.push(c),
            _ => {}
        }
    }
    plain.width()
}

/// Renders a table, one line per row. `rows[1]` is the separator. `width`: the terminal's [columns], 0 if it is not known.
pub fn table(rows: &[String], width: usize) -> Vec<String> {
    let rules = cells(&rows[1]);
    let of_row = |(i, row): (usize, &String)| cells(row).iter().map(|cell| rendered(cell, i == 0)).collect::<Vec<_>>();
    let shown: Vec<Vec<String>> = rows.iter().enumerate().filter(|(i, _)| *i != 1).map(of_row).collect();
    let count = shown.iter().map(Vec::len).max().unwrap_or(0);
    let width_at = |column: usize| shown.iter().filter_map(|row| row.get(column)).map(|cell| width_of(cell)).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width_at).collect();
    let total = widths.iter().sum::<usize>() + 3 * count.saturating_sub(1);
    let bar = format!(" {}│{} ", DIM.0, DIM.1);
    let bold = |i: usize, line: String| if i == 0 { format!("{}{line}{}", BOLD.0, BOLD.1) } else { line };
    if width > 0 && total > width {
        // Cells that are cut or wrapped would mix the words of several columns.
        return shown
            .iter()
            .enumerate()
            .map(|(i, row)| row.iter().map(|cell| bold(i, cell.clone())).collect::<Vec<_>>().join(&bar))
            .collect();
    }
    let line = |(i, row): (usize, &Vec<String>)| {
        let cells = widths.iter().enumerate().map(|(column, &width)| {
            let cell = row.get(column).map_or("", String::as_str);
            bold(i, padded(cell, width, rules.get(column).map_or("", String::as_str)))
        });
        cells.collect::<Vec<_>>().join(&bar).trim_end().to_owned()
    };
    let mut lines: Vec<String> = shown.iter().enumerate().map(line).collect();
    let rule = widths.iter().map(|&width| "─".repeat(width)).collect::<Vec<_>>().join("─┼─");
    lines.insert(1, format!("{}{rule}{}", DIM.0, DIM.1));
    lines
}

/// Pads a cell to a width, as the column's rule says.
fn padded(cell: &str, width: usize, rule: &str) -> String {
    let space = width.saturating_sub(width_of(cell));
    let left = match (rule.starts_with(':'), rule.ends_with(':')) {
        (true, true) => space / 2,
        (false, true) => space,
        _ => 0,
    };
    format!("{}{cell}{}", " ".repeat(left), " ".repeat(space - left))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        let mut shown = text.to_owned();
        for code in [DIM.0, DIM.1, BOLD.0, "\x1b[36m", "\x1b[39m"] {
            shown = shown.replace(code, "");
        }
        shown
    }

    #[test]
    fn columns_are_aligned() {
        let rows = ["| name | n |", "|:--|--:|", "| `a|b` | 1 |", "| long name | 1000 |", "| c"].map(str::to_owned);
        let lines: Vec<_> = table(&rows, 80).iter().map(|line| plain(line)).collect();
        assert_eq!(lines, ["name      │    n", "──────────┼─────", "a|b       │    1", "long name │ 1000", "c         │"]);
        let narrow: Vec<_> = table(&rows, 10).iter().map(|line| plain(line)).collect();
        assert_eq!(narrow, ["name │ n", "a|b │ 1", "long name │ 1000", "c"]);
    }

    #[test]
    fn separators_are_told_from_rows() {
        assert!(is_separator("|---|:-:|") && is_separator("| - | -: |"));
        assert!(!is_separator("| a | b |") && !is_separator("||") && !is_separator("| - | x |") && !is_separator("| : |"));
    }
}

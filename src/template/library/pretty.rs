//! Implements the filter `pprint`: Python's `pprint.pformat` in lines of 80 characters.

use super::call_args::CallArgs;
use crate::budget::{afford, afford_copies, step};
use crate::failure::Outcome;
use crate::value::{Value, key_order, repr, repr_sorted};

const WIDTH: usize = 80;

pub(super) fn pprint(value: &Value, args: CallArgs) -> Outcome<Value> {
    args.none("pprint")?;
    let mut printer = Printer { out: String::new() };
    printer.value(value, 0, 0, true)?;
    Value::text(printer.out)
}

struct Printer {
    out: String,
}

impl Printer {
    /// Writes a value that starts in column `indent`. `allowance` characters follow on its last line.
    fn value(&mut self, value: &Value, indent: usize, allowance: usize, is_top: bool) -> Outcome<()> {
        step()?;
        let text = repr_sorted(value)?;
        afford(Some((self.out.len() + text.len()) as u64))?;
        if text.chars().count() + indent + allowance <= WIDTH {
            self.out.push_str(&text);
            return Ok(());
        }
        match value {
            Value::Dict(dict) if !dict.is_empty() => {
                let mut pairs: Vec<(&Value, &Value)> = dict.iter().collect();
                pairs.sort_by(|(a, _), (b, _)| key_order(a, b));
                self.out.push('{');
                let last = pairs.len() - 1;
                for (at, (key, item)) in pairs.into_iter().enumerate() {
                    let key = repr(key)?;
                    self.out.push_str(&key);
                    self.out.push_str(": ");
                    let inner = indent + 1 + key.chars().count() + 2;
                    self.value(item, inner, if at == last { allowance + 1 } else { 1 }, false)?;
                    self.next_line(at == last, indent + 1);
                }
                self.out.push('}');
            }
            Value::List(items) if !items.items.is_empty() => self.items(&items.items, ["[", "]"], indent, allowance)?,
            Value::Tuple(items) if !items.items.is_empty() => {
                let end = if items.items.len() == 1 { ",)" } else { ")" };
                self.items(&items.items, ["(", end], indent, allowance)?;
            }
            Value::Text(own) if !own.text.is_empty() && !own.safe => self.text(&own.text, indent, allowance, is_top)?,
            _ => self.out.push_str(&text),
        }
        Ok(())
    }

    fn next_line(&mut self, is_last: bool, indent: usize) {
        if !is_last {
            self.out.push_str(",\n");
            self.out.push_str(&" ".repeat(indent));
        }
    }

    fn items(&mut self, items: &[Value], brackets: [&str; 2], indent: usize, allowance: usize) -> Outcome<()> {
        self.out.push_str(brackets[0]);
        let last = items.len() - 1;
        for (at, item) in items.iter().enumerate() {
            self.value(item, indent + 1, if at == last { allowance + brackets[1].len() } else { 1 }, false)?;
            self.next_line(at == last, indent + 1);
        }
        self.out.push_str(brackets[1]);
        Ok(())
    }

    /// Writes a string as several literals, one per line.
    fn text(&mut self, text: &str, indent: usize, allowance: usize, is_top: bool) -> Outcome<()> {
        let (indent, allowance) = (indent + usize::from(is_top), allowance + usize::from(is_top));
        let most = WIDTH.saturating_sub(indent);
        let written = |text: &str| repr(&Value::text(text)?);
        let mut chunks = Vec::new();
        let lines = super::splitting::lines(text, true)?;
        for (at, line) in lines.iter().enumerate() {
            let is_last = at + 1 == lines.len();
            let whole = written(line)?;
            if whole.chars().count() <= most.saturating_sub(if is_last { allowance } else { 0 }) {
                chunks.push(whole);
                continue;
            }
            let parts = words(line);
            let mut current = String::new();
            for (word, part) in parts.iter().enumerate() {
                let candidate = format!("{current}{part}");
                let room = most.saturating_sub(if is_last && word + 1 == parts.len() { allowance } else { 0 });
                if written(&candidate)?.chars().count() > room {
                    if !current.is_empty() {
                        chunks.push(written(&current)?);
                    }
                    current = (*part).to_owned();
                } else {
                    current = candidate;
                }
            }
            if !current.is_empty() {
                chunks.push(written(&current)?);
            }
        }
        let bracketed = is_top && chunks.len() > 1;
        afford_copies(chunks.len(), indent + 1, self.out.len() + text.len())?;
        let joined = chunks.join(&format!("\n{}", " ".repeat(indent)));
        afford(Some((self.out.len() + joined.len()) as u64))?;
        self.out.push_str(&if bracketed { format!("({joined})") } else { joined });
        Ok(())
    }
}

/// The words of a line, each with the white space after it.
fn words(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = line;
    while !rest.is_empty() {
        let word = rest.find(crate::syntax::chars::is_space).unwrap_or(rest.len());
        let end = rest[word..].find(|c| !crate::syntax::chars::is_space(c)).map_or(rest.len(), |at| word + at);
        found.push(&rest[..end]);
        rest = &rest[end..];
    }
    found
}

//! Implements the filters `truncate` and `wordwrap`, which break lines like Python's `textwrap`.

use super::call_args::{CallArgs, defined, flag, int_or, some, text};
use super::splitting::lines;
use crate::budget::{afford_copies, walk_items};
use crate::failure::{Outcome, other, type_fault, value_fault};
use crate::syntax::chars::is_word;
use crate::value::Value;

/// The number of characters by which a text may exceed the length without being cut.
const LEEWAY: i64 = 5;

pub(super) fn truncate(value: &Value, args: CallArgs) -> Outcome<Value> {
    let [length, killwords, end, leeway] = args.bind("truncate", ["length", "killwords", "end", "leeway"], 0)?;
    let length = int_or("truncate", length.as_ref(), 255)?;
    let end = end.map_or_else(|| Value::text("..."), Ok)?;
    let leeway = int_or("truncate", some(leeway).as_ref(), LEEWAY)?;
    let room = length - end.length()? as i64;
    if room < 0 || leeway < 0 {
        return Err(other("`truncate` needs a length that holds the end, and a leeway of at least 0"));
    }
    if value.length()? as i64 <= length.saturating_add(leeway) {
        return Ok(value.clone());
    }
    let Value::Text(own) = value else { return Err(type_fault(format!("`truncate` needs a string, not {}", value.type_name()))) };
    let cut = own.text.char_indices().nth(room as usize).map_or(own.text.len(), |(at, _)| at);
    let head = &own.text[..cut];
    let head = if flag(killwords.as_ref()) { head } else { head.rsplit_once(' ').map_or(head, |(head, _)| head) };
    Value::marked([head, text("truncate", &end)?].concat(), own.safe)
}

struct Style {
    width: usize,
    long_words: bool,
    hyphens: bool,
}

pub(super) fn wordwrap(value: &Value, args: CallArgs) -> Outcome<Value> {
    let names = ["width", "break_long_words", "wrapstring", "break_on_hyphens"];
    let [width, long_words, wrapstring, hyphens] = args.bind("wordwrap", names, 0)?;
    defined(value)?;
    let Value::Text(own) = value else { return Err(type_fault(format!("`wordwrap` needs a string, not {}", value.type_name()))) };
    let wrapstring = some(wrapstring).map_or_else(|| Value::text("\n"), Ok)?;
    let wrapstring = text("wordwrap", &wrapstring)?.to_owned();
    let width = int_or("wordwrap", width.as_ref(), 79)?;
    let is_on = |value: Option<Value>| value.is_none_or(|value| value.truth());
    let own_lines = lines(&own.text, false)?;
    if width <= 0 && !own_lines.is_empty() {
        return Err(value_fault("`wordwrap` needs a width above 0"));
    }
    let style = Style { width: usize::try_from(width).unwrap_or(1), long_words: is_on(long_words), hyphens: is_on(hyphens) };
    walk_items(own.text.len())?;
    let wrapped: Vec<Vec<String>> = own_lines.into_iter().map(|line| style.wrap(line)).collect();
    let count = wrapped.iter().map(|lines| lines.len().max(1)).sum::<usize>();
    afford_copies(count, wrapstring.len(), own.text.len())?;
    let parts: Vec<String> = wrapped.into_iter().map(|lines| lines.join(&wrapstring)).collect();
    Value::text(parts.join(&wrapstring))
}

fn is_blank(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\x0b' | '\x0c' | '\r' | ' ')
}

fn is_letter(c: Option<&char>) -> bool {
    c.is_some_and(|c| is_word(*c) && !c.is_numeric())
}

fn ends_word(c: Option<&char>) -> bool {
    c.is_some_and(|c| is_word(*c) || "!\"'&.,?".contains(*c))
}

/// If two or more hyphens and a word begin at `at`, the start of that word.
fn dash(chars: &[char], at: usize) -> Option<usize> {
    let count = chars[at..].iter().take_while(|c| **c == '-').count();
    (count >= 2 && chars.get(at + count).is_some_and(|c| is_word(*c))).then_some(at + count)
}

/// Whether a word may be broken after the hyphen at `at`.
fn breaks(chars: &[char], at: usize) -> bool {
    let back = |count: usize| at.checked_sub(count).and_then(|at| chars.get(at));
    let before = (is_letter(back(1)) && is_letter(back(2))) || (ends_word(back(1)) && back(2) == Some(&'-') && is_letter(back(3)));
    let next = at + 2 + usize::from(chars.get(at + 2) == Some(&'-'));
    before && is_letter(chars.get(at + 1)) && is_letter(chars.get(next))
}

impl Style {
    /// The end of the chunk that begins at `start`.
    fn chunk(&self, chars: &[char], start: usize) -> usize {
        if is_blank(chars[start]) {
            return start + chars[start..].iter().take_while(|c| is_blank(**c)).count();
        }
        if self.hyphens
            && start > 0
            && ends_word(chars.get(start - 1))
            && let Some(end) = dash(chars, start)
        {
            return end;
        }
        let mut at = start + 1;
        while let Some(c) = chars.get(at) {
            if is_blank(*c) || (self.hyphens && ends_word(chars.get(at - 1)) && dash(chars, at).is_some()) {
                return at;
            }
            if self.hyphens && *c == '-' && breaks(chars, at) {
                return at + 1;
            }
            at += 1;
        }
        at
    }

    fn wrap(&self, line: &str) -> Vec<String> {
        let chars: Vec<char> = line.chars().collect();
        let mut chunks: Vec<&[char]> = Vec::new();
        let mut at = 0;
        while at < chars.len() {
            let end = self.chunk(&chars, at);
            chunks.push(&chars[at..end]);
            at = end;
        }
        chunks.reverse();
        let is_gap = |chunk: &&[char]| chunk.iter().all(|c| crate::syntax::chars::is_space(*c));
        let mut found: Vec<String> = Vec::new();
        while !chunks.is_empty() {
            if !found.is_empty() && chunks.last().is_some_and(is_gap) {
                chunks.pop();
            }
            let (mut current, mut length) = (Vec::new(), 0);
            while let Some(chunk) = chunks.pop_if(|chunk| length + chunk.len() <= self.width) {
                length += chunk.len();
                current.push(chunk);
            }
            if chunks.last().is_some_and(|chunk| chunk.len() > self.width) {
                self.long_word(&mut chunks, &mut current, self.width - length);
            }
            if current.last().is_some_and(is_gap) {
                current.pop();
            }
            if !current.is_empty() {
                found.push(current.into_iter().flatten().collect());
            }
        }
        found
    }

    /// Cuts a word that is longer than any line, or puts it on a line of its own.
    fn long_word<'a>(&self, chunks: &mut Vec<&'a [char]>, current: &mut Vec<&'a [char]>, room: usize) {
        let Some(chunk) = chunks.pop() else { return };
        if !self.long_words {
            if current.is_empty() {
                current.push(chunk);
            } else {
                chunks.push(chunk);
            }
            return;
        }
        let hyphen = chunk[..room].iter().rposition(|c| *c == '-').filter(|at| self.hyphens && chunk[..*at].iter().any(|c| *c != '-'));
        let end = hyphen.map_or(room, |at| at + 1);
        current.push(&chunk[..end]);
        chunks.push(&chunk[end..]);
    }
}

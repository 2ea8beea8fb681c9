//! Writes a plan in Lark's syntax.

use std::fmt::{self, Write};

use super::chars::Chars;
use super::expr::Expr;
use super::plan::{Node, Plan};

/// Writes a plan as a text of at most `most` bytes. A class of characters is repeated in each terminal that holds it, so the text may be
/// much larger than the plan. Writing stops once the text is too long.
///
/// # Errors
/// The text would be longer.
pub fn write(plan: &Plan, most: usize) -> Result<String, String> {
    let mut text = LarkWriter { written: String::new(), most };
    let too_large = |_| format!("the grammar is too large: in Lark's syntax it has more than {most} bytes");
    lines(plan, &mut text).map_err(too_large)?;
    Ok(text.written)
}

/// A text of at most `most` bytes. Writing more is an error.
struct LarkWriter {
    written: String,
    most: usize,
}

impl Write for LarkWriter {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        if self.written.len() + piece.len() > self.most {
            return Err(fmt::Error);
        }
        self.written.push_str(piece);
        Ok(())
    }
}

fn lines(plan: &Plan, out: &mut LarkWriter) -> fmt::Result {
    out.write_str("start: r0\n")?;
    for (rule, body) in &plan.rules {
        write!(out, "r{rule}: ")?;
        node(plan, body, out)?;
        out.write_str("\n")?;
    }
    for (terminal, expr) in plan.terminals.iter().enumerate() {
        write!(out, "T{terminal}: /")?;
        regex(expr, out)?;
        // A terminal never matches the empty text, because the rules know where it may be left out.
        out.write_str(if expr.is_nullable(&|_| false) { "/ & /(?s:.+)/\n" } else { "/\n" })?;
    }
    Ok(())
}

fn node(plan: &Plan, at: &Node, out: &mut LarkWriter) -> fmt::Result {
    match at {
        Node::Terminal(terminal) if plan.is_nullable(at) => write!(out, "T{terminal}?"),
        Node::Terminal(terminal) => write!(out, "T{terminal}"),
        Node::Rule(rule) => write!(out, "r{rule}"),
        Node::Seq(items) if items.is_empty() => out.write_str("\"\""),
        Node::Seq(items) => between(items, " ", out, &|item, out| node(plan, item, out)),
        Node::Alt(members) => {
            out.write_str("(")?;
            between(members, " | ", out, &|member, out| node(plan, member, out))?;
            out.write_str(")")
        }
        Node::Repeat { inner, min, max } => {
            out.write_str("(")?;
            node(plan, inner, out)?;
            out.write_str(")")?;
            bounds(*min, *max, out)
        }
    }
}

fn regex(expr: &Expr, out: &mut LarkWriter) -> fmt::Result {
    match expr {
        Expr::Chars(chars) => class(chars, out),
        Expr::Seq(items) => items.iter().try_for_each(|item| regex(item, out)),
        Expr::Alt(members) => {
            out.write_str("(?:")?;
            between(members, "|", out, &regex)?;
            out.write_str(")")
        }
        Expr::Repeat { inner, min, max } => {
            out.write_str("(?:")?;
            regex(inner, out)?;
            out.write_str(")")?;
            bounds(*min, *max, out)
        }
        Expr::Rule(_) => unreachable!("a terminal names no rule"),
    }
}

/// Writes all `parts`, separated by `mark`.
fn between<T>(parts: &[T], mark: &str, out: &mut LarkWriter, write: &impl Fn(&T, &mut LarkWriter) -> fmt::Result) -> fmt::Result {
    for (i, part) in parts.iter().enumerate() {
        if i > 0 {
            out.write_str(mark)?;
        }
        write(part, out)?;
    }
    Ok(())
}

fn bounds(min: u32, max: Option<u32>, out: &mut LarkWriter) -> fmt::Result {
    match (min, max) {
        (0, None) => out.write_str("*"),
        (1, None) => out.write_str("+"),
        (0, Some(1)) => out.write_str("?"),
        (min, None) => write!(out, "{{{min},}}"),
        (min, Some(max)) => write!(out, "{{{min},{max}}}"),
    }
}

/// Writes a class of code points by their numbers, so that nothing needs an escape.
fn class(chars: &Chars, out: &mut LarkWriter) -> fmt::Result {
    out.write_str("[")?;
    for (first, last) in chars.ranges() {
        match first == last {
            true => write!(out, "\\x{{{first:X}}}")?,
            false => write!(out, "\\x{{{first:X}}}-\\x{{{last:X}}}")?,
        }
    }
    out.write_str("]")
}

//! Writes a plan in Lark's syntax.

use std::fmt::Write;

use super::chars::Chars;
use super::expr::Expr;
use super::plan::{Node, Plan};

pub fn write(plan: &Plan) -> String {
    let mut lark = String::from("start: r0\n");
    for (rule, body) in &plan.rules {
        let _ = writeln!(lark, "r{rule}: {}", node(plan, body));
    }
    for (terminal, expr) in plan.terminals.iter().enumerate() {
        let _ = write!(lark, "T{terminal}: /{}/", regex(expr));
        // a terminal matches some text: the rules know where it may be left out
        lark.push_str(if expr.is_nullable(&|_| false) { " & /(?s:.+)/\n" } else { "\n" });
    }
    lark
}

fn node(plan: &Plan, at: &Node) -> String {
    match at {
        Node::Terminal(terminal) if plan.is_nullable(at) => format!("T{terminal}?"),
        Node::Terminal(terminal) => format!("T{terminal}"),
        Node::Rule(rule) => format!("r{rule}"),
        Node::Seq(items) if items.is_empty() => "\"\"".into(),
        Node::Seq(items) => items.iter().map(|item| node(plan, item)).collect::<Vec<_>>().join(" "),
        Node::Alt(members) => format!("({})", members.iter().map(|member| node(plan, member)).collect::<Vec<_>>().join(" | ")),
        Node::Repeat { inner, min, max } => format!("({}){}", node(plan, inner), bounds(*min, *max)),
    }
}

fn regex(expr: &Expr) -> String {
    match expr {
        Expr::Chars(chars) => class(chars),
        Expr::Seq(items) => items.iter().map(regex).collect(),
        Expr::Alt(members) => format!("(?:{})", members.iter().map(regex).collect::<Vec<_>>().join("|")),
        Expr::Repeat { inner, min, max } => format!("(?:{}){}", regex(inner), bounds(*min, *max)),
        Expr::Rule(_) => unreachable!("a terminal names no rule"),
    }
}

fn bounds(min: u32, max: Option<u32>) -> String {
    match (min, max) {
        (0, None) => "*".into(),
        (1, None) => "+".into(),
        (0, Some(1)) => "?".into(),
        (min, None) => format!("{{{min},}}"),
        (min, Some(max)) => format!("{{{min},{max}}}"),
    }
}

/// A class of code points by their numbers, so that nothing needs an escape.
fn class(chars: &Chars) -> String {
    let range = |(first, last): &(u32, u32)| match first == last {
        true => format!("\\x{{{first:X}}}"),
        false => format!("\\x{{{first:X}}}-\\x{{{last:X}}}"),
    };
    format!("[{}]", chars.ranges().iter().map(range).collect::<String>())
}

//! Cuts text into words. Each pattern cuts every piece left by the previous pattern into matches and the gaps between them.

use crate::chars::Table;
use crate::regex::{Node, Sets, parse};

/// Compiled patterns, with one table of all their sets.
pub(super) struct Scanner {
    patterns: Vec<Pattern>,
    table: Table,
}

enum Pattern {
    Alternatives(Vec<Alternative>),
    /// `\s+$`, searched once per piece. Searching from every position in a run of spaces would take time quadratic in the run's length.
    Trailing(u32),
}

struct Alternative {
    /// The sets that the first character of a match may be in. 0 if a match may begin with any character.
    first: u32,
    nodes: Vec<Node>,
}

impl Scanner {
    /// Compiles patterns.
    ///
    /// # Errors
    /// If a pattern is not supported. The error names the pattern and the reason.
    pub(super) fn new<S: AsRef<str>>(sources: &[S]) -> Result<Self, String> {
        let mut sets = Sets::default();
        let mut parsed = Vec::new();
        for source in sources.iter().map(AsRef::as_ref) {
            parsed.push(parse(source, &mut sets).map_err(|fault| format!("the pattern `{source}` {fault}"))?);
        }
        let table = Table::new(&sets.0);
        let patterns = parsed.into_iter().map(|alternatives| Pattern::new(alternatives, &table)).collect();
        Ok(Self { patterns, table })
    }

    /// Calls `emit` with each word of `text` in order. The concatenated words equal the text.
    pub(super) fn words<'a>(&self, text: &'a str, emit: &mut impl FnMut(&'a str)) {
        self.cut(&self.patterns, text, emit);
    }

    fn cut<'a>(&self, patterns: &[Pattern], piece: &'a str, emit: &mut impl FnMut(&'a str)) {
        let Some((pattern, rest)) = patterns.split_first() else {
            return emit(piece);
        };
        let alternatives = match pattern {
            Pattern::Alternatives(alternatives) => alternatives,
            Pattern::Trailing(set) => {
                let (text, end) = piece.split_at(self.trailing(piece, *set));
                return [text, end].into_iter().filter(|part| !part.is_empty()).for_each(|part| self.cut(rest, part, emit));
            }
        };
        let (mut at, mut gap) = (0, 0);
        while at < piece.len() {
            let (bits, len) = self.table.at(piece, at);
            let mut likely = alternatives.iter().filter(|alternative| alternative.first == 0 || alternative.first & bits != 0);
            let Some(end) = likely.find_map(|alternative| self.matched(piece, &alternative.nodes, at)).filter(|end| *end > at) else {
                at += len;
                continue;
            };
            if gap < at {
                self.cut(rest, &piece[gap..at], emit);
            }
            self.cut(rest, &piece[at..end], emit);
            (at, gap) = (end, end);
        }
        if gap < piece.len() {
            self.cut(rest, &piece[gap..], emit);
        }
    }

    fn trailing(&self, piece: &str, set: u32) -> usize {
        let in_set = |(at, _): &(usize, char)| self.table.at(piece, *at).0 & set != 0;
        piece.char_indices().rev().take_while(in_set).last().map_or(piece.len(), |(at, _)| at)
    }

    /// The end of the match of `nodes` that starts at `at`. The depth of the recursion depends on the pattern only, not on the text.
    fn matched(&self, text: &str, nodes: &[Node], at: usize) -> Option<usize> {
        let Some((node, rest)) = nodes.split_first() else { return Some(at) };
        match node {
            Node::Run { set, min, max, back } => {
                let (end, count) = self.run(text, at, *set, *max);
                if !back || count <= *min {
                    return if count < *min { None } else { self.matched(text, rest, end) };
                }
                self.give_back(text, (at, end), *min, rest)
            }
            // A group is always the last node.
            Node::Group { alternatives, optional } => {
                let found = alternatives.iter().find_map(|alternative| self.matched(text, alternative, at));
                found.or_else(|| optional.then_some(at))
            }
            Node::Ahead { set, wanted } => {
                let (bits, _) = self.table.at(text, at);
                if (bits & set != 0) == *wanted { self.matched(text, rest, at) } else { None }
            }
            Node::End => {
                if at == text.len() {
                    self.matched(text, rest, at)
                } else {
                    None
                }
            }
        }
    }

    /// Tries to match the rest after fewer and fewer characters of a run.
    fn give_back(&self, text: &str, (start, end): (usize, usize), min: u32, rest: &[Node]) -> Option<usize> {
        if let Some(found) = self.matched(text, rest, end) {
            return Some(found);
        }
        let least = text[start..].chars().take(min as usize).map(char::len_utf8).sum::<usize>() + start;
        let mut ends = text[least..end].char_indices().rev().map(|(at, _)| least + at);
        ends.find_map(|end| self.matched(text, rest, end))
    }

    #[inline(always)]
    fn run(&self, text: &str, mut at: usize, set: u32, max: u32) -> (usize, u32) {
        let mut count = 0;
        while count < max {
            let (bits, len) = self.table.at(text, at);
            if bits & set == 0 {
                break;
            }
            at += len;
            count += 1;
        }
        (at, count)
    }

    pub(super) fn bytes_held(&self) -> usize {
        self.table.bytes_held()
    }
}

impl Pattern {
    fn new(alternatives: Vec<Vec<Node>>, table: &Table) -> Self {
        if let [alternative] = &alternatives[..]
            && let [Node::Run { set, min: 1, max: u32::MAX, .. }, Node::End] = alternative[..]
        {
            return Self::Trailing(set);
        }
        let ready = |mut nodes: Vec<Node>| {
            disable_futile_backtracking(&mut nodes, table);
            Alternative { first: first_of(&nodes), nodes }
        };
        Self::Alternatives(alternatives.into_iter().map(ready).collect())
    }
}

/// Clears `back` of runs that cannot gain from giving characters back: either no character must follow, or the one that must follow cannot
/// be in the run.
fn disable_futile_backtracking(nodes: &mut [Node], table: &Table) {
    for at in 0..nodes.len() {
        let futile = match (&nodes[at], nodes.get(at + 1)) {
            (Node::Run { set, .. }, Some(Node::Run { set: next, min: 1.., .. })) => !table.overlap(*set, *next),
            (Node::Run { .. }, Some(Node::Run { min: 0, .. })) => at + 2 == nodes.len(),
            (Node::Run { .. }, Some(Node::Group { optional: true, .. }) | None) => true,
            _ => false,
        };
        match &mut nodes[at] {
            Node::Run { back, .. } if futile => *back = false,
            Node::Group { alternatives, .. } => alternatives.iter_mut().for_each(|nodes| disable_futile_backtracking(nodes, table)),
            _ => {}
        }
    }
}

/// The sets that the first character may be in. 0 if they are unknown.
fn first_of(nodes: &[Node]) -> u32 {
    let mut first = 0;
    for node in nodes {
        match node {
            Node::Run { set, min, .. } => {
                first |= set;
                if *min > 0 {
                    return first;
                }
            }
            Node::Group { alternatives, optional: false } => {
                let firsts: Vec<u32> = alternatives.iter().map(|nodes| first_of(nodes)).collect();
                return if firsts.contains(&0) { 0 } else { firsts.iter().fold(first, |all, set| all | set) };
            }
            Node::Ahead { .. } | Node::End | Node::Group { .. } => return 0,
        }
    }
    0
}

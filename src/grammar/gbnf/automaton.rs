//! [`Automaton`]: the positions of a terminal's characters (Glushkov, The abstract theory of automata, 1961).

use super::chars::Chars;
use super::expr::Expr;

/// The most positions.
const MAX_POSITIONS: usize = 1000;
/// The most pairs of a position and one that follows it.
const MAX_EDGES: usize = 50_000;
/// The most such pairs of all terminals of a plan together, counted each time they are found: 8 MB.
pub const MAX_ALL_EDGES: usize = 1_000_000;

pub struct Automaton {
    /// The characters of each position.
    pub chars: Vec<Chars>,
    /// The positions that a text can begin with.
    pub first: Vec<usize>,
    /// The positions that can follow each position.
    pub next: Vec<Vec<usize>>,
    /// Whether a text can end at each position.
    pub last: Vec<bool>,
}

/// An expression's positions at which texts begin and end.
struct Part {
    first: Vec<usize>,
    last: Vec<usize>,
    nullable: bool,
}

impl Automaton {
    /// `None` if there would be too many positions or pairs. `edges`: the number of pairs that are still allowed.
    pub fn new(expr: &Expr, edges: &mut usize) -> Option<Self> {
        let mut made = Self { chars: Vec::new(), first: Vec::new(), next: Vec::new(), last: Vec::new() };
        let part = made.add(expr, edges)?;
        made.first = part.first;
        made.last = vec![false; made.chars.len()];
        part.last.into_iter().for_each(|position| made.last[position] = true);
        for next in &mut made.next {
            next.sort_unstable();
            next.dedup();
        }
        Some(made)
    }

    fn add(&mut self, expr: &Expr, edges: &mut usize) -> Option<Part> {
        Some(match expr {
            Expr::Chars(chars) => {
                if self.chars.len() == MAX_POSITIONS {
                    return None;
                }
                let position = self.chars.len();
                self.chars.push(chars.clone());
                self.next.push(Vec::new());
                Part { first: vec![position], last: vec![position], nullable: false }
            }
            Expr::Alt(members) => {
                let mut part = Part { first: Vec::new(), last: Vec::new(), nullable: false };
                for member in members {
                    let member = self.add(member, edges)?;
                    part.first.extend(member.first);
                    part.last.extend(member.last);
                    part.nullable |= member.nullable;
                }
                part
            }
            Expr::Seq(items) => {
                let mut part = Part { first: Vec::new(), last: Vec::new(), nullable: true };
                for item in items {
                    let item = self.add(item, edges)?;
                    part = self.behind(part, item, edges)?;
                }
                part
            }
            Expr::Repeat { inner, min, max } => {
                let mut part = Part { first: Vec::new(), last: Vec::new(), nullable: true };
                let copies = max.unwrap_or((*min).max(1));
                for copy in 0..copies {
                    let mut added = self.add(inner, edges)?;
                    // Copies of an empty text change nothing, and there may be 10,000 at each level.
                    if added.first.is_empty() {
                        part.nullable &= added.nullable || *min == 0;
                        break;
                    }
                    if copy + 1 == copies && max.is_none() {
                        self.link(&added.last, &added.first, edges)?;
                    }
                    added.nullable |= copy >= *min;
                    part = self.behind(part, added, edges)?;
                }
                part
            }
            Expr::Rule(_) => unreachable!("a terminal names no rule"),
        })
    }

    fn behind(&mut self, mut before: Part, mut after: Part, edges: &mut usize) -> Option<Part> {
        self.link(&before.last, &after.first, edges)?;
        if before.nullable {
            before.first.append(&mut after.first);
        }
        if after.nullable {
            after.last.append(&mut before.last);
        }
        Some(Part { first: before.first, last: after.last, nullable: before.nullable && after.nullable })
    }

    fn link(&mut self, from: &[usize], to: &[usize], edges: &mut usize) -> Option<()> {
        let added = from.len() * to.len();
        if added > MAX_EDGES {
            return None;
        }
        *edges = edges.checked_sub(added)?;
        for position in from {
            self.next[*position].extend(to);
        }
        Some(())
    }
}

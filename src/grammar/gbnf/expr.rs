//! [`Expr`]: the body of a rule.

use super::chars::Chars;

/// An expression. The empty text is a sequence without items.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expr {
    Chars(Chars),
    Seq(Vec<Expr>),
    Alt(Vec<Expr>),
    /// An expression that occurs at least `min` and at most `max` times.
    Repeat {
        inner: Box<Expr>,
        min: u32,
        max: Option<u32>,
    },
    /// A rule by its number.
    Rule(usize),
}

/// A grammar's rules. The first is the root.
#[derive(Clone, Debug)]
pub struct Grammar {
    pub names: Vec<String>,
    pub bodies: Vec<Expr>,
}

impl Expr {
    pub fn empty() -> Self {
        Self::Seq(Vec::new())
    }

    /// A sequence. A sequence among the items stays one item, because the parts of a rule or a literal belong together (`conflict.rs`).
    pub fn seq(mut items: Vec<Expr>) -> Self {
        items.retain(|item| *item != Self::empty());
        if items.len() == 1 { items.remove(0) } else { Self::Seq(items) }
    }

    /// A choice of at least one member.
    pub fn alt(mut members: Vec<Expr>) -> Self {
        if members.len() == 1 { members.remove(0) } else { Self::Alt(members) }
    }

    pub fn repeat(self, min: u32, max: Option<u32>) -> Self {
        match (min, max) {
            (1, Some(1)) => self,
            (_, Some(0)) => Self::empty(),
            _ => Self::Repeat { inner: Box::new(self), min, max },
        }
    }

    pub fn children(&self) -> &[Expr] {
        match self {
            Self::Chars(_) | Self::Rule(_) => &[],
            Self::Seq(items) | Self::Alt(items) => items,
            Self::Repeat { inner, .. } => std::slice::from_ref(inner),
        }
    }

    /// The number of the expression's nodes.
    pub fn size(&self) -> usize {
        1 + self.children().iter().map(Self::size).sum::<usize>()
    }

    pub fn depth(&self) -> usize {
        1 + self.children().iter().map(Self::depth).max().unwrap_or(0)
    }

    /// Calls `see` with each rule that the expression names.
    pub fn each_rule(&self, see: &mut impl FnMut(usize)) {
        if let Self::Rule(rule) = self {
            see(*rule);
        }
        self.children().iter().for_each(|child| child.each_rule(see));
    }

    /// Whether the expression names no rule.
    pub fn is_regular(&self) -> bool {
        !matches!(self, Self::Rule(_)) && self.children().iter().all(Self::is_regular)
    }

    /// Whether the expression matches the empty text. `rule` tells whether a rule does.
    pub fn is_nullable(&self, rule: &impl Fn(usize) -> bool) -> bool {
        match self {
            Self::Chars(_) => false,
            Self::Seq(items) => items.iter().all(|item| item.is_nullable(rule)),
            Self::Alt(members) => members.iter().any(|member| member.is_nullable(rule)),
            Self::Repeat { inner, min, .. } => *min == 0 || inner.is_nullable(rule),
            Self::Rule(index) => rule(*index),
        }
    }

    /// Replaces each rule by the result of `with`.
    pub fn replaced(&self, with: &mut impl FnMut(usize) -> Expr) -> Expr {
        match self {
            Self::Chars(_) => self.clone(),
            Self::Seq(items) => Self::seq(items.iter().map(|item| item.replaced(with)).collect()),
            Self::Alt(members) => Self::alt(members.iter().map(|member| member.replaced(with)).collect()),
            Self::Repeat { inner, min, max } => inner.replaced(with).repeat(*min, *max),
            Self::Rule(rule) => with(*rule),
        }
    }
}

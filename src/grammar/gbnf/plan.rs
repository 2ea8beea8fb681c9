//! [`Plan`]: a grammar over terminals. A terminal is a regular part that the lexer matches as a whole.

use std::collections::{HashMap, HashSet};

use super::expr::{Expr, Grammar};
use super::simplify::{least, reachable};

/// A rule's body over terminals.
#[derive(Clone, Debug)]
pub enum Node {
    Terminal(usize),
    Rule(usize),
    Seq(Vec<Node>),
    Alt(Vec<Node>),
    Repeat { inner: Box<Node>, min: u32, max: Option<u32> },
}

pub struct Plan {
    pub terminals: Vec<Expr>,
    /// The rules that the root reaches, the root first.
    pub rules: Vec<(usize, Node)>,
    /// Whether a rule matches the empty text.
    pub nullable: Vec<bool>,
}

impl Plan {
    /// Makes the largest regular parts terminals. For those in `divided`, their parts become terminals instead.
    pub fn new(grammar: &Grammar, divided: &HashSet<Expr>) -> Self {
        let mut maker = Planner { divided, numbers: HashMap::new() };
        let rules: Vec<_> = reachable(&grammar.bodies).into_iter().map(|rule| (rule, maker.node(&grammar.bodies[rule]))).collect();
        let mut terminals = vec![Expr::empty(); maker.numbers.len()];
        for (expr, number) in maker.numbers {
            terminals[number] = expr;
        }
        Self { terminals, rules, nullable: least(&grammar.bodies, &|body, known| body.is_nullable(&|rule| known[rule])) }
    }

    pub fn is_nullable(&self, node: &Node) -> bool {
        match node {
            Node::Terminal(terminal) => self.terminals[*terminal].is_nullable(&|_| false),
            Node::Rule(rule) => self.nullable[*rule],
            Node::Seq(items) => items.iter().all(|item| self.is_nullable(item)),
            Node::Alt(members) => members.iter().any(|member| self.is_nullable(member)),
            Node::Repeat { inner, min, .. } => *min == 0 || self.is_nullable(inner),
        }
    }
}

struct Planner<'a> {
    divided: &'a HashSet<Expr>,
    numbers: HashMap<Expr, usize>,
}

impl Planner<'_> {
    fn node(&mut self, expr: &Expr) -> Node {
        match expr {
            _ if expr.is_regular() => self.terminal(expr.clone()),
            Expr::Rule(rule) => Node::Rule(*rule),
            Expr::Repeat { inner, min, max } => Node::Repeat { inner: Box::new(self.node(inner)), min: *min, max: *max },
            Expr::Alt(members) => {
                let (regular, others): (Vec<_>, Vec<_>) = members.iter().partition(|member| member.is_regular());
                let mut nodes: Vec<Node> = others.into_iter().map(|member| self.node(member)).collect();
                if !regular.is_empty() {
                    nodes.push(self.terminal(Expr::alt(regular.into_iter().cloned().collect())));
                }
                Node::Alt(nodes)
            }
            Expr::Seq(items) => {
                let (mut nodes, mut run) = (Vec::new(), Vec::new());
                for item in items {
                    if item.is_regular() {
                        run.push(item.clone());
                        continue;
                    }
                    if !run.is_empty() {
                        nodes.push(self.terminal(Expr::seq(std::mem::take(&mut run))));
                    }
                    nodes.push(self.node(item));
                }
                if !run.is_empty() {
                    nodes.push(self.terminal(Expr::seq(run)));
                }
                Node::Seq(nodes)
            }
            Expr::Chars(_) => unreachable!("characters are regular"),
        }
    }

    fn terminal(&mut self, expr: Expr) -> Node {
        if self.divided.contains(&expr) {
            return match expr {
                Expr::Seq(items) => Node::Seq(items.into_iter().map(|item| self.terminal(item)).collect()),
                Expr::Alt(members) => Node::Alt(members.into_iter().map(|member| self.terminal(member)).collect()),
                Expr::Repeat { inner, min, max } => Node::Repeat { inner: Box::new(self.terminal(*inner)), min, max },
                Expr::Chars(_) | Expr::Rule(_) => unreachable!("only longer parts are divided"),
            };
        }
        if expr == Expr::empty() {
            return Node::Seq(Vec::new());
        }
        let next = self.numbers.len();
        Node::Terminal(*self.numbers.entry(expr).or_insert(next))
    }
}

//! Divides terminals that would match more of a text than the grammar lets them.
//!
//! The lexer takes the longest match of all terminals that are allowed at a place. Suppose that a terminal A matches a text w, and that a
//! terminal B at the same place can continue beyond w with a character that may also begin what follows A. Then the grammar allows the text
//! to be split after w, but the lexer does not: B is greedy. Such a B is divided into its parts until no such pair is left. Terminals of
//! one character are never greedy, so this ends.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use super::automaton::{Automaton, MAX_ALL_EDGES};
use super::chars::Chars;
use super::expr::{Expr, Grammar};
use super::plan::{Node, Plan};

/// The most terminals. Their numbers fit 16 bits.
const MAX_TERMINALS: usize = 2000;
/// The most steps that all comparisons of sets of characters may take. Beyond that, terminals that might be greedy are divided unseen.
const MAX_WORK: usize = 20_000_000;
/// The cost of joining a range to a set of characters [steps]. It limits the sets in memory to a million ranges.
const JOINING: usize = 20;

/// Makes a plan whose terminals the lexer finds everywhere the grammar allows them.
///
/// # Errors
/// The grammar needs too many terminals.
pub fn resolve(grammar: &Grammar) -> Result<Plan, String> {
    let mut divided = HashSet::new();
    let mut work = MAX_WORK;
    loop {
        let plan = Plan::new(grammar, &divided);
        if plan.terminals.len() > MAX_TERMINALS {
            return Err(format!("the grammar is too large: it has more than {MAX_TERMINALS} different parts"));
        }
        let greedy = greedy(&plan, &mut work);
        if greedy.is_empty() {
            return Ok(plan);
        }
        divided.extend(greedy.into_iter().map(|terminal| plan.terminals[terminal].clone()));
    }
}

/// The terminals that are greedy.
fn greedy(plan: &Plan, work: &mut usize) -> Vec<usize> {
    let mut edges = MAX_ALL_EDGES;
    let automata: Vec<_> = plan.terminals.iter().map(|terminal| Automaton::new(terminal, &mut edges)).collect();
    let oversized: Vec<usize> = (0..automata.len()).filter(|terminal| automata[*terminal].is_none()).collect();
    if !oversized.is_empty() {
        return oversized;
    }
    let automata: Vec<Automaton> = automata.into_iter().flatten().collect();
    let follow = Follow::of(plan);
    let first: Vec<Chars> = automata.iter().map(|automaton| union(automaton.first.iter().map(|at| &automaton.chars[*at]), work)).collect();
    let after = After { first: &first, follow: &follow, sets: RefCell::default() };
    let both = |a: usize, b: usize, work: &mut usize| share(&automata[a], &automata[b], work);
    let beside = follow.beside(&both, work);
    let single = |terminal: usize| matches!(plan.terminals[terminal], Expr::Chars(_));
    let meet = |a: usize, b: usize, work: &mut usize| {
        *work = work.saturating_sub(first[a].cost(&first[b]));
        *work == 0 || first[a].meets(&first[b])
    };
    let takes_too_much = |greedy: usize, work: &mut usize| {
        let overtaken = |other: usize, work: &mut usize| {
            let after = after.of(other, work);
            overtakes(&automata[greedy], &automata[other], &after, work)
        };
        beside[greedy].iter().any(|other| meet(other, greedy, work) && overtaken(other, work))
    };
    (0..automata.len()).filter(|terminal| !single(*terminal) && takes_too_much(*terminal, work)).collect()
}

/// The characters that may begin what follows a terminal. Many terminals have the same set.
struct After<'a> {
    first: &'a [Chars],
    follow: &'a Follow<'a>,
    sets: RefCell<HashMap<Set, Chars>>,
}

impl After<'_> {
    fn of(&self, terminal: usize, work: &mut usize) -> Chars {
        let set = &self.follow.terminals[terminal];
        if let Some(known) = self.sets.borrow().get(set) {
            return known.clone();
        }
        let chars = union(set.iter().map(|terminal| &self.first[terminal]), work);
        self.sets.borrow_mut().insert(set.clone(), chars.clone());
        chars
    }
}

/// Whether `long` can continue beyond a text of `short` with a character of `after`.
fn overtakes(long: &Automaton, short: &Automaton, after: &Chars, work: &mut usize) -> bool {
    let goes_on = |next: &usize, work: &mut usize| {
        *work = work.saturating_sub(long.chars[*next].cost(after));
        *work == 0 || long.chars[*next].meets(after)
    };
    *work == 0
        || !after.is_empty()
            && together(long, short, work, &|a, b, work| short.last[a] && long.next[b].iter().any(|next| goes_on(next, work)))
}

/// Whether both match a common text.
fn share(one: &Automaton, other: &Automaton, work: &mut usize) -> bool {
    together(one, other, work, &|a, b, _| other.last[a] && one.last[b])
}

/// Whether a text leads `short` and `long` to positions for which `holds`. Also true if no work is left to find out.
fn together(long: &Automaton, short: &Automaton, work: &mut usize, holds: &dyn Fn(usize, usize, &mut usize) -> bool) -> bool {
    let width = long.chars.len();
    let mut seen = vec![false; width * short.chars.len()];
    let mut open = Vec::new();
    let mut reach = |from: &[usize], to: &[usize], open: &mut Vec<(usize, usize)>, work: &mut usize| {
        for &a in from {
            for &b in to {
                *work = work.saturating_sub(short.chars[a].cost(&long.chars[b]));
                if *work > 0 && !seen[a * width + b] && short.chars[a].meets(&long.chars[b]) {
                    seen[a * width + b] = true;
                    open.push((a, b));
                }
            }
        }
    };
    reach(&short.first, &long.first, &mut open, work);
    while let Some((a, b)) = open.pop() {
        if *work == 0 || holds(a, b, work) {
            return true;
        }
        reach(&short.next[a], &long.next[b], &mut open, work);
    }
    *work == 0
}

/// All characters of `sets`. Sets beyond the remaining `work` are left out.
fn union<'a>(sets: impl Iterator<Item = &'a Chars>, work: &mut usize) -> Chars {
    let mut sets = sets.peekable();
    let Some(one) = sets.next() else { return Chars::of(Vec::new()) };
    if sets.peek().is_none() {
        return one.clone();
    }
    let mut ranges = one.ranges().to_vec();
    for chars in sets {
        *work = work.saturating_sub(JOINING * chars.ranges().len());
        if *work == 0 {
            break;
        }
        ranges.extend(chars.ranges());
    }
    Chars::of(ranges)
}

/// A set of terminals.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Set(Vec<u64>);

impl Set {
    fn new(size: usize) -> Self {
        Self(vec![0; size.div_ceil(64)])
    }

    fn add(&mut self, terminal: usize) {
        self.0[terminal / 64] |= 1 << (terminal % 64);
    }

    fn holds(&self, terminal: usize) -> bool {
        self.0[terminal / 64] >> (terminal % 64) & 1 == 1
    }

    fn all(size: usize) -> Self {
        let mut set = Self::new(size);
        (0..size).for_each(|terminal| set.add(terminal));
        set
    }

    /// Removes the members of another set.
    fn leave(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word &= !other);
    }

    fn join(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word |= other);
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        (0..self.0.len() * 64).filter(|terminal| self.holds(*terminal))
    }
}

/// The terminals that may follow each rule and terminal.
struct Follow<'a> {
    plan: &'a Plan,
    /// The terminals that each rule can begin with.
    begin: Vec<Set>,
    /// The terminals that can follow each rule.
    rules: Vec<Set>,
    /// The terminals that can follow each terminal.
    terminals: Vec<Set>,
}

impl<'a> Follow<'a> {
    fn of(plan: &'a Plan) -> Self {
        let size = plan.terminals.len();
        let sets = |count| vec![Set::new(size); count];
        let mut follow = Self { plan, begin: sets(plan.nullable.len()), rules: sets(plan.nullable.len()), terminals: sets(size) };
        loop {
            let before = follow.begin.clone();
            for (rule, body) in &plan.rules {
                let begin = follow.begin_of(body);
                follow.begin[*rule].join(&begin);
            }
            if follow.begin == before {
                break;
            }
        }
        loop {
            let before = follow.rules.clone();
            for (rule, body) in &plan.rules {
                let behind = follow.rules[*rule].clone();
                follow.walk(body, &behind);
            }
            if follow.rules == before {
                return follow;
            }
        }
    }

    fn begin_of(&self, node: &Node) -> Set {
        let mut set = Set::new(self.plan.terminals.len());
        match node {
            Node::Terminal(terminal) => set.add(*terminal),
            Node::Rule(rule) => set.join(&self.begin[*rule]),
            Node::Alt(members) => members.iter().for_each(|member| set.join(&self.begin_of(member))),
            Node::Repeat { inner, .. } => set.join(&self.begin_of(inner)),
            Node::Seq(items) => {
                for item in items {
                    set.join(&self.begin_of(item));
                    if !self.plan.is_nullable(item) {
                        break;
                    }
                }
            }
        }
        set
    }

    /// Records what follows the terminals and rules of `node`, which is followed by `behind`.
    fn walk(&mut self, node: &Node, behind: &Set) {
        match node {
            Node::Terminal(terminal) => self.terminals[*terminal].join(behind),
            Node::Rule(rule) => self.rules[*rule].join(behind),
            Node::Alt(members) => members.iter().for_each(|member| self.walk(member, behind)),
            Node::Repeat { inner, max, .. } => {
                let mut behind = behind.clone();
                if *max != Some(1) {
                    behind.join(&self.begin_of(inner));
                }
                self.walk(inner, &behind);
            }
            Node::Seq(items) => {
                let mut behind = behind.clone();
                for item in items.iter().rev() {
                    self.walk(item, &behind);
                    let begin = self.begin_of(item);
                    if !self.plan.is_nullable(item) {
                        behind = begin;
                    } else {
                        behind.join(&begin);
                    }
                }
            }
        }
    }

    /// For each terminal, the terminals that may be allowed at the same place. If two terminals of one place match the same text,
    /// everything that follows either one is allowed after that text. `share`: whether two terminals match a common text, charged to
    /// `work`.
    fn beside(&self, share: &dyn Fn(usize, usize, &mut usize) -> bool, work: &mut usize) -> Vec<Set> {
        let size = self.plan.terminals.len();
        let mut beside = vec![Set::new(size); size];
        for places in self.terminals.iter().chain(self.plan.rules.first().map(|(root, _)| &self.begin[*root])) {
            for terminal in places.iter() {
                beside[terminal].join(places);
            }
        }
        // Terminals that are followed by the same set already share a place.
        let differ = |a: usize, b: usize| a < b && self.terminals[a] != self.terminals[b];
        let pairs = |a: usize, others: &Set| {
            let pair = |b: usize| differ(a, b).then(|| [a, b].map(|terminal| terminal as u16));
            others.iter().filter_map(pair).collect::<Vec<_>>()
        };
        let mut open: Vec<[u16; 2]> = (0..size).flat_map(|terminal| pairs(terminal, &beside[terminal])).collect();
        while let Some([a, b]) = open.pop().map(|pair| pair.map(usize::from)).filter(|_| *work > 0) {
            if !share(a, b, work) {
                continue;
            }
            for (one, other) in [(a, b), (b, a)] {
                for behind in self.terminals[one].iter() {
                    *work = work.saturating_sub(size);
                    let mut added = self.terminals[other].clone();
                    added.leave(&beside[behind]);
                    open.extend(pairs(behind, &added));
                    beside[behind].join(&added);
                }
            }
        }
        if *work == 0 { vec![Set::all(size); size] } else { beside }
    }
}

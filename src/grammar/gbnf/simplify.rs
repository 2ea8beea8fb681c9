//! Rewrites rules so that as much as possible is regular: recursion at an end of a rule becomes a repetition, and regular rules are inlined
//! into the rules that name them.

use super::expr::{Expr, Grammar};

/// The most nodes that all copies of one rule may add.
const MAX_COPIES: usize = 20_000;
/// The most nodes that all copies may add together.
const MAX_ALL_COPIES: usize = 200_000;
/// The deepest expression that is copied. Later passes recurse as deep.
const MAX_DEPTH: usize = 200;

/// # Errors
/// The root matches no finite text.
pub fn simplify(mut grammar: Grammar) -> Result<Grammar, String> {
    let finite = least(&grammar.bodies, &|body, known| is_finite(body, &|rule| known[rule]));
    if let Some(rule) = reachable(&grammar.bodies).into_iter().find(|rule| !finite[*rule]) {
        return Err(format!("the rule `{}` never ends: each of its alternatives needs another `{0}`", grammar.names[rule]));
    }
    for rule in 0..grammar.bodies.len() {
        let body = std::mem::replace(&mut grammar.bodies[rule], Expr::empty());
        grammar.bodies[rule] = looped(rule, body);
    }
    grammar.bodies = joined(&grammar.bodies);
    Ok(grammar)
}

/// The least solution of `holds(body, solution)` for all rules.
pub fn least(bodies: &[Expr], holds: &impl Fn(&Expr, &[bool]) -> bool) -> Vec<bool> {
    let mut users = vec![Vec::new(); bodies.len()];
    for (rule, body) in bodies.iter().enumerate() {
        body.each_rule(&mut |named| users[named].push(rule));
    }
    let mut known = vec![false; bodies.len()];
    let mut open: Vec<usize> = (0..bodies.len()).collect();
    while let Some(rule) = open.pop() {
        if !known[rule] && holds(&bodies[rule], &known) {
            known[rule] = true;
            users[rule].dedup();
            open.append(&mut users[rule]);
        }
    }
    known
}

/// The rules that the root reaches, the root first.
pub fn reachable(bodies: &[Expr]) -> Vec<usize> {
    let mut seen = vec![false; bodies.len()];
    let (mut found, mut open) = (Vec::new(), vec![0]);
    while let Some(rule) = open.pop() {
        if !std::mem::replace(&mut seen[rule], true) {
            found.push(rule);
            bodies[rule].each_rule(&mut |named| open.push(named));
        }
    }
    found
}

fn is_finite(expr: &Expr, rule: &impl Fn(usize) -> bool) -> bool {
    match expr {
        Expr::Chars(_) => true,
        Expr::Seq(items) => items.iter().all(|item| is_finite(item, rule)),
        Expr::Alt(members) => members.iter().any(|member| is_finite(member, rule)),
        Expr::Repeat { inner, min, .. } => *min == 0 || is_finite(inner, rule),
        Expr::Rule(named) => rule(*named),
    }
}

/// Turns recursion at an end into a repetition: `A = A x | y` is `A = y x*`, and `A = x A | y` is `A = x* y`, for any x and y.
fn looped(rule: usize, body: Expr) -> Expr {
    let mut members = match body {
        Expr::Alt(members) => members,
        Expr::Repeat { inner, min: 0, max: Some(1) } => match *inner {
            Expr::Alt(members) => members.into_iter().chain([Expr::empty()]).collect(),
            other => vec![other, Expr::empty()],
        },
        other => return other,
    };
    members.retain(|member| *member != Expr::Rule(rule));
    let begins = |member: &Expr| matches!(member, Expr::Seq(items) if items.first() == Some(&Expr::Rule(rule)));
    let ends = |member: &Expr| matches!(member, Expr::Seq(items) if items.last() == Some(&Expr::Rule(rule)));
    let left = members.iter().any(begins);
    let (mut rests, mut others) = (Vec::new(), Vec::new());
    for member in members {
        match member {
            Expr::Seq(mut items) if left && items.first() == Some(&Expr::Rule(rule)) => {
                items.remove(0);
                rests.push(Expr::seq(items));
            }
            Expr::Seq(mut items) if !left && items.last() == Some(&Expr::Rule(rule)) => {
                items.pop();
                rests.push(Expr::seq(items));
            }
            other => {
                debug_assert!(left || !ends(&other));
                others.push(other);
            }
        }
    }
    if rests.is_empty() {
        return Expr::alt(others);
    }
    let rests = Expr::alt(rests).repeat(0, None);
    let others = Expr::alt(others);
    Expr::seq(if left { vec![others, rests] } else { vec![rests, others] })
}

/// Inlines each rule that names no recursive rule into the rules that name it, as far as the bounds allow.
fn joined(bodies: &[Expr]) -> Vec<Expr> {
    let mut users = vec![Vec::new(); bodies.len()];
    let mut missing = vec![0; bodies.len()];
    for (rule, body) in bodies.iter().enumerate() {
        body.each_rule(&mut |named| {
            users[named].push(rule);
            missing[rule] += 1;
        });
    }
    let mut copies: Vec<Option<Expr>> = vec![None; bodies.len()];
    let mut result = bodies.to_vec();
    let mut added = 0;
    let mut open: Vec<usize> = (0..bodies.len()).filter(|rule| missing[*rule] == 0).collect();
    let copy = |body: &Expr, copies: &[Option<Expr>]| body.replaced(&mut |named| copies[named].clone().unwrap_or(Expr::Rule(named)));
    while let Some(rule) = open.pop() {
        let body = copy(&bodies[rule], &copies);
        let cost = body.size() * users[rule].len();
        if cost <= MAX_COPIES && added + cost <= MAX_ALL_COPIES && body.depth() <= MAX_DEPTH {
            added += cost;
            copies[rule] = Some(body.clone());
        }
        result[rule] = body;
        for user in std::mem::take(&mut users[rule]) {
            missing[user] -= 1;
            if missing[user] == 0 {
                open.push(user);
            }
        }
    }
    for rule in (0..bodies.len()).filter(|rule| missing[*rule] > 0) {
        result[rule] = copy(&bodies[rule], &copies);
    }
    result
}

//! [`Placeholder`]: a constant in a schema whose lexeme is replaced once the schema is compiled.

use std::collections::HashSet;

use llguidance::derivre::RegexAst;
use llguidance::earley::lexerspec::LexerSpec;

/// The range of whole numbers that serve as placeholders: they have 16 digits, and doubles hold them.
const LEAST: u64 = 1_000_000_000_000_000;
const COUNT: u64 = 8_000_000_000_000_000;
/// An odd number whose multiples modulo 2^64 have unlike digits: 2^64 divided by the golden ratio.
const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;
/// The number of a placeholder's last digits that identify it in an expression that a compiler has merged with others.
const TAIL: usize = 9;
/// The longest expression that is searched for a placeholder [bytes].
const MAX_SHOWN: usize = 1 << 24;

/// A number that represents a set of numbers.
#[derive(Clone, Debug)]
pub struct Placeholder {
    pub id: u64,
    texts: RegexAst,
}

impl Placeholder {
    /// The number of digits of a placeholder.
    pub const DIGITS: usize = 16;

    /// A placeholder for `texts`. `taken`: the numbers that it must not equal, to which its own is added.
    pub fn new(at: usize, taken: &mut HashSet<u64>, texts: RegexAst) -> Self {
        let mut id = LEAST + (at as u64 + 1).wrapping_mul(STRIDE) % COUNT;
        while !taken.insert(id) {
            id += 1;
        }
        Self { id, texts }
    }
}

/// Replaces the lexemes of placeholders with their numbers.
///
/// # Errors
/// A placeholder has become part of another lexeme.
pub fn replace(lexer: &mut LexerSpec, placeholders: &[Placeholder]) -> anyhow::Result<()> {
    for at in 0..lexer.lexemes.len() {
        let is_there = |one: &&Placeholder| lexer.has_forced_bytes(&lexer.lexemes[at], one.id.to_string().as_bytes());
        if let Some(one) = placeholders.iter().find(is_there) {
            replace_one(lexer, at, one.texts.clone())?;
            continue;
        }
        let text = lexer.lexemes[at].to_string(MAX_SHOWN, Some(lexer.regex_builder.exprset()));
        let is_inside = |one: &Placeholder| {
            let id = one.id.to_string();
            text.contains(&id[id.len() - TAIL..])
        };
        anyhow::ensure!(!placeholders.iter().any(is_inside), "large numbers cannot be combined with the other values here");
    }
    Ok(())
}

/// Replaces the lexeme at an index by another one of the same class. A lexeme knows its index, so it must be created at its final place.
fn replace_one(lexer: &mut LexerSpec, at: usize, texts: RegexAst) -> anyhow::Result<()> {
    let class = std::mem::replace(&mut lexer.current_class, lexer.lexemes[at].class());
    // White space is a filler for which the new lexeme cannot be mistaken.
    let filler = lexer.lexeme_spec(lexer.skip_id(lexer.current_class)).clone();
    let mut lexemes = std::mem::replace(&mut lexer.lexemes, vec![filler; at]);
    let added = lexer.add_greedy_lexeme(String::new(), texts, false, None, usize::MAX);
    let new = lexer.lexemes.pop();
    lexer.current_class = class;
    if let (Ok(_), Some(new)) = (&added, new) {
        lexemes[at] = new;
    }
    lexer.lexemes = lexemes;
    added.map(drop)
}

//! Translates GBNF, the grammars of llama.cpp's clients, to Lark's syntax. The result allows the same texts.
//!
//! A grammar in Lark's syntax has terminals, and the lexer takes the longest match of all terminals that are allowed at a place. GBNF has
//! only characters. So a regular part becomes a terminal only if taking the longest match allows the same texts (`conflict.rs`). Everything
//! else is matched character by character.
//!
//! ```text
//! text → parse → rules → simplify → rules, more of them regular → resolve → plan over terminals → write → Lark
//! ```

mod automaton;
mod chars;
mod conflict;
mod expr;
mod lark;
mod parse;
mod plan;
mod simplify;
#[cfg(test)]
mod tests;

/// Whether a grammar is written in GBNF. In Lark's syntax, a single colon follows the name of a rule.
pub fn is_gbnf(text: &str) -> bool {
    text.lines().any(|line| {
        let line = line.trim_start();
        let name = line.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_')).unwrap_or(line.len());
        name > 0 && line[name..].trim_start().starts_with("::=")
    })
}

/// Translates a grammar to a text of at most `most` bytes in Lark's syntax.
///
/// # Errors
/// The grammar is wrong. The text says why and where.
pub fn to_lark(text: &str, most: usize) -> Result<String, String> {
    lark::write(&conflict::resolve(&simplify::simplify(parse::parse(text)?)?)?, most)
}

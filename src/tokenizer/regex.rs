//! Parses the regular expressions of pre-tokenizers into the form that [`crate::scan`] runs: alternatives of runs of character classes,
//! with a group only at the end of an alternative. The models' own patterns need no more, and no text can make the scan overflow its stack.

use crate::chars::CharSet;

/// One step of an alternative.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    /// `min` to `max` characters of a set, as many as possible. With `back`, fewer characters if the rest would not match otherwise.
    Run { set: u32, min: u32, max: u32, back: bool },
    /// The first alternative that matches. If `optional` is set, the group may also match nothing.
    Group { alternatives: Vec<Vec<Node>>, optional: bool },
    /// Requires that the next character is in the set, or is not in it if `wanted` is false. The end of the text is in no set.
    Ahead { set: u32, wanted: bool },
    /// `$`
    End,
}

/// The sets of all patterns of a pre-tokenizer. A [`Node`] refers to a set by its bit.
#[derive(Default)]
pub(super) struct Sets(pub(super) Vec<CharSet>);

impl Sets {
    fn bit(&mut self, set: CharSet) -> Result<u32, String> {
        let index = self.0.iter().position(|known| *known == set).unwrap_or(self.0.len());
        if index == self.0.len() {
            if index == 32 {
                return Err("has more than 32 sets of characters".into());
            }
            self.0.push(set);
        }
        Ok(1 << index)
    }
}

/// Parses a pattern into its alternatives. An error says what is not supported, as the predicate of a sentence about the pattern.
pub(super) fn parse(source: &str, sets: &mut Sets) -> Result<Vec<Vec<Node>>, String> {
    let mut parser = Parser { chars: source.chars().collect(), at: 0, sets, any_case: false, depth: 0 };
    let alternatives = parser.alternatives()?;
    match parser.peek() {
        None => Ok(alternatives),
        Some(c) => Err(format!("`{c}` at {} is not supported", parser.at)),
    }
}

struct Parser<'a> {
    chars: Vec<char>,
    at: usize,
    sets: &'a mut Sets,
    any_case: bool,
    depth: usize,
}

impl Parser<'_> {
    const MAX_DEPTH: usize = 8;

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Result<char, String> {
        let c = self.peek().ok_or("ends too soon")?;
        self.at += 1;
        Ok(c)
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = self.chars[self.at..].iter().copied().take(text.len()).eq(text.chars());
        self.at += if found { text.len() } else { 0 };
        found
    }

    /// Takes the text before the next `end`, and `end` itself.
    fn up_to(&mut self, end: char) -> Result<String, String> {
        let length = self.chars[self.at..].iter().position(|c| *c == end).ok_or("ends too soon")?;
        let text = self.chars[self.at..][..length].iter().collect();
        self.at += length + 1;
        Ok(text)
    }

    fn alternatives(&mut self) -> Result<Vec<Vec<Node>>, String> {
        let mut all = vec![Vec::new()];
        while let Some(c) = self.peek().filter(|c| *c != ')') {
            if c == '|' {
                self.at += 1;
                all.push(Vec::new());
                continue;
            }
            let node = self.node()?;
            let alternative = all.last_mut().ok_or("is empty")?;
            if matches!(alternative.last(), Some(Node::Group { .. })) {
                return Err("has a group before an alternative's end".into());
            }
            alternative.push(node);
        }
        match all.iter().all(|alternative| matches_something(alternative)) {
            true => Ok(all),
            false => Err("has an alternative that matches nothing".into()),
        }
    }

    fn node(&mut self) -> Result<Node, String> {
        for (start, wanted) in [("(?!", false), ("(?=", true)] {
            if self.eat(start) {
                let set = self.set()?;
                return if self.eat(")") { Ok(Node::Ahead { set, wanted }) } else { Err("looks ahead further than a character".into()) };
            }
        }
        if self.eat("$") {
            return Ok(Node::End);
        }
        if self.peek() == Some('(') {
            return self.group();
        }
        let set = self.set()?;
        let (min, max, back) = self.quantifier()?;
        Ok(Node::Run { set, min, max, back })
    }

    fn group(&mut self) -> Result<Node, String> {
        let outer = self.any_case;
        self.any_case |= self.eat("(?i:");
        if self.any_case == outer && !self.eat("(?:") && !self.eat("(") {
            return Err("has an unknown group".into());
        }
        if self.peek() == Some('?') || self.depth == Self::MAX_DEPTH {
            return Err("has an unknown or too deep group".into());
        }
        self.depth += 1;
        let alternatives = self.alternatives()?;
        self.depth -= 1;
        self.any_case = outer;
        if !self.eat(")") {
            return Err("has a group without an end".into());
        }
        match self.quantifier()? {
            (1, 1, _) => Ok(Node::Group { alternatives, optional: false }),
            (0, 1, _) => Ok(Node::Group { alternatives, optional: true }),
            _ => Err("repeats a group".into()),
        }
    }

    /// Parses a quantifier: minimum, maximum, and whether the run may give characters back.
    fn quantifier(&mut self) -> Result<(u32, u32, bool), String> {
        let (min, max) = match self.peek() {
            Some('?') => (0, 1),
            Some('*') => (0, u32::MAX),
            Some('+') => (1, u32::MAX),
            Some('{') => return self.counts(),
            _ => return Ok((1, 1, true)),
        };
        self.at += 1;
        if self.peek() == Some('?') {
            return Err("has a lazy quantifier".into());
        }
        Ok((min, max, !self.eat("+")))
    }

    fn counts(&mut self) -> Result<(u32, u32, bool), String> {
        self.at += 1;
        let rest = self.up_to('}')?;
        let (min, max) = rest.split_once(',').unwrap_or((&rest, &rest));
        let min = min.parse().map_err(|_| format!("`{{{rest}}}` is not supported"))?;
        let max = if max.is_empty() { u32::MAX } else { max.parse().map_err(|_| format!("`{{{rest}}}` is not supported"))? };
        match self.peek() {
            Some('?' | '+' | '*') => Err("has two quantifiers in a row".into()),
            _ if min > max || max == 0 => Err(format!("`{{{rest}}}` is not supported")),
            _ => Ok((min, max, true)),
        }
    }

    /// Parses a class, an escape or a single character. Returns the bit of its set.
    fn set(&mut self) -> Result<u32, String> {
        let mut set = CharSet::default();
        match self.next()? {
            '[' => self.class(&mut set)?,
            '\\' => self.escape(&mut set).map(|_| ())?,
            '.' => {
                set.add_char('\n');
                set.negated = true;
            }
            c @ ('*' | '+' | '?' | '{' | '^' | ')' | '|') => return Err(format!("`{c}` at {} is not supported", self.at - 1)),
            c => set.add_char(c),
        }
        if self.any_case {
            set.fold_case();
        }
        self.sets.bit(set)
    }

    fn class(&mut self, set: &mut CharSet) -> Result<(), String> {
        set.negated = self.eat("^");
        let start = self.at;
        loop {
            let first = match self.next()? {
                ']' if self.at > start + 1 => return Ok(()),
                '[' => return Err("has a class within a class".into()),
                '&' if self.peek() == Some('&') => return Err("has an intersection of classes".into()),
                '\\' => match self.escape(set)? {
                    Some(c) => c,
                    None => continue,
                },
                c => c,
            };
            let is_range = self.peek() == Some('-') && self.chars.get(self.at + 1).is_some_and(|c| *c != ']');
            if !is_range {
                // An escaped character is already in the set. Adding it twice does no harm.
                set.add_char(first);
                continue;
            }
            self.at += 1;
            let last = match self.next()? {
                '\\' => self.escape(set)?.ok_or("has a range that ends in a class")?,
                c => c,
            };
            if first > last {
                return Err("has a range that ends before it starts".into());
            }
            set.add_range(first, last);
        }
    }

    /// Adds the escape after a backslash to the set. Returns the character if the escape means a single one.
    fn escape(&mut self, set: &mut CharSet) -> Result<Option<char>, String> {
        let c = match self.next()? {
            kind @ ('s' | 'S') => {
                set.add_white_space(kind == 'S');
                return Ok(None);
            }
            kind @ ('d' | 'D') => {
                set.add_category("Nd", kind == 'D');
                return Ok(None);
            }
            kind @ ('p' | 'P') => {
                let name: String = match self.next()? {
                    '{' => self.up_to('}')?,
                    c => return Err(format!("`\\{kind}{c}` is not supported")),
                };
                return if set.add_category(&name, kind == 'P') { Ok(None) } else { Err(format!("`\\{kind}{{{name}}}` is not supported")) };
            }
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => self.code(4)?,
            'x' => self.code(2)?,
            c if c.is_ascii_alphanumeric() => return Err(format!("`\\{c}` is not supported")),
            c => c,
        };
        set.add_char(c);
        Ok(Some(c))
    }

    fn code(&mut self, digits: usize) -> Result<char, String> {
        let text: String = self.chars[self.at..].iter().take(digits).collect();
        self.at = (self.at + digits).min(self.chars.len());
        u32::from_str_radix(&text, 16).ok().and_then(char::from_u32).ok_or_else(|| format!("has the invalid character code `{text}`"))
    }
}

/// Whether an alternative requires at least one character. Otherwise it would match between any two characters.
fn matches_something(alternative: &[Node]) -> bool {
    alternative.iter().any(|node| match node {
        Node::Run { min, .. } => *min > 0,
        Node::Group { optional, .. } => !optional,
        Node::Ahead { .. } | Node::End => false,
    })
}

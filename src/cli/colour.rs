//! Colours in output for people, if the terminal and the environment want them.

use std::io::IsTerminal;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    Bold,
    Dim,
    Red,
    Green,
    Yellow,
}

impl Colour {
    fn code(self) -> &'static str {
        match self {
            Self::Bold => "\x1b[1m",
            Self::Dim => "\x1b[2m",
            Self::Red => "\x1b[31m",
            Self::Green => "\x1b[32m",
            Self::Yellow => "\x1b[33m",
        }
    }
}

const END: &str = "\x1b[0m";

/// Whether a standard stream gets colours. `NO_COLOR` (set to anything) turns them off, and `CLICOLOR_FORCE` (not 0) turns them on in
/// pipes, too. `CLICOLOR=0` and the terminal type `dumb` also turn them off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colours(bool);

impl Colours {
    pub fn of_stdout() -> Self {
        Self::of(std::io::stdout().is_terminal())
    }

    pub fn of_stderr() -> Self {
        Self::of(std::io::stderr().is_terminal())
    }

    fn of(is_terminal: bool) -> Self {
        Self(wanted(is_terminal, |name| std::env::var(name).ok()))
    }

    pub fn paint(self, colour: Colour, text: &str) -> String {
        if self.0 && !text.is_empty() { format!("{}{text}{END}", colour.code()) } else { text.to_owned() }
    }

    /// The codes before and after a coloured text that is written in parts.
    pub fn around(self, colour: Colour) -> (&'static str, &'static str) {
        if self.0 { (colour.code(), END) } else { ("", "") }
    }
}

fn wanted(is_terminal: bool, variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    if set("NO_COLOR").is_some() {
        return false;
    }
    if let Some(force) = set("CLICOLOR_FORCE") {
        return force != "0" || is_terminal;
    }
    is_terminal && set("CLICOLOR").is_none_or(|value| value != "0") && set("TERM").is_none_or(|term| term != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_decides_about_colours() {
        let of = |terminal, set: &[(&str, &str)]| {
            wanted(terminal, |name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
        };
        assert!(of(true, &[]) && !of(false, &[]));
        assert!(!of(true, &[("NO_COLOR", "1")]) && !of(true, &[("NO_COLOR", "0"), ("CLICOLOR_FORCE", "1")]));
        assert!(of(true, &[("NO_COLOR", "")]), "set to nothing is not set");
        assert!(of(false, &[("CLICOLOR_FORCE", "1")]) && !of(false, &[("CLICOLOR_FORCE", "0")]));
        assert!(!of(true, &[("CLICOLOR", "0")]) && of(true, &[("CLICOLOR", "1")]) && !of(false, &[("CLICOLOR", "1")]));
        assert!(!of(true, &[("TERM", "dumb")]));
    }
}

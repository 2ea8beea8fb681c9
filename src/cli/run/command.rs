//! Parses lines of a chat: messages, commands, and texts of several lines.

use std::path::Path;

use crate::config::nearest_model;

/// Marks the beginning and the end of a text of several lines.
const QUOTES: &str = "\"\"\"";

#[derive(Debug, PartialEq, Eq)]
pub enum Command<'a> {
    Bye,
    Clear,
    Help,
    Set(&'a str),
    Show(&'a str),
    Save(&'a str),
    Load(&'a str),
    Model(&'a str),
    Image(&'a str),
    Unknown(&'a str),
}

pub const HELP: &str = "\
/set NAME VALUE   change a setting; /set alone lists them
/show [WHAT]      settings, system, messages, model or template
/model [NAME]     continue with another model; /model alone lists those on disk
/save FILE        save the conversation
/load FILE        continue a saved conversation
/image [FILE…]    attach pictures to the next message; /image alone lists them, /image clear drops them
/clear            forget the conversation
/?, /help         this list
/bye              leave (also Ctrl-D)

\"\"\" begins and ends a message of several lines. Ctrl-C ends an answer. Text typed meanwhile is kept for the next line. Tab completes \
commands, settings, models and paths. A message may also name pictures by their paths.";

pub const NAMES: [&str; 9] = ["/bye", "/clear", "/help", "/image", "/set", "/show", "/model", "/save", "/load"];

/// The arguments of `/show`.
pub const SHOWN: [&str; 5] = ["settings", "system", "messages", "model", "template"];

/// Parses a command. None if the line is a message, which may begin with a path.
pub fn parse(line: &str) -> Option<Command<'_>> {
    let line = line.trim();
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    if !name.starts_with('/') || name[1..].contains('/') || Path::new(name).is_file() {
        return None;
    }
    let rest = rest.trim();
    Some(match name {
        "/bye" | "/exit" | "/quit" => Command::Bye,
        "/clear" => Command::Clear,
        "/?" | "/help" => Command::Help,
        "/set" => Command::Set(rest),
        "/show" => Command::Show(rest),
        "/save" => Command::Save(rest),
        "/load" => Command::Load(rest),
        "/model" => Command::Model(rest),
        "/image" => Command::Image(rest),
        _ => Command::Unknown(name),
    })
}

/// The error for a command that does not exist.
pub fn unknown(name: &str) -> String {
    let near = nearest_model(NAMES.iter().map(|name| (*name, *name)), name);
    let hint = near.map_or(String::new(), |near| format!(" (did you mean {near}?)"));
    format!("{name} is not a command{hint}: /? lists the commands")
}

/// A text that may span several lines.
#[derive(Debug, PartialEq, Eq)]
pub enum ChatLine {
    Complete(String),
    /// The part before the quotes, and the text after them so far.
    Open(String, String),
}

impl ChatLine {
    /// Begins a text with its first line. Quotes count only at the start of a message or of a value for `/set`.
    pub fn begin(line: &str) -> Self {
        let before = match line.find(QUOTES) {
            Some(at) if line[..at].trim().is_empty() || is_value(&line[..at]) => &line[..at],
            _ => return Self::Complete(line.to_owned()),
        };
        Self::Open(before.to_owned(), String::new()).close_or_keep(&line[before.len() + QUOTES.len()..])
    }

    /// Adds a further line.
    pub fn add(self, line: &str) -> Self {
        match self {
            Self::Open(before, text) => Self::Open(before, text + "\n").close_or_keep(line),
            complete => complete,
        }
    }

    fn close_or_keep(self, part: &str) -> Self {
        match (self, part.find(QUOTES)) {
            (Self::Open(before, text), Some(end)) => {
                let after = &part[end + QUOTES.len()..];
                // A line break next to the quotes belongs to the quotes.
                let whole = text + &part[..end];
                let inner = whole.strip_prefix('\n').unwrap_or(&whole);
                let inner = inner.strip_suffix('\n').unwrap_or(inner);
                Self::Complete(format!("{before}{inner}{after}"))
            }
            (Self::Open(before, text), None) => Self::Open(before, text + part),
            (complete, _) => complete,
        }
    }
}

fn is_value(before: &str) -> bool {
    matches!(before.split_whitespace().collect::<Vec<_>>()[..], ["/set", _] | ["/set", "parameter", _])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_command_or_a_message() {
        assert_eq!(parse("hello /bye"), None);
        assert_eq!(parse("/usr/share/dict/words is a path"), None);
        assert_eq!(parse(" /bye "), Some(Command::Bye));
        assert_eq!(parse("/?"), Some(Command::Help));
        assert_eq!(parse("/set temperature 0.5 "), Some(Command::Set("temperature 0.5")));
        assert_eq!(parse("/set\tseed 7"), Some(Command::Set("seed 7")));
        assert_eq!(parse("/save a b.json"), Some(Command::Save("a b.json")));
        assert_eq!(parse("/image 'a b.png' c.png"), Some(Command::Image("'a b.png' c.png")));
        assert_eq!(parse("/"), Some(Command::Unknown("/")));
        assert!(unknown("/claer").contains("did you mean /clear?") && !unknown("/xyzzy").contains("mean"));
    }

    fn of(lines: &[&str]) -> ChatLine {
        lines[1..].iter().fold(ChatLine::begin(lines[0]), |entry, line| entry.add(line))
    }

    #[test]
    fn quotes_hold_several_lines_together() {
        let complete = |text: &str| ChatLine::Complete(text.to_owned());
        assert_eq!(of(&["plain"]), complete("plain"));
        assert_eq!(of(&["\"\"\"one\"\"\""]), complete("one"));
        assert_eq!(of(&["\"\"\"one", "  two", "\"\"\""]), complete("one\n  two"));
        assert_eq!(of(&["\"\"\"", "", "/bye", "\"\"\""]), complete("\n/bye"));
        assert_eq!(of(&["/set system \"\"\"Be", "brief.\"\"\""]), complete("/set system Be\nbrief."));
        assert_eq!(of(&["what is \"\"\" in Python?"]), complete("what is \"\"\" in Python?"), "in the middle they are text");
        assert!(matches!(of(&["\"\"\"one", "two"]), ChatLine::Open(..)));
    }
}

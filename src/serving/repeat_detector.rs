//! Ends an answer that must call a tool and starts to repeat itself. A small model may repeat the same call until its tokens run out.

use std::collections::VecDeque;

use chat::Piece;

/// Watches the calls of one answer. A call that begins like an earlier one is held back until it differs or is complete.
#[derive(Debug, Default)]
pub(super) struct RepeatDetector {
    /// The calls that were passed on, as (function, arguments).
    calls: Vec<(String, String)>,
    /// The call that is held back, as (number, function, arguments).
    held: Option<(usize, String, String)>,
}

impl RepeatDetector {
    /// Takes pieces. Returns the pieces to pass on, and whether the answer repeats itself.
    pub(super) fn filter(&mut self, pieces: Vec<Piece>) -> (Vec<Piece>, bool) {
        let (mut out, mut rest) = (Vec::new(), VecDeque::from(pieces));
        while let Some(piece) = rest.pop_front() {
            match piece {
                Piece::CallStart { call, name } => {
                    out.extend(self.release());
                    if self.calls.iter().any(|(other, _)| *other == name) {
                        self.held = Some((call, name, String::new()));
                    } else {
                        self.calls.push((name.clone(), String::new()));
                        out.push(Piece::CallStart { call, name });
                    }
                }
                Piece::Arguments { call, text } => match &mut self.held {
                    Some((_, name, held)) => {
                        held.push_str(&text);
                        let alike = |(other, arguments): &&(String, String)| other == name && arguments.starts_with(held.as_str());
                        match self.calls.iter().find(alike) {
                            // Arguments are an object, so nothing can follow a complete one.
                            Some((_, arguments)) if arguments.trim_end() == held.trim_end() && !held.trim().is_empty() => {
                                self.held = None;
                                return (out, true);
                            }
                            Some(_) => {}
                            None => out.extend(self.release()),
                        }
                    }
                    None => {
                        if let Some((_, arguments)) = self.calls.last_mut() {
                            arguments.push_str(&text);
                        }
                        out.push(Piece::Arguments { call, text });
                    }
                },
                other => out.push(other),
            }
        }
        (out, false)
    }

    /// Returns the pieces of the call that is held back.
    pub(super) fn release(&mut self) -> impl Iterator<Item = Piece> + use<> {
        let pieces = self.held.take().map(|(call, name, text)| {
            self.calls.push((name.clone(), text.clone()));
            [Piece::CallStart { call, name }, Piece::Arguments { call, text }]
        });
        pieces.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(call: usize, name: &str) -> Piece {
        Piece::CallStart { call, name: name.into() }
    }

    fn more(call: usize, text: &str) -> Piece {
        Piece::Arguments { call, text: text.into() }
    }

    #[test]
    fn a_call_that_is_made_again_ends_the_answer() {
        let mut repeats = RepeatDetector::default();
        let first = vec![start(0, "f"), more(0, "{\"a\":"), more(0, "1}")];
        assert_eq!(repeats.filter(first.clone()), (first, false));
        assert_eq!(repeats.filter(vec![start(1, "f"), more(1, "{\"a\"")]), (vec![], false));
        assert_eq!(repeats.filter(vec![more(1, ":1}")]), (vec![], true));
    }

    #[test]
    fn another_call_passes_whole() {
        let mut repeats = RepeatDetector::default();
        repeats.filter(vec![start(0, "f"), more(0, "{\"a\":1}")]);
        assert_eq!(repeats.filter(vec![start(1, "f"), more(1, "{\"a\":")]), (vec![], false));
        assert_eq!(repeats.filter(vec![more(1, "2"), more(1, "}")]), (vec![start(1, "f"), more(1, "{\"a\":2"), more(1, "}")], false));
        let other = vec![start(2, "g"), more(2, "{\"a\":1}")];
        assert_eq!(repeats.filter(other.clone()), (other, false), "another function");
        assert_eq!(repeats.filter(vec![start(3, "f"), more(3, "{\"a\":2}")]), (vec![], true), "the second call again");
    }

    #[test]
    fn what_is_held_back_at_the_end_is_released() {
        let mut repeats = RepeatDetector::default();
        repeats.filter(vec![start(0, "f"), more(0, "{\"a\":1}")]);
        repeats.filter(vec![start(1, "f"), more(1, "{\"a")]);
        assert_eq!(repeats.release().collect::<Vec<_>>(), [start(1, "f"), more(1, "{\"a")]);
    }
}

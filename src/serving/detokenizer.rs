//! Token bytes → text, piece by piece: never half a character, never a part of a stop text.

/// The text so far that may be shown, kept so that the pieces concatenate to `lossy UTF-8 of all bytes, cut at the first stop text to be complete`.
///
/// Each stop text is followed by its Knuth–Morris–Pratt automaton, whose state is the length of the longest beginning of the stop
/// text that the output ends with: exactly what must be held back.
pub struct Detokenizer {
    /// Bytes of a character that is not complete yet: at most 3.
    partial: Vec<u8>,
    /// Text held back because it may be the beginning of a stop text.
    held: String,
    stops: Vec<Matcher>,
}

/// What a token added.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// Text that may be shown; often empty.
    Text(String),
    /// The last text: a stop text followed it.
    Stopped(String),
}

struct Matcher {
    stop: Vec<u8>,
    /// Length of the longest proper border of each beginning.
    borders: Vec<usize>,
    /// Bytes matched.
    state: usize,
}

impl Matcher {
    fn new(stop: &str) -> Self {
        let stop = stop.as_bytes().to_vec();
        let mut borders = vec![0; stop.len()];
        for i in 1..stop.len() {
            let mut length = borders[i - 1];
            while length > 0 && stop[length] != stop[i] {
                length = borders[length - 1];
            }
            borders[i] = length + usize::from(stop[length] == stop[i]);
        }
        Self { stop, borders, state: 0 }
    }

    /// Is the stop text complete with this byte?
    fn step(&mut self, byte: u8) -> bool {
        while self.state > 0 && self.stop[self.state] != byte {
            self.state = self.borders[self.state - 1];
        }
        self.state += usize::from(self.stop[self.state] == byte);
        self.state == self.stop.len()
    }
}

impl Detokenizer {
    /// Empty stop texts are ignored.
    pub fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).map(|stop| Matcher::new(stop)).collect();
        Self { partial: Vec::new(), held: String::new(), stops }
    }

    /// Characters that were decoded and are not shown yet.
    pub fn num_held(&self) -> usize {
        self.held.chars().count()
    }

    /// A token's bytes. After `Stopped` nothing may be pushed.
    pub fn push(&mut self, bytes: &[u8]) -> Piece {
        self.partial.extend_from_slice(bytes);
        let text = take_text(&mut self.partial);
        self.filter(&text)
    }

    /// As [`Detokenizer::push`], but stop texts that begin before its end are not looked for.
    pub fn push_unstoppable(&mut self, bytes: &[u8]) -> String {
        self.partial.extend_from_slice(bytes);
        self.stops.iter_mut().for_each(|matcher| matcher.state = 0);
        std::mem::take(&mut self.held) + &take_text(&mut self.partial)
    }

    /// The end of the output: an incomplete character becomes U+FFFD, and what was held back is shown.
    pub fn finish(&mut self) -> Piece {
        let tail = String::from_utf8_lossy(&std::mem::take(&mut self.partial)).into_owned();
        match self.filter(&tail) {
            Piece::Text(text) => Piece::Text(text + &std::mem::take(&mut self.held)),
            stopped => stopped,
        }
    }

    fn filter(&mut self, text: &str) -> Piece {
        for (i, byte) in text.bytes().enumerate() {
            // Of stop texts that end here the longest counts: it leaves no part of another.
            let complete = self.stops.iter_mut().map(|matcher| if matcher.step(byte) { matcher.stop.len() } else { 0 }).max();
            if let Some(length @ 1..) = complete {
                self.held.push_str(&text[..=i]);
                self.held.truncate(self.held.len() - length);
                return Piece::Stopped(std::mem::take(&mut self.held));
            }
        }
        self.held.push_str(text);
        let keep = self.stops.iter().map(|matcher| matcher.state).max().unwrap_or(0);
        let tail = self.held.split_off(self.held.len() - keep);
        Piece::Text(std::mem::replace(&mut self.held, tail))
    }
}

/// Takes all text but an incomplete character at the end out of `bytes`; what is no UTF-8 becomes U+FFFD, as in `String::from_utf8_lossy`.
fn take_text(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut start = 0;
    loop {
        match std::str::from_utf8(&bytes[start..]) {
            Ok(rest) => {
                text.push_str(rest);
                bytes.clear();
                return text;
            }
            Err(error) => {
                let end = start + error.valid_up_to();
                text.push_str(&String::from_utf8_lossy(&bytes[start..end]));
                match error.error_len() {
                    Some(length) => {
                        text.push('\u{fffd}');
                        start = end + length;
                    }
                    None => {
                        bytes.drain(..end);
                        return text;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "detokenizer_tests.rs"]
mod tests;

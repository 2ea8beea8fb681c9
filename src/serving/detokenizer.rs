//! Decodes the bytes of tokens to text. Never returns half a character or a part of a stop text.

/// A streaming decoder. The returned texts concatenate to the lossy UTF-8 of all bytes, cut at the first complete stop text.
///
/// Each stop text has a Knuth–Morris–Pratt automaton. The automaton's state is the length of the longest prefix of the stop text that the
/// output ends with. Exactly this suffix of the output must be held back.
pub struct Detokenizer {
    /// Bytes of an incomplete character, at most 3.
    partial: Vec<u8>,
    /// Text that is held back because a stop text may begin in it.
    held: String,
    stops: Vec<Matcher>,
    /// Whether the found stop text stays at the end of the text.
    keeps_stop: bool,
    /// The index of the stop text that was found.
    found: Option<usize>,
}

/// The text that a token adds.
#[derive(Debug, PartialEq, Eq)]
pub enum Decoded {
    /// Text that is final. Often empty.
    Text(String),
    /// The last text: a stop text follows it.
    Stopped(String),
}

struct Matcher {
    /// The index of the stop text in the list.
    index: usize,
    stop: Vec<u8>,
    /// The length of the longest proper border of each prefix of the stop text.
    borders: Vec<usize>,
    /// The number of bytes matched.
    state: usize,
}

impl Matcher {
    fn new(index: usize, stop: &str) -> Self {
        let stop = stop.as_bytes().to_vec();
        let mut borders = vec![0; stop.len()];
        for i in 1..stop.len() {
            let mut length = borders[i - 1];
            while length > 0 && stop[length] != stop[i] {
                length = borders[length - 1];
            }
            borders[i] = length + usize::from(stop[length] == stop[i]);
        }
        Self { index, stop, borders, state: 0 }
    }

    /// Takes the next byte. Returns whether that byte completes the stop text.
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
        let stops = stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty()).map(|(index, stop)| Matcher::new(index, stop)).collect();
        Self { partial: Vec::new(), held: String::new(), stops, keeps_stop: false, found: None }
    }

    /// Sets whether the found stop text stays at the end of the text.
    pub fn keeping_stop(self, keeps_stop: bool) -> Self {
        Self { keeps_stop, ..self }
    }

    /// The index of the stop text that was found.
    pub fn found(&self) -> Option<usize> {
        self.found
    }

    /// The number of characters held back.
    pub fn num_held(&self) -> usize {
        self.held.chars().count()
    }

    /// Takes a token's bytes. Nothing may be pushed after `Stopped`.
    pub fn push(&mut self, bytes: &[u8]) -> Decoded {
        self.partial.extend_from_slice(bytes);
        let text = take_text(&mut self.partial);
        self.filter(&text)
    }

    /// Like [`Detokenizer::push`], but ignores stop texts that begin before the token's end.
    pub fn push_unstoppable(&mut self, bytes: &[u8]) -> String {
        self.partial.extend_from_slice(bytes);
        self.stops.iter_mut().for_each(|matcher| matcher.state = 0);
        std::mem::take(&mut self.held) + &take_text(&mut self.partial)
    }

    /// Takes the end of the output. An incomplete character becomes U+FFFD, and the held text is returned.
    pub fn finish(&mut self) -> Decoded {
        let tail = String::from_utf8_lossy(&std::mem::take(&mut self.partial)).into_owned();
        match self.filter(&tail) {
            Decoded::Text(text) => Decoded::Text(text + &std::mem::take(&mut self.held)),
            stopped => stopped,
        }
    }

    fn filter(&mut self, text: &str) -> Decoded {
        for (i, byte) in text.bytes().enumerate() {
            // If several stop texts end here, the longest counts, so that no part of one is left.
            let complete =
                self.stops.iter_mut().filter_map(|matcher| matcher.step(byte).then_some((matcher.stop.len(), matcher.index))).max();
            if let Some((length, index)) = complete {
                self.found = Some(index);
                self.held.push_str(&text[..=i]);
                self.held.truncate(self.held.len() - if self.keeps_stop { 0 } else { length });
                return Decoded::Stopped(std::mem::take(&mut self.held));
            }
        }
        self.held.push_str(text);
        let keep = self.stops.iter().map(|matcher| matcher.state).max().unwrap_or(0);
        let tail = self.held.split_off(self.held.len() - keep);
        Decoded::Text(std::mem::replace(&mut self.held, tail))
    }
}

/// Takes all text out of `bytes` except an incomplete character at the end. Invalid UTF-8 becomes U+FFFD, as in `String::from_utf8_lossy`.
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

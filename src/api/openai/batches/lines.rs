//! The lines of a batch's files.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

/// Reads a file line by line, each of at most `max` bytes.
pub struct Lines {
    file: BufReader<File>,
    max: usize,
    number: usize,
}

/// A line as it stands in the file.
#[derive(Debug, PartialEq)]
pub struct Raw {
    /// From 1.
    pub number: usize,
    /// Empty if the line is too long.
    pub bytes: Vec<u8>,
    pub is_too_long: bool,
}

impl Lines {
    pub fn open(path: &Path, max: usize) -> io::Result<Self> {
        Ok(Self { file: BufReader::with_capacity(1 << 16, File::open(path)?), max, number: 0 })
    }

    /// The next line that is not blank.
    pub fn next(&mut self) -> io::Result<Option<Raw>> {
        loop {
            let mut bytes = Vec::new();
            let length = self.file.by_ref().take(self.max as u64 + 1).read_until(b'\n', &mut bytes)?;
            if length == 0 {
                return Ok(None);
            }
            self.number += 1;
            let is_too_long = length > self.max && bytes.last() != Some(&b'\n');
            if is_too_long {
                self.skip_rest()?;
                bytes.clear();
            }
            if self.number == 1 && bytes.starts_with(b"\xef\xbb\xbf") {
                bytes.drain(..3);
            }
            if is_too_long || !bytes.trim_ascii().is_empty() {
                return Ok(Some(Raw { number: self.number, bytes, is_too_long }));
            }
        }
    }

    fn skip_rest(&mut self) -> io::Result<()> {
        loop {
            let piece = self.file.fill_buf()?;
            let (end, length) = (piece.iter().position(|byte| *byte == b'\n'), piece.len());
            self.file.consume(end.map_or(length, |end| end + 1));
            if end.is_some() || length == 0 {
                return Ok(());
            }
        }
    }
}

/// A line of the input that was found valid.
#[derive(Debug, Deserialize)]
pub struct Task {
    pub custom_id: String,
    pub body: Value,
}

/// The ids of the lines that a file of results has. A last line that a crash has cut is removed from the file.
pub fn done(path: &Path) -> io::Result<HashSet<String>> {
    #[derive(Deserialize)]
    struct Done {
        custom_id: String,
    }
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(HashSet::new()),
        file => file?,
    };
    let (mut reader, mut ids, mut good) = (BufReader::new(&file), HashSet::new(), 0);
    loop {
        let mut line = Vec::new();
        let length = reader.read_until(b'\n', &mut line)?;
        let Some(done) = Some(&line).filter(|line| line.ends_with(b"\n")).and_then(|line| serde_json::from_slice::<Done>(line).ok()) else {
            break;
        };
        good += length as u64;
        ids.insert(done.custom_id);
    }
    file.set_len(good)?;
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8], max: usize) -> Vec<(usize, Option<String>)> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, text).unwrap();
        let mut lines = Lines::open(&path, max).unwrap();
        let text = |raw: Raw| (raw.number, (!raw.is_too_long).then(|| String::from_utf8(raw.bytes).unwrap().trim_end().to_owned()));
        std::iter::from_fn(|| lines.next().unwrap()).map(text).collect()
    }

    #[test]
    fn blank_lines_count_and_are_left_out() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(lines(b"\xef\xbb\xbfa\r\n\n  \nb", 10), [(1, some("a")), (4, some("b"))]);
        assert_eq!(lines(b"", 10), []);
    }

    #[test]
    fn a_line_that_is_too_long_does_not_hide_the_next() {
        let long = [vec![b'x'; 200_000], b"\nab\n".to_vec(), vec![b'y'; 11]].concat();
        assert_eq!(lines(&long, 10), [(1, None), (2, Some("ab".into())), (3, None)]);
        assert_eq!(lines(b"0123456789\nb", 10).len(), 2);
    }

    #[test]
    fn a_cut_result_is_removed_and_not_done() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("output.jsonl");
        let whole = "{\"custom_id\":\"a\",\"x\":1}\n{\"custom_id\":\"b\"}\n";
        for cut in ["", "{\"custom_id\":\"c\"}", "{\"custom", "\0\0\0\n{\"custom_id\":\"d\"}\n"] {
            std::fs::write(&path, format!("{whole}{cut}")).unwrap();
            let mut ids: Vec<_> = done(&path).unwrap().into_iter().collect();
            ids.sort();
            assert_eq!((ids, std::fs::read_to_string(&path).unwrap().as_str()), (vec!["a".to_owned(), "b".to_owned()], whole));
        }
        assert!(done(&dir.path().join("none")).unwrap().is_empty());
    }
}

//! The lines of a batch's files.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

/// The byte order mark that some programs write before the first line.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// Reads a file line by line. Each line has at most `max` bytes.
pub struct Lines {
    file: BufReader<File>,
    max: usize,
    number: usize,
    /// The offset of the next line [bytes].
    at: u64,
}

/// A line as read from the file.
#[derive(Debug, PartialEq)]
pub struct RawLine {
    /// The number of the line, from 1.
    pub number: usize,
    /// The offset of the line in the file [bytes].
    start: u64,
    /// The content. Empty if the line is too long.
    pub bytes: Vec<u8>,
    pub is_too_long: bool,
}

impl Lines {
    pub fn open(path: &Path, max: usize) -> io::Result<Self> {
        Ok(Self { file: BufReader::with_capacity(1 << 16, File::open(path)?), max, number: 0, at: 0 })
    }

    /// Returns the next line that is not blank.
    #[expect(clippy::should_implement_trait, reason = "a read may fail, which ends the lines")]
    pub fn next(&mut self) -> io::Result<Option<RawLine>> {
        loop {
            let mut bytes = Vec::new();
            let length = self.file.by_ref().take((self.max as u64).saturating_add(1)).read_until(b'\n', &mut bytes)?;
            if length == 0 {
                return Ok(None);
            }
            let start = self.at;
            (self.number, self.at) = (self.number + 1, start + length as u64);
            let is_too_long = length > self.max && bytes.last() != Some(&b'\n');
            if is_too_long {
                self.skip_rest()?;
                bytes.clear();
            }
            let mark = if start == 0 && bytes.starts_with(BOM) { BOM.len() } else { 0 };
            bytes.drain(..mark);
            if is_too_long || !bytes.trim_ascii().is_empty() {
                return Ok(Some(RawLine { number: self.number, start: start + mark as u64, bytes, is_too_long }));
            }
        }
    }

    fn skip_rest(&mut self) -> io::Result<()> {
        loop {
            let piece = self.file.fill_buf()?;
            let (end, length) = (piece.iter().position(|byte| *byte == b'\n'), piece.len());
            let skipped = end.map_or(length, |end| end + 1);
            self.file.consume(skipped);
            self.at += skipped as u64;
            if end.is_some() || length == 0 {
                return Ok(());
            }
        }
    }
}

/// A line of the input that is to run. While it waits, only its position in the file is held.
#[derive(Clone, Debug)]
pub struct Task {
    pub custom_id: String,
    start: u64,
    length: usize,
}

impl Task {
    /// Returns the next line that is not done. The input was valid when it was checked. If a line has become unreadable since, its number
    /// serves as its id, so that the batch can still end.
    pub fn next(lines: &mut Lines, done: &HashSet<String>) -> io::Result<Option<Self>> {
        while let Some(raw) = lines.next()? {
            let head = serde_json::from_slice::<LineId>(&raw.bytes);
            let custom_id = head.map_or_else(|_| format!("line {}", raw.number), |head| head.custom_id);
            if !done.contains(&custom_id) {
                return Ok(Some(Self { custom_id, start: raw.start, length: raw.bytes.len() }));
            }
        }
        Ok(None)
    }

    /// Reads the line's body. `None` if the file no longer has it.
    pub fn body(&self, mut input: &File) -> Option<Map<String, Value>> {
        #[derive(Deserialize)]
        struct Line {
            body: Map<String, Value>,
        }
        let mut bytes = vec![0; self.length];
        input.seek(SeekFrom::Start(self.start)).and_then(|_| input.read_exact(&mut bytes)).ok()?;
        serde_json::from_slice::<Line>(&bytes).ok().map(|line| line.body)
    }
}

/// The id of a line in an input or results file.
#[derive(Deserialize)]
struct LineId {
    custom_id: String,
}

/// Returns the ids of the lines in a results file. Removes a last line that a crash has cut off.
pub fn done(path: &Path) -> io::Result<HashSet<String>> {
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(HashSet::new()),
        file => file?,
    };
    let (mut reader, mut ids, mut good) = (BufReader::new(&file), HashSet::new(), 0);
    loop {
        let mut line = Vec::new();
        let length = reader.read_until(b'\n', &mut line)?;
        let Some(done) = Some(&line).filter(|line| line.ends_with(b"\n")).and_then(|line| serde_json::from_slice::<LineId>(line).ok())
        else {
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
    use serde_json::json;

    use super::*;

    fn lines(text: &[u8], max: usize) -> Vec<(usize, Option<String>)> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, text).unwrap();
        let mut lines = Lines::open(&path, max).unwrap();
        let text = |raw: RawLine| (raw.number, (!raw.is_too_long).then(|| String::from_utf8(raw.bytes).unwrap().trim_end().to_owned()));
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
    fn a_task_finds_its_body_and_one_that_is_lost_keeps_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("input.jsonl");
        let line = |id: &str, size: usize| json!({"custom_id": id, "body": {"prompt": "x".repeat(size)}}).to_string();
        let text = format!("\u{feff}{}\r\n\n{}\nnonsense\n{}", line("a", 1), line("long", 100_000), line("b", 2));
        std::fs::write(&path, text).unwrap();
        let (mut lines, done) = (Lines::open(&path, usize::MAX).unwrap(), HashSet::from(["none".to_owned()]));
        let tasks: Vec<_> = std::iter::from_fn(|| Task::next(&mut lines, &done).unwrap()).collect();
        assert_eq!(tasks.iter().map(|task| task.custom_id.as_str()).collect::<Vec<_>>(), ["a", "long", "line 4", "b"]);
        let file = File::open(&path).unwrap();
        let sizes: Vec<_> = tasks.iter().map(|task| task.body(&file).map(|body| body["prompt"].as_str().unwrap().len())).collect();
        assert_eq!(sizes, [Some(1), Some(100_000), None, Some(2)]);
        let done = HashSet::from(["a", "long", "line 4"].map(str::to_owned));
        let mut lines = Lines::open(&path, usize::MAX).unwrap();
        assert_eq!(Task::next(&mut lines, &done).unwrap().unwrap().custom_id, "b");
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

//! A results file, to which whole lines are appended.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// How often results are synced to disk. A crash of the process alone loses nothing.
const SYNC: Duration = Duration::from_millis(500);

pub struct Sink {
    file: File,
    /// The length of all complete lines [bytes].
    good: u64,
    synced: Instant,
    /// Whether the last attempt to sync has failed.
    is_unsafe: bool,
}

impl Sink {
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        let good = file.seek(SeekFrom::End(0))?;
        Ok(Self { file, good, synced: Instant::now(), is_unsafe: false })
    }

    /// The size of all complete lines [bytes].
    pub fn num_bytes(&self) -> u64 {
        self.good
    }

    /// Appends a line. If it does not fit, the file is left unchanged. A line that is written but cannot be synced is kept and synced
    /// later, since appending it again would duplicate it.
    pub fn append(&mut self, line: &[u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.good))?;
        let written = self.file.write_all(line);
        if let Err(error) = written {
            self.file.set_len(self.good)?;
            return Err(error);
        }
        self.good += line.len() as u64;
        if self.synced.elapsed() >= SYNC
            && let (was_unsafe, Err(error)) = (self.is_unsafe, self.sync())
            && !was_unsafe
        {
            tracing::error!("cannot sync the results of a batch to disk, and a power failure would lose them: {error}");
        }
        Ok(())
    }

    /// Syncs all lines to disk, so that a power failure does not lose them.
    pub fn sync(&mut self) -> io::Result<()> {
        self.synced = Instant::now();
        let synced = self.file.sync_data();
        self.is_unsafe = synced.is_err();
        synced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_written_but_not_synced_is_not_written_again() {
        // This device accepts all writes and cannot be synced.
        let mut sink = Sink::open(Path::new("/dev/null")).unwrap();
        for _ in 0..3 {
            sink.synced -= SYNC;
            sink.append(b"line\n").unwrap();
        }
        assert_eq!(sink.num_bytes(), 15);
        assert!(sink.sync().is_err(), "the end of a batch waits for it");
    }

    #[test]
    fn a_line_that_is_not_written_can_be_appended_again() {
        let Ok(mut sink) = Sink::open(Path::new("/dev/full")) else { return };
        assert!(sink.append(b"line\n").is_err());
        assert_eq!(sink.num_bytes(), 0);
    }
}

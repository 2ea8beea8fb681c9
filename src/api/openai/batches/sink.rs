//! A file of results, which grows by whole lines.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// How often results are made safe from a loss of power. Whatever ends the process itself loses nothing.
const SYNC: Duration = Duration::from_millis(500);

pub struct Sink {
    file: File,
    /// The length of the whole lines.
    good: u64,
    synced: Instant,
    /// The last attempt to sync has failed.
    is_unsafe: bool,
}

impl Sink {
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        let good = file.seek(SeekFrom::End(0))?;
        Ok(Self { file, good, synced: Instant::now(), is_unsafe: false })
    }

    /// The size of the whole lines. In bytes.
    pub fn num_bytes(&self) -> u64 {
        self.good
    }

    /// Appends a line. If it does not fit, nothing of it stays. A line that is written but cannot be synced stays and is synced later:
    /// appended again, it would stand in the file twice.
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
            tracing::error!("results of a batch are not safe from a loss of power for now: {error}");
        }
        Ok(())
    }

    /// Makes all lines safe from a loss of power.
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
        // The device takes everything and cannot be synced.
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

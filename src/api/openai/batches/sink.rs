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
}

impl Sink {
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        let good = file.seek(SeekFrom::End(0))?;
        Ok(Self { file, good, synced: Instant::now() })
    }

    /// Appends a line. If it does not fit, nothing of it stays.
    pub fn append(&mut self, line: &[u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.good))?;
        let written = self.file.write_all(line);
        if let Err(error) = written {
            self.file.set_len(self.good)?;
            return Err(error);
        }
        self.good += line.len() as u64;
        if self.synced.elapsed() >= SYNC {
            self.sync()?;
        }
        Ok(())
    }

    pub fn sync(&mut self) -> io::Result<()> {
        self.synced = Instant::now();
        self.file.sync_data()
    }
}

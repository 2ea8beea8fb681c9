//! An unfinished download: `NAME.partial`, hashed while it is written, and `NAME.resume.json`, which lets a later pull continue it.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::digest::hex;
use super::error::PullError;
use super::free_space::free_bytes;
use super::own_file::{open_own, write_own};
use super::piece::Piece;
use config::Source;

/// Appended to the file's name until the download is complete.
pub const PARTIAL: &str = ".partial";
const RESUME: &str = ".resume.json";
/// Far above any real note [bytes].
const MAX_NOTE: u64 = 1 << 20;
/// Space to leave free on disk if the download's length is not known in advance [bytes].
const SPARE: u64 = 64 << 20;

/// The state that a later pull needs to continue the download.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Resume {
    source: Source,
    sha256: Option<String>,
    /// A strong ETag, which lets a download continue from any byte (RFC 9110, If-Range).
    etag: Option<String>,
    /// Number of wheels whose member is complete in the file.
    parts: usize,
    /// Total size of those members [bytes].
    bytes: u64,
}

/// An unfinished download.
pub struct Partial {
    path: PathBuf,
    /// The file that holds `resume`.
    note: PathBuf,
    file: File,
    hasher: Sha256,
    len: u64,
    /// The exact size of the complete file, if it is known.
    size: Option<u64>,
    /// The most bytes that may be written.
    cap: u64,
    resume: Resume,
}

impl Partial {
    /// Opens the unfinished download of the same source in `dir`, or starts a new one.
    pub fn open(dir: &Path, piece: &Piece) -> Result<Self, PullError> {
        let (path, note) = (dir.join(piece.name.clone() + PARTIAL), dir.join(piece.name.clone() + RESUME));
        let fresh = Resume { source: piece.source.clone(), sha256: piece.sha256.clone(), etag: None, parts: 0, bytes: 0 };
        let resume = outside::read_regular(&note, MAX_NOTE)
            .ok()
            .and_then(|text| serde_json::from_slice::<Resume>(&text).ok())
            .filter(|resume| resume.source == fresh.source && resume.sha256 == fresh.sha256)
            .unwrap_or(fresh);
        let file = open_own(&path).map_err(|error| PullError::disk(&path, error))?;
        let free = free_bytes(dir).map_or(u64::MAX, |free| free.saturating_sub(SPARE));
        let mut partial =
            Self { path, note, file, hasher: Sha256::new(), len: 0, size: piece.size, cap: piece.size.unwrap_or(free), resume };
        partial.rewind()?;
        Ok(partial)
    }

    /// Hashes the bytes that the download can continue from, and drops the rest.
    fn rewind(&mut self) -> Result<(), PullError> {
        let fault = |error| PullError::disk(&self.path, error);
        let on_disk = self.file.metadata().map_err(fault)?.len();
        let keep = if self.resume.etag.is_some() { on_disk } else { self.resume.bytes };
        if keep > on_disk || keep > self.cap {
            return self.restart();
        }
        if keep < on_disk {
            self.file.set_len(keep).map_err(fault)?;
        }
        let mut buffer = vec![0; 1 << 20];
        let mut reader = (&self.file).take(keep);
        loop {
            match reader.read(&mut buffer).map_err(fault)? {
                0 => break,
                n => self.hasher.update(&buffer[..n]),
            }
        }
        self.len = keep;
        Ok(())
    }

    /// Drops all bytes.
    pub fn restart(&mut self) -> Result<(), PullError> {
        let fault = |error| PullError::disk(&self.path, error);
        if self.file.metadata().map_err(fault)?.len() > 0 {
            self.file.set_len(0).map_err(fault)?;
        }
        std::io::Seek::rewind(&mut self.file).map_err(fault)?;
        self.hasher = Sha256::new();
        self.len = 0;
        self.resume = Resume { etag: None, parts: 0, bytes: 0, ..self.resume.clone() };
        self.save()
    }

    pub fn bytes(&self) -> u64 {
        self.len
    }

    pub fn size(&self) -> Option<u64> {
        self.size
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn etag(&self) -> Option<&str> {
        self.resume.etag.as_deref()
    }

    pub fn parts(&self) -> usize {
        self.resume.parts
    }

    /// Remembers the ETag of the file whose bytes follow.
    pub fn set_etag(&mut self, etag: Option<String>) -> Result<(), PullError> {
        self.resume.etag = etag;
        self.save()
    }

    /// Marks the bytes so far as complete members, from which a later pull continues.
    pub fn end_part(&mut self) -> Result<(), PullError> {
        self.file.sync_data().map_err(|error| PullError::disk(&self.path, error))?;
        self.resume.parts += 1;
        self.resume.bytes = self.len;
        self.save()
    }

    fn save(&self) -> Result<(), PullError> {
        let text = serde_json::to_vec(&self.resume).expect("plain data");
        write_own(&self.note, &text).map(drop).map_err(|error| PullError::disk(&self.note, error))
    }

    /// Appends bytes. If the file would become larger than allowed, deletes the file and fails.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), PullError> {
        if self.len + bytes.len() as u64 > self.cap {
            let (expected, found) = (self.cap, format!("more than {}", self.cap));
            self.discard();
            return Err(PullError::Size { expected, found });
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.file.write(rest) {
                Ok(n) => {
                    self.hasher.update(&rest[..n]);
                    self.len += n as u64;
                    rest = &rest[n..];
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(PullError::disk(&self.path, error)),
            }
        }
        Ok(())
    }

    /// Fails if the disk has no room for a file of `total` bytes.
    pub fn check_room(&self, total: u64) -> Result<(), PullError> {
        let need = total.saturating_sub(self.len);
        match self.path.parent().and_then(free_bytes) {
            Some(free) if free < need => {
                Err(PullError::Refused(format!("{}: the download needs {need} bytes, but only {free} are free", self.path.display())))
            }
            _ => Ok(()),
        }
    }

    /// Checks size and digest, syncs the file and gives it its final name. Returns the size and the SHA-256. A file that fails a check is
    /// deleted.
    pub fn finish(self, piece: &Piece) -> Result<(u64, String), PullError> {
        if let Some(size) = self.size.filter(|size| *size != self.len) {
            self.discard();
            return Err(PullError::Size { expected: size, found: self.len.to_string() });
        }
        let found = hex(&self.hasher.clone().finalize());
        if let Some(expected) = piece.sha256.as_deref().filter(|expected| !expected.eq_ignore_ascii_case(&found)) {
            self.discard();
            return Err(PullError::Digest { expected: expected.into(), found });
        }
        self.file.sync_all().map_err(|error| PullError::disk(&self.path, error))?;
        std::fs::rename(&self.path, self.path.with_file_name(&piece.name)).map_err(|error| PullError::disk(&self.path, error))?;
        let _ = std::fs::remove_file(&self.note);
        Ok((self.len, found))
    }

    /// Deletes the files. Missing files are no error.
    pub fn discard(&self) {
        let _ = std::fs::remove_file(&self.path);
        let _ = std::fs::remove_file(&self.note);
    }
}

//! Files that clients upload by their digest, before a model is made of them.

use std::fs::{File, Metadata};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use super::download::{PullError, free_bytes, hex, open_own, refuse_link};
use super::made::UNFINISHED;
use super::store::Store;

const BLOBS: &str = ".blobs";
/// Space to leave free on disk [bytes].
const SPARE: u64 = 64 << 20;
/// How long an upload is kept that no model uses.
const KEPT: Duration = Duration::from_hours(24);

/// Reads a digest of the form `sha256:` and 64 hex digits. Returns the digits in lower case.
pub fn blob_digest(text: &str) -> Result<String, String> {
    let digits = text.strip_prefix("sha256:").or_else(|| text.strip_prefix("sha256-"));
    match digits.filter(|digits| digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())) {
        Some(digits) => Ok(digits.to_ascii_lowercase()),
        None => {
            let shown: String = text.chars().take(80).collect();
            Err(format!("invalid digest format: `{}` is not sha256: and 64 hex digits", shown.escape_debug()))
        }
    }
}

/// An upload that is not complete yet. It is removed unless it is finished.
pub struct NewBlob {
    file: File,
    path: PathBuf,
    place: PathBuf,
    digest: String,
    hasher: Sha256,
    size: u64,
    most: u64,
}

impl Store {
    /// The path of an uploaded file, if it is there. `digest`: 64 lower-case hex digits.
    pub fn blob(&self, digest: &str) -> Option<PathBuf> {
        Some(self.root.join(BLOBS).join(format!("sha256-{digest}"))).filter(|path| path.symlink_metadata().is_ok_and(|meta| meta.is_file()))
    }

    /// Begins an upload. `size`: the size that the client announces, if any [bytes].
    ///
    /// # Errors
    /// The disk has no room for the file, or refuses.
    pub fn new_blob(&self, digest: &str, size: Option<u64>) -> Result<NewBlob, PullError> {
        let folder = self.root.join(BLOBS);
        refuse_link(&folder).and_then(|()| std::fs::create_dir_all(&folder)).map_err(|error| PullError::disk(&folder, error))?;
        self.remove_leftovers();
        let most = free_bytes(&folder).map_or(u64::MAX, |free| free.saturating_sub(SPARE));
        if let Some(size) = size.filter(|size| *size > most) {
            return Err(PullError::Refused(format!("the file has {size} bytes, but only {most} are free")));
        }
        let path = folder.join(format!(".partial-{digest}-{}-{}", std::process::id(), next_number()));
        let file = open_own(&path).map_err(|error| PullError::disk(&path, error))?;
        let place = folder.join(format!("sha256-{digest}"));
        Ok(NewBlob { file, path, place, digest: digest.to_owned(), hasher: Sha256::new(), size: 0, most: size.unwrap_or(most) })
    }

    /// Removes what is a day old and of no use: uploads of which no model was made, and what a process that crashed has left.
    pub fn remove_leftovers(&self) {
        let is_old = |meta: &Metadata| meta.modified().is_ok_and(|time| SystemTime::now().duration_since(time).is_ok_and(|age| age > KEPT));
        for (path, meta) in entries(&self.root.join(BLOBS)) {
            if meta.is_file() && meta.nlink() == 1 && is_old(&meta) {
                remove(&path);
            }
        }
        for (path, meta) in entries(&self.root) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            match UNFINISHED.iter().any(|prefix| name.starts_with(prefix)) && is_old(&meta) {
                true if meta.is_dir() => drop(std::fs::remove_dir_all(&path)),
                true => remove(&path),
                false => {}
            }
        }
    }

    /// Removes the uploads of a model that has been deleted, unless another model uses them.
    /// Returns the number of bytes freed.
    pub(super) fn remove_blobs(&self, digests: &[String]) -> u64 {
        let mut freed = 0;
        for path in digests.iter().filter_map(|digest| self.blob(digest)) {
            if let Some(meta) = path.symlink_metadata().ok().filter(|meta| meta.nlink() == 1) {
                freed += meta.len();
                remove(&path);
            }
        }
        freed
    }
}

/// The entries of a folder. Links are not followed.
fn entries(folder: &Path) -> Vec<(PathBuf, Metadata)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter_map(|path| Some((path.clone(), path.symlink_metadata().ok()?))).collect()
}

/// Numbers the uploads of this process.
fn next_number() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn remove(path: &Path) {
    // A file that stays takes space, and nothing else.
    let _ = std::fs::remove_file(path);
}

impl NewBlob {
    /// Appends bytes. Blocks.
    ///
    /// # Errors
    /// The file becomes larger than announced, or than the disk has room for.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), PullError> {
        self.size += bytes.len() as u64;
        if self.size > self.most {
            return Err(PullError::Refused(format!("the file is larger than {} bytes", self.most)));
        }
        self.hasher.update(bytes);
        self.file.write_all(bytes).map_err(|error| PullError::disk(&self.path, error))
    }

    /// Checks the digest and gives the file its name. Blocks.
    ///
    /// # Errors
    /// The digest differs.
    pub fn finish(self) -> Result<(), PullError> {
        let found = hex(&self.hasher.clone().finalize());
        if found != self.digest {
            return Err(PullError::Refused(format!("digest mismatch, expected \"sha256:{}\", got \"sha256:{found}\"", self.digest)));
        }
        let fault = |error| PullError::disk(&self.place, error);
        self.file.sync_all().map_err(fault)?;
        std::fs::rename(&self.path, &self.place).map_err(fault)
    }
}

impl Drop for NewBlob {
    fn drop(&mut self) {
        // A finished file has another name.
        remove(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(bytes: &[u8]) -> String {
        hex(&Sha256::digest(bytes))
    }

    #[test]
    fn digests_have_one_form() {
        let digits = "AB".repeat(32);
        assert_eq!(blob_digest(&format!("sha256:{digits}")), Ok(digits.to_lowercase()));
        assert_eq!(blob_digest(&format!("sha256-{digits}")), Ok(digits.to_lowercase()));
        for bad in ["", "sha256:", &digits, &format!("sha256:{}", &digits[1..]), "sha256:../../../etc/passwd", &format!("md5:{digits}")] {
            assert!(blob_digest(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_upload_appears_only_if_its_digest_is_right() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        let right = digest(b"hello");
        let upload = |bytes: &[u8], size: Option<u64>| {
            let mut blob = store.new_blob(&right, size)?;
            blob.write(bytes).and_then(|()| blob.finish())
        };
        assert!(upload(b"other", None).unwrap_err().to_string().contains("digest mismatch, expected \"sha256:"));
        assert!(upload(b"hello", Some(3)).unwrap_err().to_string().contains("larger than 3 bytes"));
        assert!(upload(b"hello", Some(u64::MAX)).unwrap_err().to_string().contains("are free"));
        drop(store.new_blob(&right, None).unwrap());
        assert!(store.blob(&right).is_none() && std::fs::read_dir(dir.path().join(BLOBS)).unwrap().next().is_none(), "nothing is left");
        upload(b"hello", Some(5)).unwrap();
        assert_eq!(std::fs::read(store.blob(&right).unwrap()).unwrap(), b"hello");
        store.remove_leftovers();
        assert!(store.blob(&right).is_some(), "a fresh upload waits for its model");
        let link = dir.path().join("link");
        std::fs::hard_link(store.blob(&right).unwrap(), &link).unwrap();
        store.remove_blobs(std::slice::from_ref(&right));
        assert!(store.blob(&right).is_some(), "a model uses it");
        std::fs::remove_file(link).unwrap();
        store.remove_blobs(std::slice::from_ref(&right));
        assert!(store.blob(&right).is_none());
    }
}

//! File names of models that are split over several files: `NAME-00001-of-0000N.gguf`, with the keys `split.no`, `split.count` and
//! `split.tensors.count`.

use std::path::{Path, PathBuf};

/// The components of one part's file name.
#[derive(Debug, PartialEq, Eq)]
pub struct PartName {
    stem: String,
    /// The number of this part, counted from 1.
    pub no: usize,
    /// Number of parts.
    pub count: usize,
}

impl PartName {
    /// Parses the file name of a part. None if it does not have that form.
    pub fn parse(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = name.rsplit_once("-of-")?;
        let (stem, no) = rest.rsplit_once('-')?;
        let number = |digits: &str| (digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok())?;
        let (no, count) = (number(no)?, number(count)?);
        (no >= 1 && no <= count).then(|| PartName { stem: stem.to_owned(), no, count })
    }

    /// The path of part `no`, in the directory of `path`.
    pub fn sibling(&self, path: &Path, no: usize) -> PathBuf {
        path.with_file_name(format!("{}-{no:05}-of-{:05}.gguf", self.stem, self.count))
    }
}

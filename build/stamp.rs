//! Tells whether a CUDA file must be compiled again, by its text, the text of every file that it includes, the compiler and its flags.
//! Shared by the build script and its test.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// A number that changes with the text of `file`, with the text of any file that it includes, directly or indirectly, and with `flags`.
/// Quoted includes are searched next to the including file, then in `include`. Other includes belong to the compiler, whose version is
/// among the flags.
///
/// # Errors
/// If `file` cannot be read. A quoted include that is not found is left to the compiler, which reports it.
pub fn stamp(file: &Path, include: &Path, flags: &[String]) -> Result<u64, String> {
    let mut hasher = DefaultHasher::new();
    flags.hash(&mut hasher);
    let (mut pending, mut seen) = (vec![file.to_owned()], BTreeSet::new());
    while let Some(path) = pending.pop() {
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        text.hash(&mut hasher);
        let folders = [path.parent().unwrap_or(include), include];
        for name in text.lines().filter_map(quoted_include) {
            let found = folders.iter().filter_map(|folder| folder.join(name).canonicalize().ok()).find(|found| found.is_file());
            pending.extend(found.filter(|found| seen.insert(found.clone())));
        }
    }
    Ok(hasher.finish())
}

/// Returns `x.cuh` for the line `#include "x.cuh"`.
fn quoted_include(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
    rest.trim_start().strip_prefix('"')?.split_once('"').map(|(name, _)| name)
}

/// The folder of the object of `file`, named by the file's path below `root` and by its stamp.
pub fn object_folder(out: &Path, root: &Path, file: &Path, stamp: u64) -> PathBuf {
    let name = file.strip_prefix(root).unwrap_or(file).with_extension("").to_string_lossy().replace(['/', '\\'], "-");
    out.join("kernels").join(format!("{name}-{stamp:016x}"))
}

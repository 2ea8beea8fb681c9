//! Reads the project's text files for the rules of `tidy`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// Folders without source files of the project.
const SKIPPED: &[&str] = &["target", "node_modules", "__pycache__", "shared"];

/// A file of the project, with its path relative to the root.
pub struct Source {
    pub path: String,
    pub text: String,
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every text file of the project, sorted by path. Build outputs, environments and hidden folders other than `.ci` are left out.
static FILES: LazyLock<Vec<Source>> = LazyLock::new(|| {
    let mut paths = Vec::new();
    walk(root(), &mut paths);
    paths.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).ok()?;
        let path = path.strip_prefix(root()).expect("below the root").to_string_lossy().replace('\\', "/");
        Some(Source { path, text })
    };
    paths.into_iter().filter_map(read).collect()
});

/// Every text file whose path begins with `folder`, sorted by path.
pub fn files(folder: &str) -> Vec<&'static Source> {
    let is_below = |path: &str| folder.is_empty() || path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
    FILES.iter().filter(|file| is_below(&file.path)).collect()
}

fn walk(dir: &Path, out: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let hidden = name.starts_with('.') && name != ".ci" && !entry.path().is_file();
        if hidden || SKIPPED.contains(&name.as_str()) {
            continue;
        }
        if entry.path().is_dir() {
            walk(&entry.path(), out);
        } else {
            out.push(entry.path());
        }
    }
}

/// Every Rust file below `folder`.
pub fn rust_files(folder: &str) -> Vec<&'static Source> {
    files(folder).into_iter().filter(|file| file.path.ends_with(".rs")).collect()
}

/// The line of a byte offset, counted from 1.
pub fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count() + 1
}

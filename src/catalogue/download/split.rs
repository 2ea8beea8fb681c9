//! Names of the files of a split model: `NAME-00001-of-00003.gguf` and so on.

use std::path::Path;

use gguf::PartName;

/// All files of a split model, given the path or URL of any of them. None if the name does not belong to a split model.
pub fn parts_of(path: &str) -> Option<Vec<String>> {
    let (folder, file) = path.rsplit_once('/').map_or(("", path), |(folder, file)| (&path[..folder.len() + 1], file));
    let part = PartName::parse(Path::new(file)).filter(|part| part.count > 1)?;
    Some((1..=part.count).map(|no| format!("{folder}{}", part.sibling(Path::new(file), no).display())).collect())
}

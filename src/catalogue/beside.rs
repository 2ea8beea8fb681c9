//! Finds picture encoders that lie beside a model's file.

use std::path::{Path, PathBuf};

use gguf::{GgufFile, PartName};

/// The mmproj files in a model's folder, by their names.
#[derive(Debug, Default, PartialEq)]
pub struct MmprojBeside {
    /// Those named after the model: `mmproj-NAME.gguf`, `NAME.mmproj.gguf`, `NAME-mmproj.gguf` or `NAME-mmproj-….gguf`.
    pub named: Vec<PathBuf>,
    /// All others.
    pub others: Vec<PathBuf>,
}

/// The most files of a folder that are looked at, so that a folder of a million files does not hold up a load.
const MOST: usize = 100_000;
/// The word that names of such files have.
const WORD: &str = "mmproj";

/// Whether a file's name is that of a picture encoder.
pub fn is_mmproj_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.ends_with(".gguf") && name.contains(WORD)
}

/// Finds the mmproj files beside a model's file, sorted by name. Opens none.
pub fn mmproj_beside(model: &Path) -> MmprojBeside {
    let Some(name) = model.file_name().and_then(|name| name.to_str()) else { return MmprojBeside::default() };
    let stem = name.strip_suffix(".gguf").unwrap_or(name);
    // The parts of a split model have one name.
    let stem = match PartName::parse(Path::new(name)).filter(|part| part.count > 1) {
        Some(_) => stem.rsplitn(4, '-').nth(3).unwrap_or(stem),
        None => stem,
    };
    let folder = model.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().take(MOST);
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    paths.retain(|path| file_name(path).is_some_and(|other| other != name && is_mmproj_name(other)));
    paths.sort();
    let (named, others) = paths.into_iter().partition(|path| file_name(path).is_some_and(|name| is_named_after(name, stem)));
    MmprojBeside { named, others }
}

fn file_name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

fn is_named_after(name: &str, stem: &str) -> bool {
    let (name, stem) = (name.to_ascii_lowercase(), stem.to_ascii_lowercase());
    let of_model = name
        .strip_prefix(&stem)
        .is_some_and(|rest| rest == format!(".{WORD}.gguf") || rest == format!("-{WORD}.gguf") || rest.starts_with(&format!("-{WORD}-")));
    of_model || name == format!("{WORD}-{stem}.gguf")
}

/// The one picture encoder beside a model's file: the one that is named after the model, or else the only one.
pub(super) fn only_mmproj(model: &Path) -> Option<PathBuf> {
    let is_encoder = |path: &PathBuf| GgufFile::open(path).is_ok_and(|file| file.architecture() == Some("clip"));
    let MmprojBeside { named, others } = mmproj_beside(model);
    let [named, others] = [named, others].map(|paths| paths.into_iter().filter(is_encoder).collect::<Vec<_>>());
    match (&named[..], &others[..]) {
        ([one], _) | ([], [one]) => Some(one.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_beside_a_model_are_told_by_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let of = |model: &str, files: &[&str]| {
            let folder = dir.path().join(model);
            std::fs::create_dir(&folder).unwrap();
            files.iter().chain([&model]).for_each(|name| std::fs::write(folder.join(name), b"GGUF").unwrap());
            let names = |paths: Vec<PathBuf>| paths.iter().map(|path| file_name(path).unwrap().to_owned()).collect::<Vec<_>>();
            let MmprojBeside { named, others } = mmproj_beside(&folder.join(model));
            (names(named), names(others))
        };
        let files =
            ["mmproj-A-Q4.gguf", "A-Q4.mmproj.gguf", "A-Q4-mmproj-f16.gguf", "A-Q4-mmproj.gguf", "mmproj-F16.gguf", "B.gguf", "mmproj.txt"];
        let named = ["A-Q4-mmproj-f16.gguf", "A-Q4-mmproj.gguf", "A-Q4.mmproj.gguf", "mmproj-A-Q4.gguf"];
        assert_eq!(of("A-Q4.gguf", &files), (named.map(str::to_owned).to_vec(), vec!["mmproj-F16.gguf".to_owned()]));
        let (named, others) = of("C-00001-of-00002.gguf", &["mmproj-C.gguf", "mmproj-C2.gguf"]);
        assert_eq!((named, others), (vec!["mmproj-C.gguf".to_owned()], vec!["mmproj-C2.gguf".to_owned()]));
        assert_eq!(of("mmproj-D.gguf", &[]), (vec![], vec![]), "a file is not beside itself");
        assert_eq!(mmproj_beside(&dir.path().join("gone/x.gguf")), MmprojBeside::default());
    }
}

//! Lists a repository of the Hugging Face hub and picks the files of a model.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::error::PullError;
use super::http;
use super::progress::Progress;
use super::split::parts_of;
use super::tools::Tools;

/// The advice for a model in safetensors format.
pub const SAFETENSORS: &str = "it holds safetensors, but Penstock runs GGUF: look for a conversion (often a repository of the same name \
    that ends in -GGUF), or convert it yourself";

/// The most pages of a listing that are read.
const MAX_PAGES: usize = 16;
const MAX_PAGE_BYTES: usize = 8 << 20;
/// The type that is chosen if the user names none.
const DEFAULT_QUANT: &str = "Q4_K_M";

/// A file of a repository.
#[derive(Clone, Debug, PartialEq)]
pub struct HubFile {
    pub path: String,
    pub size: u64,
    /// Known only for large files, which the hub stores outside the repository.
    pub sha256: Option<String>,
}

#[derive(Deserialize)]
struct HubEntry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

/// Lists the files of a repository at a revision.
pub fn list(repo: &str, revision: &str, tools: &Tools, progress: &Progress) -> Result<Vec<HubFile>, PullError> {
    let hub = tools.hub()?;
    let mut url = format!("{hub}/api/models/{repo}/tree/{}?recursive=true", revision.replace('/', "%2F"));
    let mut listed = Vec::new();
    for _ in 0..MAX_PAGES {
        let remote = http::Remote { url: url.clone(), token: tools.hf_token.clone(), backoff: tools.backoff };
        let page = http::fetch_text(&remote, MAX_PAGE_BYTES, progress)?;
        listed.extend(files_of(&page.text).map_err(|fault| PullError::Refused(format!("hf {repo}: {fault}")))?);
        match page.next {
            Some(next) if next.starts_with(&format!("{hub}/")) => url = next,
            _ => break,
        }
    }
    Ok(listed)
}

/// Checks the digest of a large file and converts it to lower case. A malformed one is an error, because the download could not be checked.
fn digest(path: &str, oid: &str) -> Result<String, String> {
    if oid.len() == 64 && oid.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(oid.to_ascii_lowercase());
    }
    let oid: String = oid.chars().take(80).collect();
    Err(format!("the hub gives {path} the digest {oid:?}, expected 64 hex digits"))
}

/// Parses one page of a listing.
pub fn files_of(page: &str) -> Result<Vec<HubFile>, String> {
    let entries: Vec<HubEntry> = serde_json::from_str(page).map_err(|error| format!("the hub's listing is malformed: {error}"))?;
    let files = entries.into_iter().filter(|entry| entry.kind == "file" && plain(&entry.path));
    let listed = files.map(|entry| match entry.lfs {
        Some(lfs) => Ok(HubFile { size: lfs.size, sha256: Some(digest(&entry.path, &lfs.oid)?), path: entry.path }),
        None => Ok(HubFile { path: entry.path, size: entry.size, sha256: None }),
    });
    listed.collect()
}

/// Picks the files of a model: those of the split model that `file` belongs to, or else those of the model of type `quant`.
pub fn pick<'a>(listed: &'a [HubFile], file: Option<&str>, quant: Option<&str>) -> Result<Vec<&'a HubFile>, String> {
    match file {
        Some(file) => siblings(listed, file),
        None => choose(listed, quant),
    }
}

/// The types of mmproj files, the preferred one first. Weights of 16 bits lose nothing, and those of 32 bits take twice as much memory.
const MMPROJ_TYPES: [&str; 4] = ["f16", "bf16", "q8_0", "f32"];

/// Picks the picture encoder of the model that begins with the file `model`: one in its folder before one elsewhere, and then the one of
/// the preferred type. None if the repository has none.
pub fn pick_mmproj<'a>(listed: &'a [HubFile], model: &str) -> Option<&'a HubFile> {
    let folder = |path: &str| path.rsplit_once('/').map_or(String::new(), |(folder, _)| folder.to_owned());
    let rank = |one: &HubFile| {
        let kind = MMPROJ_TYPES.iter().position(|kind| names(&one.path, kind)).unwrap_or(MMPROJ_TYPES.len());
        (folder(&one.path) != folder(model), !folder(&one.path).is_empty(), kind, one.path.clone())
    };
    let is_one = |one: &&HubFile| {
        let path = one.path.to_ascii_lowercase();
        path.ends_with(".gguf") && path.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == "mmproj")
    };
    listed.iter().filter(is_one).min_by_key(|one| rank(one))
}

/// Whether a path is safe in a URL. Other paths are ignored, because the hub's answer may have been tampered with.
fn plain(path: &str) -> bool {
    path.chars().all(|c| c.is_ascii_alphanumeric() || "._-+/@".contains(c)) && path.split('/').all(|part| !part.is_empty() && part != "..")
}

/// All files of the split model that `file` belongs to.
fn siblings<'a>(listed: &'a [HubFile], file: &str) -> Result<Vec<&'a HubFile>, String> {
    let find = |path: &String| listed.iter().find(|one| one.path == *path).ok_or_else(|| format!("{path} is not in the repository"));
    parts_of(file).unwrap_or_else(|| vec![file.to_owned()]).iter().map(find).collect()
}

/// Chooses the files of the model of type `quant`.
fn choose<'a>(listed: &'a [HubFile], quant: Option<&str>) -> Result<Vec<&'a HubFile>, String> {
    // keyed by the first file's path, so that a split model counts once
    let mut models: BTreeMap<String, &HubFile> = BTreeMap::new();
    for one in listed.iter().filter(|one| one.path.to_ascii_lowercase().ends_with(".gguf") && !is_accessory(&one.path)) {
        models.entry(parts_of(&one.path).map_or_else(|| one.path.clone(), |parts| parts[0].clone())).or_insert(one);
    }
    if models.is_empty() {
        let has = |end: &str| listed.iter().any(|one| one.path.ends_with(end));
        return Err(if has(".safetensors") {
            SAFETENSORS.into()
        } else if listed.iter().any(|one| one.path.to_ascii_lowercase().ends_with(".gguf")) {
            "its GGUF files are adapters or projectors, not models".into()
        } else {
            "it holds no GGUF file".into()
        });
    }
    let paths: Vec<&String> = models.keys().collect();
    let of_type = |quant: &str| paths.iter().copied().filter(|path| names(path, quant)).collect::<Vec<_>>();
    let found = match quant {
        Some(quant) => of_type(quant),
        None if paths.len() == 1 => paths.clone(),
        None => of_type(DEFAULT_QUANT),
    };
    // if folders hold further versions, the file at the top is meant
    let top: Vec<&String> = found.iter().copied().filter(|path| !path.contains('/')).collect();
    match (&found[..], &top[..]) {
        ([one], _) | (_, [one]) => siblings(listed, one),
        ([], _) => Err(format!("no file is of type {}; there are {}", quant.unwrap_or(DEFAULT_QUANT), shown(&paths))),
        _ => Err(format!("several files are of type {}, name one of them: {}", quant.unwrap_or(DEFAULT_QUANT), shown(&found))),
    }
}

fn shown(paths: &[&String]) -> String {
    const MOST: usize = 40;
    let mut text = paths.iter().take(MOST).map(|path| path.as_str()).collect::<Vec<_>>().join(", ");
    if paths.len() > MOST {
        text += &format!(" and {} more", paths.len() - MOST);
    }
    text
}

/// Whether a file is a LoRA adapter, a vision projector or an importance matrix, which repositories keep next to models.
pub(super) fn is_accessory(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    let mut words = path.split(|c: char| !c.is_ascii_alphanumeric());
    words.any(|word| ["mmproj", "lora", "adapter", "imatrix"].contains(&word))
}

/// Whether a path names a type as a whole word, in any case: `Q4_K_M` does not name `Q4_K`.
fn names(path: &str, quant: &str) -> bool {
    let (path, quant) = (path.to_ascii_lowercase(), quant.to_ascii_lowercase());
    let inside = |c: char| c.is_ascii_alphanumeric() || c == '_';
    path.match_indices(&quant).any(|(at, _)| !path[..at].ends_with(inside) && !path[at + quant.len()..].starts_with(inside))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mmproj_of_the_preferred_type_in_the_model_s_folder_is_picked() {
        let pick = |paths: &[&str], model: &str| {
            let listed: Vec<_> = paths.iter().map(|path| HubFile { path: (*path).into(), size: 1, sha256: None }).collect();
            pick_mmproj(&listed, model).map(|one| one.path.clone())
        };
        let all = ["m-Q4_K_M.gguf", "mmproj-F32.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-Q8_0.gguf", "mmproj.txt"];
        assert_eq!(pick(&all, "m-Q4_K_M.gguf").as_deref(), Some("mmproj-F16.gguf"));
        assert_eq!(pick(&["mmproj-m-f32.gguf", "m.mmproj-Q8_0.gguf"], "m.gguf").as_deref(), Some("m.mmproj-Q8_0.gguf"));
        let folders = ["small/mmproj-F16.gguf", "large/mmproj-F32.gguf", "large/m.gguf"];
        assert_eq!(pick(&folders, "large/m.gguf").as_deref(), Some("large/mmproj-F32.gguf"));
        assert_eq!(pick(&["mmproj-f32.gguf", "old/mmproj-f16.gguf"], "Q4_K_M/m.gguf").as_deref(), Some("mmproj-f32.gguf"));
        assert_eq!(pick(&["m.gguf", "lora-f16.gguf", "notmmproj.gguf"], "m.gguf"), None);
    }

    #[test]
    fn types_are_whole_words_and_digests_are_hex() {
        for path in ["m-Q4_K_M.gguf", "m.q4_k_m.gguf", "Q4_K_M/m-00001-of-00002.gguf", "m-Q4_K_M-00001-of-00002.gguf"] {
            assert!(names(path, "Q4_K_M") && !names(path, "Q4_K") && !names(path, "K_M"), "{path}");
        }
        assert!(names("gpt-oss-MXFP4.gguf", "mxfp4") && !names("m-IQ4_XS.gguf", "Q4_XS"));
        assert!(digest("m", &"AB".repeat(32)).is_ok_and(|digest| digest == "ab".repeat(32)));
        for oid in ["../../x", "", &"f".repeat(63), &"g".repeat(64)] {
            assert!(digest("m", oid).is_err(), "{oid}");
        }
        assert!(!names("mmproj-m-BF16.gguf", "f16"));
        assert!(is_accessory("mmproj-model-f16.gguf") && is_accessory("x/my_lora.gguf") && !is_accessory("Flora-7B-Q8_0.gguf"));
    }
}

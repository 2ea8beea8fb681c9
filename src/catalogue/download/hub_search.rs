//! Searches the hub for repositories of GGUF files, and lists the models of one.

use serde::Deserialize;

use super::error::PullError;
use super::http;
use super::hub::{self, HubFile};
use super::progress::Progress;
use super::split::parts_of;
use super::tools::Tools;
use config::{ModelEntry, Source, check_entry};

/// The most repositories that a search returns.
const MOST_FOUND: usize = 20;
/// The most models of a repository that are listed.
const MOST_LISTED: usize = 100;
const MAX_PAGE_BYTES: usize = 2 << 20;

/// A repository that a search has found.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct HubRepository {
    /// `owner/name`
    pub id: String,
    #[serde(default)]
    pub downloads: u64,
}

/// A model of a repository.
#[derive(Clone, Debug, PartialEq)]
pub struct HubModel {
    /// The name by which it can be fetched: `hf:owner/repo/file.gguf`.
    pub name: String,
    /// Size of all its files [bytes].
    pub size: u64,
}

/// Finds repositories with GGUF files, the most downloaded first.
pub fn search_hub(words: &str, tools: &Tools) -> Result<Vec<HubRepository>, PullError> {
    let hub = tools.hub()?;
    let query = encoded(words);
    let url = format!("{hub}/api/models?search={query}&filter=gguf&sort=downloads&direction=-1&limit={MOST_FOUND}");
    let remote = http::Remote { url, token: tools.hf_token.clone(), backoff: tools.backoff };
    let page = http::fetch_text(&remote, MAX_PAGE_BYTES, &Progress::silent())?;
    let found: Vec<HubRepository> =
        serde_json::from_str(&page.text).map_err(|error| PullError::Refused(format!("the hub's answer is malformed: {error}")))?;
    // The hub's answer may have been tampered with: a name that could not be fetched is left out.
    Ok(found.into_iter().filter(|repository| can_be_named(&format!("hf:{}", repository.id))).take(MOST_FOUND).collect())
}

/// Lists the models of a repository, the smallest first.
pub fn models_of_hub(repository: &str, tools: &Tools) -> Result<Vec<HubModel>, PullError> {
    if !can_be_named(&format!("hf:{repository}")) {
        return Err(PullError::Refused(format!("{repository:?} is not the name of a repository: expected owner/name")));
    }
    let mut models = models_in(repository, &hub::list(repository, "main", tools, &Progress::silent())?);
    models.retain(|model| can_be_named(&model.name));
    models.truncate(MOST_LISTED);
    Ok(models)
}

/// The models among the files of a repository. The parts of a split model count as one.
fn models_in(repository: &str, files: &[HubFile]) -> Vec<HubModel> {
    let mut models: Vec<HubModel> = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".gguf") && !hub::is_accessory(&file.path)) {
        let first = parts_of(&file.path).and_then(|parts| parts.into_iter().next()).unwrap_or_else(|| file.path.clone());
        let name = format!("hf:{repository}/{first}");
        match models.iter_mut().find(|model| model.name == name) {
            Some(model) => model.size = model.size.saturating_add(file.size),
            None => models.push(HubModel { name, size: file.size }),
        }
    }
    models.sort_by_key(|model| model.size);
    models
}

/// Whether a name of the hub passes the checks for names that users type.
fn can_be_named(name: &str) -> bool {
    let Some((owner, rest)) = name.strip_prefix("hf:").and_then(|name| name.split_once('/')) else { return false };
    let (repo, file) = rest.split_once('/').map_or((rest, None), |(repo, file)| (repo, Some(file.to_owned())));
    let source = Source::Hf { repo: format!("{owner}/{repo}"), file, quant: None, revision: "main".into() };
    check_entry(&ModelEntry::new(name, source)).is_ok()
}

/// Percent-encodes a part of a query.
fn encoded(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_split_model_are_one_model() {
        let file = |path: &str, size| HubFile { path: path.into(), size, sha256: None };
        let parts = [1, 2].map(|no| file(&format!("big-0000{no}-of-00002.gguf"), 40));
        let files = [&parts[..], &[file("small-Q4_0.gguf", 7), file("mmproj-f16.gguf", 1), file("README.md", 1)]].concat();
        let models: Vec<_> = models_in("o/r", &files).into_iter().map(|model| (model.name, model.size)).collect();
        assert_eq!(models, [("hf:o/r/small-Q4_0.gguf".to_owned(), 7), ("hf:o/r/big-00001-of-00002.gguf".to_owned(), 80)]);
    }

    #[test]
    fn words_are_encoded_and_names_are_checked() {
        assert_eq!(encoded("a b&c=é/"), "a%20b%26c%3D%C3%A9%2F");
        assert!(can_be_named("hf:o/r") && can_be_named("hf:o/r/sub/m.gguf"));
        for bad in ["hf:o", "o/r", "hf:o/..", "hf:o/r/../x.gguf", "hf:o/r s", "hf:o/r/a?b"] {
            assert!(!can_be_named(bad), "{bad}");
        }
    }
}

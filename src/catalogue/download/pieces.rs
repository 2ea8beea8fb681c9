//! Finds the files of a catalogue entry's model.

use std::time::Duration;

use super::error::PullError;
use super::hub::{self, HubFile};
use super::piece::{MMPROJ, MODEL, Piece};
use super::progress::Progress;
use super::split::parts_of;
use super::tools::Tools;
use config::{ModelEntry, Source};

/// The files of an entry's model.
pub struct Pieces {
    /// Those of the weights, in order.
    pub weights: Vec<Piece>,
    /// The picture encoder, if the entry or the repository has one.
    pub mmproj: Option<Piece>,
}

/// Returns the files of an entry's model. Asks the hub if the entry does not name them.
pub fn pieces(entry: &ModelEntry, tools: &Tools, progress: &Progress) -> Result<Pieces, PullError> {
    let single = |source: Source| Piece { name: MODEL.into(), source, sha256: entry.sha256.clone(), size: entry.size };
    let Source::Hf { repo, file, quant, revision } = &entry.source else {
        return Ok(Pieces { weights: elsewhere(entry, single)?, mmproj: named_mmproj(entry) });
    };
    let named = file.as_deref().filter(|file| parts_of(file).is_none());
    if let (Some(file), Some(_)) = (named, &entry.mmproj) {
        return Ok(Pieces { weights: vec![single(at_hub(repo, file, revision))], mmproj: named_mmproj(entry) });
    }
    if let Some(file) = named {
        let listed = listed_once(entry, tools, progress);
        let one = listed.iter().find(|one| one.path == file);
        let weights = vec![single(at_hub(repo, file, revision)).known_as(one)];
        return Ok(Pieces { weights, mmproj: mmproj_among(&listed, file, (repo, revision)) });
    }
    let listed = hub::list(repo, revision, tools, progress)?;
    let files = hub::pick(&listed, file.as_deref(), quant.as_deref());
    let files = files.map_err(|fault| PullError::Refused(format!("hf {repo}: {fault}")))?;
    let mmproj = match &entry.mmproj {
        Some(_) => named_mmproj(entry),
        None => mmproj_among(&listed, &files[0].path, (repo, revision)),
    };
    if let [one] = files[..] {
        let weights = vec![single(at_hub(repo, &one.path, revision)).known_as(Some(one))];
        return Ok(Pieces { weights, mmproj });
    }
    one_file_only(entry)?;
    Ok(Pieces { weights: numbered(files.iter().map(|one| (at_hub(repo, &one.path, revision), Some(*one)))), mmproj })
}

/// The picture encoder that belongs to a model on disk: the one that the entry names, or that of the repository.
pub fn mmproj_piece(entry: &ModelEntry, tools: &Tools, progress: &Progress) -> Option<Piece> {
    let Source::Hf { repo, file, quant, revision } = &entry.source else { return named_mmproj(entry) };
    if entry.mmproj.is_some() {
        return named_mmproj(entry);
    }
    let listed = listed_once(entry, tools, progress);
    let model = hub::pick(&listed, file.as_deref(), quant.as_deref()).ok()?;
    mmproj_among(&listed, &model.first()?.path, (repo, revision))
}

/// The files of an entry's repository. A model is fetched without them, so a hub that does not list them is asked only once.
fn listed_once(entry: &ModelEntry, tools: &Tools, progress: &Progress) -> Vec<HubFile> {
    let Source::Hf { repo, revision, .. } = &entry.source else { return Vec::new() };
    let once = Tools { backoff: Duration::ZERO, ..tools.clone() };
    // If the hub cannot be reached, the fetch of the model says so.
    hub::list(repo, revision, &once, progress).unwrap_or_default()
}

/// The picture encoder that an entry names, if it is to be fetched.
fn named_mmproj(entry: &ModelEntry) -> Option<Piece> {
    let file = entry.mmproj.as_ref()?.fetched()?;
    Some(Piece { name: MMPROJ.into(), source: file.source.clone(), sha256: file.sha256.clone(), size: file.size })
}

/// The picture encoder of a repository for one of its models.
fn mmproj_among(listed: &[HubFile], model: &str, (repo, revision): (&str, &str)) -> Option<Piece> {
    let one = hub::pick_mmproj(listed, model)?;
    Some(Piece { name: MMPROJ.into(), source: at_hub(repo, &one.path, revision), sha256: one.sha256.clone(), size: Some(one.size) })
}

/// The files of a model that is not on the hub.
fn elsewhere(entry: &ModelEntry, single: impl Fn(Source) -> Piece) -> Result<Vec<Piece>, PullError> {
    match &entry.source {
        Source::Https { url } => match parts_of(url) {
            Some(urls) => {
                one_file_only(entry)?;
                Ok(numbered(urls.into_iter().map(|url| (Source::Https { url }, None))))
            }
            None => Ok(vec![single(entry.source.clone())]),
        },
        source => Ok(vec![single(source.clone())]),
    }
}

impl Piece {
    /// Fills in the digest and the size that the hub lists, where the entry has none.
    fn known_as(self, listed: Option<&HubFile>) -> Self {
        let Some(listed) = listed else { return self };
        Self { sha256: self.sha256.or(listed.sha256.clone()), size: self.size.or(Some(listed.size)), ..self }
    }
}

fn at_hub(repo: &str, file: &str, revision: &str) -> Source {
    Source::Hf { repo: repo.into(), file: Some(file.into()), quant: None, revision: revision.into() }
}

fn one_file_only(entry: &ModelEntry) -> Result<(), PullError> {
    match entry.sha256.is_some() || entry.size.is_some() {
        true => {
            let text = format!("model `{}` is split into several files: remove sha256 and size from its entry", entry.id);
            Err(PullError::Refused(text))
        }
        false => Ok(()),
    }
}

fn numbered<'a>(files: impl ExactSizeIterator<Item = (Source, Option<&'a HubFile>)>) -> Vec<Piece> {
    let count = files.len();
    let piece = |(no, (source, listed)): (usize, (Source, Option<&HubFile>))| Piece {
        name: format!("model-{no:05}-of-{count:05}.gguf"),
        source,
        sha256: listed.and_then(|listed| listed.sha256.clone()),
        size: listed.map(|listed| listed.size),
    };
    (1..).zip(files).map(piece).collect()
}

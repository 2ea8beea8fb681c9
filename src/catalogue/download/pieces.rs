//! Finds the files of a catalogue entry's model.

use super::error::PullError;
use super::hub::{self, HubFile};
use super::piece::Piece;
use super::progress::Progress;
use super::split::parts_of;
use super::tools::Tools;
use config::{ModelEntry, Source};

/// Returns the files of an entry's model, in order. Asks the hub if the entry does not name the file.
pub fn pieces(entry: &ModelEntry, tools: &Tools, progress: &Progress) -> Result<Vec<Piece>, PullError> {
    let single = |source: Source| Piece { name: "model.gguf".into(), source, sha256: entry.sha256.clone(), size: entry.size };
    match &entry.source {
        Source::Hf { repo, file, quant, revision } => {
            let named = file.as_deref().filter(|file| parts_of(file).is_none());
            if let Some(file) = named {
                return Ok(vec![single(at_hub(repo, file, revision))]);
            }
            let listed = hub::list(repo, revision, tools, progress)?;
            let files = hub::pick(&listed, file.as_deref(), quant.as_deref());
            let files = files.map_err(|fault| PullError::Refused(format!("hf {repo}: {fault}")))?;
            if let [one] = files[..] {
                let piece = single(at_hub(repo, &one.path, revision));
                return Ok(vec![Piece { sha256: piece.sha256.or(one.sha256.clone()), size: piece.size.or(Some(one.size)), ..piece }]);
            }
            one_file_only(entry)?;
            Ok(numbered(files.iter().map(|one| (at_hub(repo, &one.path, revision), Some(*one)))))
        }
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

//! [`Mmproj`]: the picture encoder of a model, as an entry or a flag names it.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::source::Source;

/// The picture encoder of a model.
#[derive(Clone, Debug, PartialEq)]
pub enum Mmproj {
    /// The model gets no pictures, even if a file lies beside it.
    None,
    File(MmprojFile),
}

/// A mmproj file.
#[derive(Clone, Debug, PartialEq)]
pub struct MmprojFile {
    /// A path, a URL, or a file of a repository on the hub.
    pub source: Source,
    /// The digest of a file that is fetched, in lower-case hex.
    pub sha256: Option<String>,
    /// The size of a file that is fetched [bytes].
    pub size: Option<u64>,
}

/// The word that switches pictures off.
const NONE: &str = "none";
const EXPECTED: &str = "\"none\", a path, hf:OWNER/REPO/FILE.gguf, an https URL, or a table with one of these as `file`";

impl FromStr for Mmproj {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            NONE => Self::None,
            _ => Self::File(MmprojFile { source: source_of(text), sha256: None, size: None }),
        })
    }
}

/// Reads `hf:OWNER/REPO/FILE[@REVISION]`, a URL or a path. What is malformed stays visible to the checks.
fn source_of(text: &str) -> Source {
    if let Some(rest) = text.strip_prefix("hf:") {
        let (place, revision) = rest.split_once('@').unwrap_or((rest, "main"));
        let mut parts = place.splitn(3, '/');
        let mut part = || parts.next().unwrap_or_default().to_owned();
        let (repo, file) = (format!("{}/{}", part(), part()), part());
        return Source::Hf { repo, file: Some(file), quant: None, revision: revision.to_owned() };
    }
    match text.contains("://") {
        true => Source::Https { url: text.to_owned() },
        false => Source::File { path: PathBuf::from(text) },
    }
}

impl Mmproj {
    /// The file on this machine that is used in place.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File(MmprojFile { source: Source::File { path }, .. }) => Some(path),
            _ => None,
        }
    }

    /// The file that is fetched with the model.
    pub fn fetched(&self) -> Option<&MmprojFile> {
        match self {
            Self::File(file) if self.path().is_none() => Some(file),
            _ => None,
        }
    }

    /// The text form of the file or the word that switches pictures off.
    fn text(&self) -> String {
        match self {
            Self::None => NONE.to_owned(),
            Self::File(file) => match &file.source {
                Source::Hf { repo, file, revision, .. } => format!("hf:{repo}/{}@{revision}", file.as_deref().unwrap_or_default()),
                Source::Https { url } => url.clone(),
                Source::File { path } => path.display().to_string(),
                Source::Pypi { .. } | Source::Stored => String::new(),
            },
        }
    }
}

/// The table in a file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    file: String,
    #[serde(default)]
    sha256: Option<String>,
    #[serde(default)]
    size: Option<u64>,
}

impl Serialize for Mmproj {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::File(MmprojFile { sha256, size, .. }) if sha256.is_some() || size.is_some() => {
                Table { file: self.text(), sha256: sha256.clone(), size: *size }.serialize(serializer)
            }
            _ => serializer.serialize_str(&self.text()),
        }
    }
}

impl<'de> Deserialize<'de> for Mmproj {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

/// Reads a text or a table.
struct Reader;

impl<'de> de::Visitor<'de> for Reader {
    type Value = Mmproj;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Mmproj, E> {
        let Ok(mmproj) = text.parse();
        Ok(mmproj)
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Mmproj, A::Error> {
        let Table { file, sha256, size } = Table::deserialize(de::value::MapAccessDeserializer::new(map))?;
        Ok(Mmproj::File(MmprojFile { source: source_of(&file), sha256: sha256.map(|digest| digest.to_ascii_lowercase()), size }))
    }
}

//! The settings of a model that was made on this machine, which `penstock create` and `/api/create` store next to its weights.

use logits::SamplingChoice;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::parameters;

/// The settings of a made model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoredVariant {
    /// The model that it was made from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<StoredTemplate>,
    /// Values under Ollama's names, in the order in which they were given.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub parameters: Map<String, Value>,
    /// The beginning of every conversation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<ExampleMessage>,
    /// The texts of the licences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub licences: Vec<String>,
    /// Whether the model only continues texts.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub base: bool,
    /// The sampling values of the catalogue, for requests, parameters and files that do not choose.
    pub recommended: SamplingChoice,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<String>,
    /// Variables of the chat template.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub variables: Map<String, Value>,
    /// What it adds to the weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<StoredAdapter>,
}

/// An adapter of a made model: a GGUF file, or the files of a folder as PEFT writes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredAdapter {
    pub files: Vec<StoredFile>,
    /// The factor of its changes.
    pub scale: f32,
}

/// A file of a made model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredFile {
    /// The path in the model's directory.
    pub name: String,
    /// The digest in lower-case hex.
    pub sha256: String,
    /// [bytes]
    pub size: u64,
}

/// A chat template that replaces the one of the model's file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredTemplate {
    /// The name of the file with the template in Jinja, in the model's directory.
    pub file: String,
    /// The template as it was given, in Jinja or in Go's language.
    pub source: String,
}

/// A message that begins every conversation with a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExampleMessage {
    pub role: ExampleRole,
    pub content: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExampleRole {
    System,
    User,
    Assistant,
}

impl ExampleRole {
    pub const NAMES: [(&'static str, Self); 3] = [("system", Self::System), ("user", Self::User), ("assistant", Self::Assistant)];

    pub fn by_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, role)| *role)
    }

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].0
    }
}

/// The longest system message, licence or example [bytes].
pub const MAX_TEXT: usize = 1 << 20;
/// The most examples and licences.
const MAX_ITEMS: usize = 1000;

impl StoredVariant {
    /// Checks the lengths of the texts.
    pub fn check(&self) -> Result<(), String> {
        let long = |what: &str, text: &str| match text.len() > MAX_TEXT {
            true => Err(format!("the {what} has {} bytes, expected at most {MAX_TEXT}", text.len())),
            false => Ok(()),
        };
        self.system.iter().try_for_each(|text| long("system message", text))?;
        self.licences.iter().try_for_each(|text| long("licence", text))?;
        self.messages.iter().try_for_each(|message| long("example message", &message.content))?;
        match [("licences", self.licences.len()), ("example messages", self.messages.len())]
            .into_iter()
            .find(|(_, count)| *count > MAX_ITEMS)
        {
            Some((what, count)) => Err(format!("there are {count} {what}, expected at most {MAX_ITEMS}")),
            None => Ok(()),
        }
    }

    /// The sampling values for requests that do not choose.
    pub fn sampling(&self) -> SamplingChoice {
        parameters::sampling(&self.parameters)
    }

    /// The most tokens of an answer. None: as many as the context has left.
    pub fn max_tokens(&self) -> Option<u32> {
        let count = self.parameters.get("num_predict").and_then(Value::as_i64)?;
        u32::try_from(count).ok().filter(|count| *count > 0)
    }

    /// The longest context of the name, within the one that its weights are served with [tokens].
    pub fn context(&self) -> Option<usize> {
        let count = self.parameters.get("num_ctx").and_then(Value::as_u64)?;
        usize::try_from(count).ok().filter(|count| *count > 0)
    }

    /// The texts that end an answer, for requests that have none.
    pub fn stop(&self) -> Vec<String> {
        let texts = self.parameters.get("stop").and_then(Value::as_array).into_iter().flatten();
        texts.filter_map(Value::as_str).map(str::to_owned).collect()
    }
}

//! [`Recipe`]: what a model is made of.

use std::path::PathBuf;

use catalogue::LATEST;
use config::{ExampleMessage, StoredVariant, parameter};
use serde_json::{Map, Value};

use super::go_template::{is_jinja, to_jinja};

/// Where a model's weights come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Origin {
    /// A model by its name.
    Model(String),
    /// A GGUF file of this machine.
    File(PathBuf),
    /// Uploaded files: names and digests (64 lower-case hex digits).
    Blobs(Vec<(String, String)>),
}

/// Where an adapter comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum AdapterOrigin {
    /// A GGUF file of this machine, or a folder with `adapter_config.json` and `adapter_model.safetensors`.
    Path(PathBuf),
    /// Uploaded files: names and digests (64 lower-case hex digits).
    Blobs(Vec<(String, String)>),
}

/// The hosts by which Ollama's users name Hugging Face's hub.
const HUBS: [&str; 2] = ["hf.co/", "huggingface.co/"];

/// Converts the name of a model as Ollama's users write it to the catalogue's.
pub fn catalogue_name(name: &str) -> String {
    match HUBS.iter().find_map(|host| name.strip_prefix(host)) {
        Some(rest) => format!("hf:{}", rest.strip_suffix(LATEST).unwrap_or(rest)),
        None => name.strip_suffix(LATEST).unwrap_or(name).to_owned(),
    }
}

/// The parts of a model that is to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    pub origin: Origin,
    /// What is added to the weights.
    pub adapter: Option<AdapterOrigin>,
    pub changes: Changes,
    /// The file type that the weights are converted to.
    pub quantize: Option<String>,
}

impl Recipe {
    /// Makes a second name of a model.
    pub fn copy_of(name: &str) -> Self {
        Self { origin: Origin::Model(name.to_owned()), adapter: None, changes: Changes::default(), quantize: None }
    }
}

/// The settings that a made model has in the place of those of its origin. What is open stays as it is there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    pub system: Option<String>,
    pub template: Option<TemplateText>,
    pub parameters: Map<String, Value>,
    pub messages: Option<Vec<ExampleMessage>>,
    pub licences: Option<Vec<String>>,
}

/// A chat template as it was given, and in Jinja.
#[derive(Clone, Debug, PartialEq)]
pub struct TemplateText {
    pub source: String,
    pub jinja: String,
}

impl TemplateText {
    /// Checks a template, and translates one of Go's.
    ///
    /// # Errors
    /// The template is malformed or cannot be translated.
    pub fn new(source: &str) -> Result<Self, String> {
        let jinja = match is_jinja(source) {
            true => source.to_owned(),
            false => to_jinja(source).map_err(|error| format!("{error} (Go's templates are translated to Jinja)"))?,
        };
        template::ChatTemplate::new(&jinja, "", "").map_err(|error| error.to_string())?;
        Ok(Self { source: source.to_owned(), jinja })
    }
}

impl Changes {
    /// Sets a parameter. Each `stop` adds a text.
    ///
    /// # Errors
    /// The parameter is unknown, or its value is wrong.
    pub fn set_parameter(&mut self, name: &str, value: &Value) -> Result<(), String> {
        let value = parameter(name, value)?;
        match (self.parameters.get_mut(name), &value) {
            (Some(Value::Array(known)), Value::Array(more)) => {
                let all = Value::Array(known.iter().chain(more).cloned().collect());
                *known = match parameter(name, &all)? {
                    Value::Array(all) => all,
                    _ => Vec::new(),
                };
            }
            _ => drop(self.parameters.insert(name.to_owned(), value)),
        }
        Ok(())
    }

    /// Applies the changes to the settings of the origin.
    pub fn apply(self, variant: &mut StoredVariant) -> Option<TemplateText> {
        let Self { system, template, parameters, messages, licences } = self;
        // An empty text takes the origin's away.
        if let Some(system) = system {
            variant.system = Some(system).filter(|text| !text.is_empty());
        }
        variant.parameters.extend(parameters);
        if let Some(messages) = messages {
            variant.messages = messages;
        }
        if let Some(licences) = licences {
            variant.licences = licences;
        }
        template
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_ollama_s_clients_are_those_of_the_catalogue() {
        for (name, due) in [
            ("smollm2:135m", "smollm2:135m"),
            ("smollm2:latest", "smollm2"),
            ("hf.co/a/b:Q4_K_M", "hf:a/b:Q4_K_M"),
            ("huggingface.co/a/b:latest", "hf:a/b"),
        ] {
            assert_eq!(catalogue_name(name), due);
        }
    }
}

//! Describes a model by its file, without loading the model.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value as Json};

use super::defaults::file_sampling;
use super::load::{MAX_TEMPLATE, ModelFile};
use super::pictures::RowShape;
use chat::Dialect;
use gguf::{Array, GgufFile, Value};
use logits::SamplingChoice;
use model::Weights;
use outside::read_text;
use scheduler::Pooling;

/// The metadata of a file as JSON.
pub type Metadata = Map<String, Json>;

/// A model's description, read from its file.
#[derive(Clone, Debug)]
pub struct ModelDescription {
    pub architecture: String,
    /// The number of weights.
    pub parameters: u64,
    /// The storage type of most weights, such as `Q4_K_M`.
    pub quantisation: String,
    /// Size of all parts of the file [bytes].
    pub file_bytes: u64,
    /// Digest of the file (twelve digits), see [`GgufFile::digest`].
    pub digest: String,
    /// Source of the chat template: the file's own, or the one that replaces it.
    pub template: Option<String>,
    /// Whether the model is meant for vectors: it is an encoder, or its file says how vectors are pooled.
    pub embeds: bool,
    /// The rows of pictures that the model takes. None if no engine can run it.
    pub row_shape: Option<RowShape>,
    /// The sampling values that the file recommends.
    pub sampling: SamplingChoice,
    /// The file's metadata, with arrays replaced by null.
    pub metadata: Metadata,
}

/// The capabilities of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Generates text.
    pub completion: bool,
    /// Supports tools in its chat template.
    pub tools: bool,
    /// Reasons before it answers.
    pub thinking: bool,
    /// Computes embeddings.
    pub embedding: bool,
    /// Fills in the middle of a text.
    pub insert: bool,
    /// Sees pictures: a picture encoder belongs to the model.
    pub vision: bool,
}

impl ModelDescription {
    /// Reads a file. `template`: a file with a chat template that replaces its own. Blocks.
    pub fn read(path: &Path, template: Option<&Path>) -> anyhow::Result<Self> {
        let file = Arc::new(GgufFile::open(path)?);
        let template = match template {
            Some(path) => Some(read_text(path, MAX_TEMPLATE)?),
            None => file.get_str("tokenizer.chat_template").map(str::to_owned),
        };
        let parameters = file.tensors().iter().fold(0u64, |sum, tensor| sum.saturating_add(tensor.elements()));
        let mut metadata = metadata(&file, false);
        metadata.entry("general.parameter_count").or_insert(parameters.into());
        Ok(Self {
            architecture: file.architecture().unwrap_or_default().to_owned(),
            parameters,
            quantisation: quantisation(&file),
            file_bytes: file.file_bytes(),
            digest: file.digest(),
            template,
            embeds: embeds(&file),
            row_shape: Weights::load(file.clone()).ok().map(|weights| RowShape::of(&weights.spec)),
            sampling: file_sampling(&file),
            metadata,
        })
    }

    /// A number of the architecture's own metadata, such as `context_length`.
    pub fn arch_number(&self, key: &str) -> Option<u64> {
        self.metadata.get(&format!("{}.{key}", self.architecture))?.as_u64()
    }
}

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorFacts {
    pub name: String,
    /// The storage type, such as `Q4_K`.
    pub kind: &'static str,
    /// The dimensions, the contiguous one first.
    pub dims: Vec<u64>,
}

/// Lists the tensors of a file. Blocks.
pub fn tensors(path: &Path) -> anyhow::Result<Vec<TensorFacts>> {
    let file = GgufFile::open(path)?;
    let facts = |tensor: &gguf::TensorInfo| TensorFacts { name: tensor.name.clone(), kind: tensor.type_name(), dims: tensor.dims.clone() };
    Ok(file.tensors().iter().map(facts).collect())
}

fn embeds(file: &GgufFile) -> bool {
    let is_encoder = |name: &str| model::ARCHS.iter().any(|arch| arch.name == name && arch.bidirectional);
    file.architecture().is_some_and(is_encoder) || file.arch_value("pooling_type").is_some()
}

/// Reads the metadata of a file, including arrays. Blocks.
pub fn whole_metadata(path: &Path) -> anyhow::Result<Metadata> {
    Ok(metadata(&GgufFile::open(path)?, true))
}

impl ModelFile {
    /// The rows of pictures that the model takes.
    pub fn row_shape(&self) -> RowShape {
        RowShape::of(self.spec())
    }

    /// The model's capabilities, without a picture encoder. `template`: a file with a chat template that replaces the model's own.
    pub fn abilities(&self, template: Option<&Path>) -> anyhow::Result<Capabilities> {
        let spec = self.spec();
        let template = self.chat_template(template)?;
        let dialect = template.as_ref().map(|template| Dialect::of(template, self.tokenizer()));
        let completion = !spec.arch.bidirectional;
        let has = |test: fn(&Dialect) -> bool| completion && dialect.as_ref().is_some_and(test);
        Ok(Capabilities {
            completion,
            tools: has(Dialect::takes_tools),
            thinking: has(|dialect| dialect.thinking.is_some()),
            embedding: spec.pooling != Pooling::Rank && self.embeds(),
            insert: completion && self.tokenizer().infill().is_some(),
            vision: false,
        })
    }
}

/// The names of `general.file_type`, as llama.cpp numbers them. Empty for numbers that are no longer used.
const FILE_TYPES: [&str; 40] = [
    "F32", "F16", "Q4_0", "Q4_1", "", "", "", "Q8_0", "Q5_0", "Q5_1", "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S",
    "Q5_K_M", "Q6_K", "IQ2_XXS", "IQ2_XS", "Q2_K_S", "IQ3_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ3_M", "IQ2_S", "IQ2_M", "IQ4_XS",
    "IQ1_M", "BF16", "", "", "", "TQ1_0", "TQ2_0", "MXFP4", "",
];

/// The name of the file's type, or else the type of most weights.
fn quantisation(file: &GgufFile) -> String {
    let named = file.get_u32("general.file_type").and_then(|number| FILE_TYPES.get(number as usize)).filter(|name| !name.is_empty());
    if let Some(name) = named {
        return (*name).to_owned();
    }
    let mut counts: Vec<(&str, u64)> = Vec::new();
    for tensor in file.tensors() {
        match counts.iter_mut().find(|(name, _)| *name == tensor.type_name()) {
            Some((_, count)) => *count = count.saturating_add(tensor.elements()),
            None => counts.push((tensor.type_name(), tensor.elements())),
        }
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map_or(String::new(), |(name, _)| name.to_owned())
}

fn metadata(file: &GgufFile, with_arrays: bool) -> Metadata {
    let value = |value: &Value| match value {
        Value::Array(array) if with_arrays => items(array),
        Value::Array(_) => Json::Null,
        other => scalar(other),
    };
    file.metadata().map(|(key, of_key)| (key.to_owned(), value(of_key))).collect()
}

fn scalar(value: &Value) -> Json {
    match value {
        Value::F32(x) => float(*x),
        Value::F64(x) => (*x).into(),
        Value::Bool(flag) => (*flag).into(),
        Value::String(text) => text.as_str().into(),
        Value::U64(number) => (*number).into(),
        Value::Array(array) => items(array),
        integer => integer.as_int().and_then(|number| i64::try_from(number).ok()).into(),
    }
}

fn items(array: &Array) -> Json {
    match array {
        Array::U8(items) => items.iter().copied().collect(),
        Array::I8(items) => items.iter().copied().collect(),
        Array::U16(items) => items.iter().copied().collect(),
        Array::I16(items) => items.iter().copied().collect(),
        Array::U32(items) => items.iter().copied().collect(),
        Array::I32(items) => items.iter().copied().collect(),
        Array::F32(items) => items.iter().copied().map(float).collect(),
        Array::Bool(items) => items.iter().copied().collect(),
        Array::Strings(items) => items.iter().map(String::as_str).collect(),
        Array::U64(items) => items.iter().copied().collect(),
        Array::I64(items) => items.iter().copied().collect(),
        Array::F64(items) => items.iter().copied().collect(),
        Array::Nested(arrays) => arrays.iter().map(self::items).collect(),
    }
}

/// The shortest decimal number that reads back as the same float32. Infinity and NaN become null, since JSON has neither.
fn float(number: f32) -> Json {
    number.to_string().parse::<f64>().ok().filter(|number| number.is_finite()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf::{Backing, GgufBuilder};

    fn write(builder: &GgufBuilder) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        builder.write(&path).unwrap();
        (dir, path)
    }

    #[test]
    fn metadata_becomes_json() {
        let builder = GgufBuilder::new()
            .kv("general.architecture", "llama")
            .kv("general.file_type", 15u32)
            .kv("llama.rope.freq_base", 0.1f32)
            .kv("general.sampling.temp", 0.5f32);
        let (_dir, path) = write(&builder);
        let read = ModelDescription::read(&path, None).unwrap();
        assert_eq!((read.architecture.as_str(), read.quantisation.as_str(), read.template), ("llama", "Q4_K_M", None));
        assert_eq!(read.metadata["llama.rope.freq_base"], 0.1, "no digit is invented");
        assert_eq!((&read.metadata["general.parameter_count"], read.sampling.temperature), (&0.into(), Some(0.5)));
    }

    #[test]
    fn abilities_are_those_of_the_file() {
        let embedder = fixtures::architectures::embedders().into_iter().find(|model| model.name == "bert-mean").unwrap();
        let (_dir, path) = write(&embedder.build());
        let abilities = ModelFile::open(&path, Backing::Private).unwrap().abilities(None).unwrap();
        let none = Capabilities { completion: false, tools: false, thinking: false, embedding: true, insert: false, vision: false };
        assert_eq!(abilities, none);
        assert!(whole_metadata(&path).unwrap()["tokenizer.ggml.tokens"].as_array().is_some_and(|tokens| !tokens.is_empty()));
        assert!(ModelDescription::read(&path, None).unwrap().metadata["tokenizer.ggml.tokens"].is_null());
    }
}

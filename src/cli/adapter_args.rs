//! Flags that name the adapters of a measurement.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::adapters::{self, AdapterKind};
use crate::engine::{AdapterUse, Engine, SequenceAdapters};
use crate::model::Weights;
use anyhow::{Context, bail};

#[derive(clap::Args, Debug, Default)]
pub struct AdapterArgs {
    /// Apply an adapter (a LoRA in a GGUF file or PEFT's folder), with a factor if not 1; may be repeated
    #[arg(long = "adapter", value_name = "FILE[:SCALE]")]
    adapters: Vec<ScaledFile>,
    /// Add a control vector, with its strength and range of layers; may be repeated
    #[arg(long = "control-vector", value_name = "FILE[:STRENGTH[:FIRST-LAST]]")]
    control_vectors: Vec<VectorFile>,
}

/// A file and a factor.
#[derive(Clone, Debug, PartialEq)]
struct ScaledFile {
    path: PathBuf,
    scale: f32,
}

#[derive(Clone, Debug, PartialEq)]
struct VectorFile {
    file: ScaledFile,
    /// The first and the last layer.
    layers: Option<(usize, usize)>,
}

/// Adapters that are open, with their scales and their invocation tokens.
pub struct OpenAdapters(Vec<(adapters::OpenAdapter, f32)>);

impl AdapterArgs {
    pub fn is_empty(&self) -> bool {
        self.adapters.is_empty() && self.control_vectors.is_empty()
    }

    /// Opens the files and checks that they fit the model.
    ///
    /// # Errors
    /// A file that is not an adapter of the model, or is another kind of adapter than its flag says.
    pub fn open(&self, weights: &Weights) -> anyhow::Result<OpenAdapters> {
        let lora = |file: &ScaledFile| {
            let open = adapters::open(&file.path, weights)?;
            match open.kind {
                AdapterKind::ControlVector => bail!("{}: a control vector: name it with --control-vector", file.path.display()),
                AdapterKind::Lora | AdapterKind::Dora => Ok((open, file.scale)),
            }
        };
        let vector = |vector: &VectorFile| {
            let mut open = adapters::open(&vector.file.path, weights)?;
            if open.kind != AdapterKind::ControlVector {
                bail!("{}: not a control vector: name it with --adapter", vector.file.path.display());
            }
            if let Some((first, last)) = vector.layers {
                open.adapter.directions.retain(|direction| (first..=last).contains(&direction.layer));
            }
            Ok((open, vector.file.scale))
        };
        let all = self.adapters.iter().map(lora).chain(self.control_vectors.iter().map(vector));
        Ok(OpenAdapters(all.collect::<anyhow::Result<_>>()?))
    }
}

impl OpenAdapters {
    /// Loads the adapters to an engine, each to the place of its index.
    ///
    /// # Errors
    /// An adapter that the engine cannot run.
    pub fn load(&self, engine: &mut dyn Engine) -> anyhow::Result<()> {
        for (place, (open, _)) in self.0.iter().enumerate() {
            engine.load_adapter(place as u32, &open.adapter).context("an adapter cannot be loaded")?;
        }
        Ok(())
    }

    /// The adapters of a prompt.
    pub fn of_prompt(&self, ids: &[u32]) -> SequenceAdapters {
        let used = |(place, (open, scale)): (usize, &(adapters::OpenAdapter, f32))| {
            let first = adapters::first_row(&open.invocation, ids)?;
            Some(AdapterUse { place: place as u32, scale: *scale, first })
        };
        self.0.iter().enumerate().filter_map(used).collect()
    }
}

impl FromStr for ScaledFile {
    type Err = String;

    /// The file's name may contain colons itself: what follows the last one is a factor only if it is a number.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.rsplit_once(':') {
            Some((path, scale)) if !Path::new(text).exists() => {
                let scale = finite(scale).ok_or_else(|| format!("`{scale}` is no factor: expected FILE or FILE:NUMBER"))?;
                Ok(Self { path: path.into(), scale })
            }
            _ => Ok(Self { path: text.into(), scale: 1.0 }),
        }
    }
}

impl FromStr for VectorFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let whole = |text: &str| text.parse::<ScaledFile>();
        let Some((before, range)) = text.rsplit_once(':').filter(|(_, range)| range.contains('-') && finite(range).is_none()) else {
            return Ok(Self { file: whole(text)?, layers: None });
        };
        let layers = range.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
        match layers.filter(|(first, last): &(usize, usize)| first <= last) {
            Some(layers) => Ok(Self { file: whole(before)?, layers: Some(layers) }),
            None if Path::new(text).exists() => Ok(Self { file: whole(text)?, layers: None }),
            None => Err(format!("`{range}` is no range of layers: expected FIRST-LAST, such as 10-20")),
        }
    }
}

fn finite(text: &str) -> Option<f32> {
    text.parse().ok().filter(|number: &f32| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_follows_the_last_colon() {
        let of = |text: &str| text.parse::<ScaledFile>().map(|file| (file.path.display().to_string(), file.scale));
        assert_eq!(of("a.gguf"), Ok(("a.gguf".into(), 1.0)));
        assert_eq!(of("a:b.gguf:-0.5"), Ok(("a:b.gguf".into(), -0.5)));
        assert!(of("a.gguf:x").unwrap_err().contains("`x` is no factor"));
        assert!(of("a.gguf:nan").is_err());
    }

    #[test]
    fn a_vector_has_a_strength_and_a_range() {
        let of = |text: &str| text.parse::<VectorFile>().map(|vector| (vector.file.scale, vector.layers));
        assert_eq!(of("v.gguf"), Ok((1.0, None)));
        assert_eq!(of("v.gguf:-2"), Ok((-2.0, None)));
        assert_eq!(of("v.gguf:0.5:1-3"), Ok((0.5, Some((1, 3)))));
        assert!(of("v.gguf:1:3-1").unwrap_err().contains("no range of layers"));
    }
}

//! [`Family`]: the differences between families of checkpoints. `families/` holds one row per family.

use gguf::Value;
use model::Arch;

use crate::config::Config;
use crate::error::Fallible;

/// How tensors of a checkpoint become a tensor of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorTransform {
    /// The tensor is copied unchanged.
    Copy,
    /// A norm whose weight is stored minus 1.
    PlusOne,
    /// The query projection, with the pairs that RoPE rotates moved next to each other.
    PairedQueries,
    /// The key projection, in the same way.
    PairedKeys,
    /// A matrix that is stored with inputs as rows (GPT-2's Conv1D).
    Transposed,
    /// One of several tensors that are stacked in the order of the pattern's second number.
    Stacked,
    /// A matrix of one row, which becomes a vector.
    Row,
    /// Queries, keys and values of one group of heads, then of the next group, and so on.
    GroupedQkv,
    /// The first half of each expert's rows: the gate.
    FirstHalves,
    /// The second half of each expert's rows.
    SecondHalves,
}

/// The destination of a tensor. Patterns contain `{}` for the layer's number and `{n}` for an expert's or a head's number. They apply to
/// the tensors `.weight` and `.bias`.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub from: &'static str,
    pub to: &'static str,
    pub how: TensorTransform,
}

/// A family of checkpoints.
pub struct Family {
    /// The family's names in `architectures` of `config.json`.
    pub classes: &'static [&'static str],
    /// `general.architecture`
    pub arch: &'static str,
    /// The section of `config.json` that describes the text model, and the class's values for settings that the file omits.
    pub section: Option<(&'static str, &'static str)>,
    pub tensors: &'static [&'static [Rule]],
    /// Prefixes of the names of tensors that do not belong to the text model.
    pub beside: &'static [&'static str],
    /// The epsilon of norms, for configurations without one.
    pub norm_eps: Option<f64>,
    /// Whether the feed-forward length is four times the hidden dimension, for configurations without one.
    pub four_times: bool,
    /// Reads settings that only this family has.
    pub own: fn(&Config, &mut Shape, &mut Keys) -> Fallible<()>,
}

impl Family {
    pub fn arch(&self) -> Option<&'static Arch> {
        Arch::by_name(self.arch)
    }

    pub fn rules(&self) -> impl Iterator<Item = &'static Rule> {
        self.tensors.iter().flat_map(|list| list.iter())
    }
}

/// The sizes that tensor rules and metadata need.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    pub layers: u32,
    pub hidden: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    /// The number of rotated elements per head.
    pub rotated: u32,
    /// The number of tokens that the model was trained for.
    pub context: u32,
    /// The feed-forward length.
    pub ffn: Option<u32>,
}

/// The metadata of the output, in order.
pub struct Keys {
    pub arch: &'static str,
    pub pairs: Vec<(String, Value)>,
}

impl Keys {
    /// Adds a key, or replaces its value.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        let value = value.into();
        match self.pairs.iter_mut().find(|(known, _)| known == key) {
            Some(pair) => pair.1 = value,
            None => self.pairs.push((key.to_owned(), value)),
        }
    }

    /// Adds a key under the architecture's name.
    pub fn arch(&mut self, suffix: &str, value: impl Into<Value>) {
        self.set(&format!("{}.{suffix}", self.arch), value);
    }

    /// Adds a number under the architecture's name. Does nothing for None.
    pub fn number(&mut self, suffix: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.arch(suffix, value as f32);
        }
    }

    /// Adds a count under the architecture's name. Does nothing for None.
    pub fn count(&mut self, suffix: &str, value: Option<u32>) {
        if let Some(value) = value {
            self.arch(suffix, value);
        }
    }
}

//! What distinguishes one family of checkpoints from another. The rows stand in `families/`.

use gguf::Value;
use model::Arch;

use crate::config::Config;
use crate::error::Fallible;

/// How tensors of a checkpoint become one of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorTransform {
    /// As it is.
    Copy,
    /// A norm whose weight is stored less 1.
    PlusOne,
    /// The projection of queries, with the pairs that RoPE rotates brought beside each other.
    PairedQueries,
    /// The same of keys.
    PairedKeys,
    /// Stored with inputs as rows (GPT-2's Conv1D).
    Transposed,
    /// One of the tensors that are stacked, in the order of the pattern's second number.
    Stacked,
    /// A matrix of one row, as a vector.
    Row,
    /// Queries, keys and values of a group of heads one after another, group after group.
    GroupedQkv,
    /// The first half of each expert's rows: the gate.
    FirstHalves,
    /// The second half of each expert's rows.
    SecondHalves,
}

/// Where a tensor goes. Patterns have `{}` for the layer's number and `{n}` for an expert's or a head's. They stand for the tensors
/// `.weight` and `.bias`.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub from: &'static str,
    pub to: &'static str,
    pub how: TensorTransform,
}

/// A family of checkpoints.
pub struct Family {
    /// Names in `architectures` of `config.json`.
    pub classes: &'static [&'static str],
    /// `general.architecture`
    pub arch: &'static str,
    /// The section of `config.json` that describes the text model, and the values of its class, which the file leaves out.
    pub section: Option<(&'static str, &'static str)>,
    pub tensors: &'static [&'static [Rule]],
    /// Beginnings of the names of tensors that are not the text model's.
    pub beside: &'static [&'static str],
    /// The epsilon of norms, if the configuration does not have it.
    pub norm_eps: Option<f64>,
    /// The feed-forward length is four times the hidden dimension if the configuration does not have it.
    pub four_times: bool,
    /// Reads what only this family has.
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
    /// Rotated elements per head.
    pub rotated: u32,
    /// Tokens that the model was trained for.
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

    /// Adds a key of the architecture.
    pub fn arch(&mut self, suffix: &str, value: impl Into<Value>) {
        self.set(&format!("{}.{suffix}", self.arch), value);
    }

    /// Adds a number of the architecture, if the configuration has it.
    pub fn number(&mut self, suffix: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.arch(suffix, value as f32);
        }
    }

    /// Adds a count of the architecture, if the configuration has it.
    pub fn count(&mut self, suffix: &str, value: Option<u32>) {
        if let Some(value) = value {
            self.arch(suffix, value);
        }
    }
}

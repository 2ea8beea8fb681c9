//! Typed accessors of [`GgufFile`]. All of them return None if the key is missing or its value has another type.

use crate::file::GgufFile;
use crate::value::{Array, Value};

impl GgufFile {
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// The key-value pairs in file order. For a split model, the pairs of the first file.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.metadata.pairs.iter().map(|(key, value)| (key.as_str(), value))
    }

    pub fn get_str(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }

    /// The value of an integer key of any type. None if it is negative or does not fit into 32 bits.
    pub fn get_u32(&self, key: &str) -> Option<u32> {
        self.get(key)?.as_int()?.try_into().ok()
    }

    pub fn get_f32(&self, key: &str) -> Option<f32> {
        self.get(key)?.as_f32()
    }

    pub fn get_bool(&self, key: &str) -> Option<bool> {
        self.get(key)?.as_bool()
    }

    pub fn get_strs(&self, key: &str) -> Option<&[String]> {
        match self.get(key)?.as_array()? {
            Array::Strings(items) => Some(items),
            _ => None,
        }
    }

    /// The elements of an array of any integer type. None if one does not fit.
    pub fn get_ints(&self, key: &str) -> Option<Vec<i64>> {
        self.get(key)?.as_array()?.ints()
    }

    /// `general.architecture`
    pub fn architecture(&self) -> Option<&str> {
        self.get_str("general.architecture")
    }

    /// `general.name`
    pub fn name(&self) -> Option<&str> {
        self.get_str("general.name")
    }

    /// The value of `{architecture}.{suffix}`.
    pub fn arch_value(&self, suffix: &str) -> Option<&Value> {
        self.get(&format!("{}.{suffix}", self.architecture()?))
    }

    fn arch_count(&self, suffix: &str) -> Option<usize> {
        self.arch_value(suffix)?.as_int()?.try_into().ok()
    }

    /// The number of rows of the token embedding. Without that tensor, the length of the vocabulary; without a vocabulary, `vocab_size`.
    pub fn vocab_size(&self) -> Option<usize> {
        let rows = self.tensor("token_embd.weight").and_then(|tensor| tensor.dims.get(1)).and_then(|&rows| rows.try_into().ok());
        rows.or_else(|| self.get("tokenizer.ggml.tokens")?.as_array().map(Array::len)).or_else(|| self.arch_count("vocab_size"))
    }

    /// `embedding_length`
    pub fn hidden_dim(&self) -> Option<usize> {
        self.arch_count("embedding_length")
    }

    /// `block_count`
    pub fn num_layers(&self) -> Option<usize> {
        self.arch_count("block_count")
    }

    /// `attention.head_count`, if all layers have the same number
    pub fn num_heads(&self) -> Option<usize> {
        self.arch_count("attention.head_count")
    }

    /// `attention.head_count_kv`. Without this key, every head has its own keys and values.
    pub fn num_kv_heads(&self) -> Option<usize> {
        match self.arch_value("attention.head_count_kv") {
            Some(_) => self.arch_count("attention.head_count_kv"),
            None => self.num_heads(),
        }
    }

    /// `attention.key_length`, by default the hidden dimension divided by the number of heads
    pub fn head_dim(&self) -> Option<usize> {
        self.arch_count("attention.key_length").or_else(|| self.hidden_dim()?.checked_div(self.num_heads()?))
    }

    /// `feed_forward_length`
    pub fn ffn_dim(&self) -> Option<usize> {
        self.arch_count("feed_forward_length")
    }

    /// `context_length`: the longest context that the model was trained for, in tokens
    pub fn context_length(&self) -> Option<usize> {
        self.arch_count("context_length")
    }
}

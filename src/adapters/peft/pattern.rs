//! [`Patterns`]: values for some modules, by regular expressions for the end of their names (`rank_pattern`, `alpha_pattern`).

use std::collections::HashMap;

use regex_lite::{Regex, RegexBuilder};

/// Bounds of a table of patterns: patterns that are not plain names, the bytes of one, and the memory of a compiled one [bytes].
const MAX_EXPRESSIONS: usize = 64;
const MAX_PATTERN_BYTES: usize = 1024;
const MAX_COMPILED_BYTES: usize = 1 << 18;

/// The first pattern that fits the end of a name decides.
#[derive(Debug)]
pub struct Patterns<T> {
    values: Vec<T>,
    /// Names that end at a dot, with the index of their value.
    names: HashMap<String, usize>,
    expressions: Vec<(Regex, usize)>,
}

impl<T> Patterns<T> {
    /// # Errors
    /// Names the pattern that is too long, or is no regular expression that can be used.
    pub fn new(entries: impl IntoIterator<Item = (String, T)>) -> Result<Self, String> {
        let mut patterns = Self { values: Vec::new(), names: HashMap::new(), expressions: Vec::new() };
        for (key, value) in entries {
            let index = patterns.values.len();
            patterns.values.push(value);
            if key.len() > MAX_PATTERN_BYTES {
                return Err(format!("a pattern has {} bytes, expected at most {MAX_PATTERN_BYTES}", key.len()));
            }
            if key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.') {
                patterns.names.entry(key).or_insert(index);
                continue;
            }
            if patterns.expressions.len() == MAX_EXPRESSIONS {
                return Err(format!("more than {MAX_EXPRESSIONS} patterns are regular expressions"));
            }
            let regex = RegexBuilder::new(&format!("^(?:.*\\.)?(?:{key})$")).size_limit(MAX_COMPILED_BYTES).build();
            let regex = regex.map_err(|error| format!("the pattern {} cannot be used: {error}", outside::in_line(&key)))?;
            patterns.expressions.push((regex, index));
        }
        Ok(patterns)
    }

    /// The value of the first pattern that fits the end of a name.
    pub fn get(&self, name: &str) -> Option<&T> {
        let starts = std::iter::once(0).chain(name.match_indices('.').map(|(at, _)| at + 1));
        let named = starts.filter_map(|start| self.names.get(&name[start..])).min();
        let matched = self.expressions.iter().find(|(regex, _)| regex.is_match(name)).map(|(_, index)| index);
        named.into_iter().chain(matched).min().map(|&index| &self.values[index])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(keys: &[&str]) -> Result<Patterns<usize>, String> {
        Patterns::new(keys.iter().enumerate().map(|(i, key)| ((*key).to_owned(), i)))
    }

    #[test]
    fn a_pattern_fits_the_end_of_a_name_at_a_dot() {
        let all =
            patterns(&["q_proj", "layers.1.mlp.down_proj", "^model\\.layers\\.2\\..*", "layers.\\d.self_attn.(k|v)_proj", "down_proj"]);
        let all = all.unwrap();
        let of = |name: &str| all.get(name).copied();
        assert_eq!(of("model.layers.0.self_attn.q_proj"), Some(0));
        assert_eq!(of("q_proj"), Some(0));
        assert_eq!(of("model.layers.0.self_attn.new_q_proj"), None);
        assert_eq!(of("model.layers.1.mlp.down_proj"), Some(1), "the first that fits");
        assert_eq!(of("model.layers.11.mlp.down_proj"), Some(4));
        assert_eq!(of("model.layers.2.mlp.up_proj"), Some(2));
        assert_eq!(of("model.layers.0.self_attn.v_proj"), Some(3));
        assert_eq!(of("model.layers.0.self_attn.o_proj"), None);
    }

    #[test]
    fn patterns_that_cannot_be_used_are_refused() {
        let fault = |keys: &[&str]| patterns(keys).map(|_| ()).unwrap_err();
        assert!(fault(&["(q"]).contains("the pattern (q cannot be used"));
        assert!(fault(&["(?=q)q_proj"]).contains("cannot be used"));
        assert!(fault(&["(a{1000}){1000}"]).contains("cannot be used"));
        assert!(fault(&[&"a".repeat(2000)]).contains("has 2000 bytes"));
        let many: Vec<String> = (0..65).map(|i| format!("{i}|x")).collect();
        assert!(fault(&many.iter().map(String::as_str).collect::<Vec<_>>()).contains("more than 64 patterns"));
    }
}

//! Whether a model with one vocabulary can draft the answers of a model with another: llama.cpp's rule.

use crate::tokenizer::Tokenizer;

/// The most ids that one vocabulary may have more than the other, since embeddings are padded.
const MOST_MORE: usize = 128;
/// The ids from which on both must have the same tokens. Those before are control tokens whose names differ.
const FIRST_SAME: u32 = 5;

impl Tokenizer {
    /// Says why a model with the vocabulary `draft` cannot draft answers in this one: the kinds differ, BOS or EOS, whether these are
    /// added, the sizes by more than 128, or a token from id 5 on. None if it can.
    pub fn draft_fault(&self, draft: &Self) -> Option<String> {
        let name = |id: Option<u32>| id.map_or("none".to_owned(), |id| id.to_string());
        let adds = |is_added: bool| if is_added { "added" } else { "not added" };
        let both = [
            ("the kind", self.class().to_owned(), draft.class().to_owned()),
            ("BOS", name(self.bos()), name(draft.bos())),
            ("EOS", name(self.eos()), name(draft.eos())),
            ("BOS of a prompt", adds(self.add_bos).to_owned(), adds(draft.add_bos).to_owned()),
            ("EOS of a prompt", adds(self.add_eos).to_owned(), adds(draft.add_eos).to_owned()),
        ];
        if let Some((what, own, other)) = both.into_iter().find(|(_, own, other)| own != other) {
            return Some(format!("{what} is {own} in one and {other} in the other"));
        }
        let (own, other) = (self.vocab_size(), draft.vocab_size());
        if own.abs_diff(other) > MOST_MORE {
            return Some(format!("one has {own} tokens and the other {other}"));
        }
        let text = |of: &Self, id: u32| String::from_utf8_lossy(of.token_bytes(id, true).unwrap_or_default()).into_owned();
        let differs = |&id: &u32| self.token_bytes(id, true) != draft.token_bytes(id, true);
        let id = (FIRST_SAME..own.min(other) as u32).find(differs)?;
        Some(format!("token {id} is {:?} in one and {:?} in the other", text(self, id), text(draft, id)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf::{GgufBuilder, GgufFile};

    /// A vocabulary of `count` tokens.
    fn vocabulary(count: usize) -> GgufBuilder {
        let tokens: Vec<String> = (0..count).map(|id| id.to_string()).collect();
        GgufBuilder::new()
            .kv("general.architecture", "llama")
            .kv("tokenizer.ggml.model", "gpt2")
            .kv("tokenizer.ggml.pre", "gpt-2")
            .kv("tokenizer.ggml.tokens", tokens)
            .kv("tokenizer.ggml.merges", vec!["1 0".to_owned()])
            .kv("tokenizer.ggml.bos_token_id", 0u32)
            .kv("tokenizer.ggml.eos_token_id", 1u32)
    }

    fn fault(draft: &GgufBuilder) -> Option<String> {
        let read = |builder: &GgufBuilder| {
            let file = tempfile::NamedTempFile::new().unwrap();
            builder.write(file.path()).unwrap();
            Tokenizer::from_gguf(&GgufFile::open(file.path()).unwrap()).unwrap()
        };
        read(&vocabulary(200)).draft_fault(&read(draft))
    }

    #[test]
    fn vocabularies_may_differ_in_padding_and_in_the_first_ids() {
        let named = |id: usize, text: &str| {
            let mut tokens: Vec<String> = (0..200).map(|id| id.to_string()).collect();
            tokens[id] = text.to_owned();
            vocabulary(200).kv("tokenizer.ggml.tokens", tokens)
        };
        assert_eq!([vocabulary(200), vocabulary(328), vocabulary(72), named(4, "x")].map(|draft| fault(&draft)), [const { None }; 4]);
        for (draft, why) in [
            (vocabulary(329), "one has 200 tokens and the other 329"),
            (named(5, "x"), "token 5 is \"5\" in one and \"x\" in the other"),
            (vocabulary(200).kv("tokenizer.ggml.eos_token_id", 2u32), "EOS is 1 in one and 2 in the other"),
            (vocabulary(200).kv("tokenizer.ggml.add_bos_token", true), "BOS of a prompt is not added in one and added in the other"),
            (vocabulary(200).kv("tokenizer.ggml.model", "llama").kv("tokenizer.ggml.scores", vec![0f32; 200]), "the kind is GPT2Tokenizer"),
        ] {
            let fault = fault(&draft).unwrap();
            assert!(fault.contains(why), "{fault}");
        }
    }
}

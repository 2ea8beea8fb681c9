//! Text ↔ token ids, from a GGUF file's vocabulary.

use crate::gguf::GgufFile;

#[derive(Debug, thiserror::Error)]
#[error("tokenizer: {0}")]
pub struct TokenizerError(pub String);

pub struct Tokenizer {}

impl Tokenizer {
    pub fn from_gguf(file: &GgufFile) -> Result<Self, TokenizerError> {
        let _ = file;
        todo!()
    }

    /// Text → ids, without BOS or EOS. With `parse_special` a control token's text becomes its id, else it stays plain text.
    pub fn encode(&self, text: &str, parse_special: bool) -> Vec<u32> {
        let _ = (text, parse_special);
        todo!()
    }

    /// As `encode`, with BOS and EOS where the file says that they are added.
    pub fn encode_with_bos_eos(&self, text: &str, parse_special: bool) -> Vec<u32> {
        let _ = (text, parse_special);
        todo!()
    }

    /// A rendered chat template → ids: control tokens' texts of the template's own become ids, those inside [`Tokenizer::shield`]ed text stay text; BOS is
    /// added where the file says so and the template did not write it.
    pub fn encode_rendered(&self, text: &str) -> Vec<u32> {
        let _ = text;
        todo!()
    }

    /// Marks control tokens' texts inside a user's string, so that `encode_rendered` leaves them plain text.
    pub fn shield(&self, text: &str) -> String {
        let _ = text;
        todo!()
    }

    /// The bytes that a token stands for (empty for control tokens unless `special`). None: no such id.
    pub fn token_bytes(&self, id: u32, special: bool) -> Option<&[u8]> {
        let _ = (id, special);
        todo!()
    }

    pub fn decode(&self, ids: &[u32], special: bool) -> String {
        let _ = (ids, special);
        todo!()
    }

    pub fn vocab_size(&self) -> usize {
        todo!()
    }

    pub fn bos(&self) -> Option<u32> {
        todo!()
    }

    pub fn eos(&self) -> Option<u32> {
        todo!()
    }

    /// Every id that ends a generation (EOS, EOT, EOM and the control tokens known to end a turn).
    pub fn end_ids(&self) -> &[u32] {
        todo!()
    }

    /// A token's own text (`<|im_end|>`), for templates' bos_token and eos_token.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        let _ = id;
        todo!()
    }
}

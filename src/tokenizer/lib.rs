//! Converts text to token ids and back, with the vocabulary of a GGUF file or of a Hugging Face `tokenizer.json`.
//!
//! ```no_run
//! use penstock_tokenizer::Tokenizer;
//!
//! let file = gguf::GgufFile::open("model.gguf".as_ref()).unwrap();
//! let tokenizer = Tokenizer::open(&file).unwrap();
//! let ids = tokenizer.encode("water runs", false);
//! println!("{ids:?} is {}", tokenizer.decode(&ids, false));
//!
//! // A user's text inside a prompt: text that looks like a control token stays text.
//! let prompt = format!("<|im_start|>user\n{}<|im_end|>\n", tokenizer.shield("ignore <|im_end|>"));
//! let ids = tokenizer.encode_rendered(&prompt, 4096);
//! ```
//!
//! Supports byte pair encoding over bytes (GPT-2) and over characters, SentencePiece's BPE by scores, unigram models, and WordPiece.
//!
//! # Invariants
//! - The ids are those of the vocabulary's own library. Golden files and the models' own test vectors check this.
//! - A vocabulary or pattern that is not supported is refused by name, never approximated.
//! - Encoding takes time linear in the text, apart from a logarithm for very long words. No text overflows the stack.
//! - Text never becomes a control token. Text that the vocabulary cannot spell becomes the tokens of its bytes (`<0x0A>`), or else the
//!   unknown token. If the vocabulary has none, the text is dropped.
//! - A table of normalisation rules makes a text at most 16 times as long, in linear time (`charsmap.rs`).
//! - A text with more than the permitted number of tokens is not encoded much further than that number.

mod bert_chars;
mod bert_text;
mod bpe;
mod cache;
mod chars;
mod charsmap;
mod draft_vocab;
mod ends;
mod error;
mod hf_pipeline;
mod hugging_face;
mod infill;
#[cfg(test)]
mod json_tests;
mod merge;
mod pair;
mod parts;
mod pieces;
mod pretokenize;
mod regex;
mod scan;
mod shield;
mod space;
mod special;
mod spm;
#[cfg(test)]
mod tests;
mod tokenizer;
mod unigram;
mod vocab;
mod wordpiece;
#[cfg(test)]
mod wordpiece_tests;

pub use error::TokenizerError;
pub use infill::{Gap, Infill};
pub use pair::Pair;
pub use parts::{Kind, Parts};
pub use tokenizer::Tokenizer;

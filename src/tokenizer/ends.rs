//! Finds the ids that end a generation.

use crate::vocab::{TokenType, VocabData};

/// Texts of tokens that end a turn or a document, whether or not the file's metadata lists their ids.
const END_TEXTS: [&str; 16] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end_of_turn|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<turn|>",
    "<end_of_utterance>",
    "<eos>",
    "</s>",
    "<EOT>",
    "<｜end▁of▁sentence｜>",
];

/// Every id that ends a generation, in ascending order.
pub(crate) fn end_ids(data: &VocabData) -> Vec<u32> {
    let mut ids: Vec<u32> = data.eos.into_iter().chain(data.other_ends.iter().copied()).collect();
    let special = (0u32..).zip(data.tokens.iter().zip(&data.types));
    let special = special.filter(|(_, (_, kind))| matches!(kind, TokenType::Control | TokenType::UserDefined));
    // A user-defined token `</s>` is an HTML tag.
    let special = special.filter(|(_, (text, kind))| **kind == TokenType::Control || *text != "</s>");
    let special: Vec<(u32, &str)> = special.map(|(id, (text, _))| (id, text.as_str())).collect();
    // In a vocabulary with `<|return|>`, `<|end|>` ends a message but not a turn.
    let harmony = special.iter().any(|(_, text)| *text == "<|return|>");
    let ends = special.iter().filter(|(_, text)| END_TEXTS.contains(text) && !(harmony && *text == "<|end|>"));
    ids.extend(ends.map(|(id, _)| id));
    ids.sort_unstable();
    ids.dedup();
    ids
}

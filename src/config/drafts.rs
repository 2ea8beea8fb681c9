//! [`Drafts`]: the setting `engine.drafts`.

use serde::{Deserialize, Serialize};

/// Whether answers are drafted: guessed from their own context, and verified several tokens per step. Drafts never change an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Drafts {
    /// Where rows of a step are cheap: on the CPU.
    Auto,
    /// From the context of each sequence, and from the answer that a request predicts.
    Ngram,
    /// From the same, and with the draft head of the model's file, if it has one.
    Heads,
    Off,
}

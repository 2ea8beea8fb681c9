//! The table of forms in which families write reasoning.

use super::syntax::Thinking;

/// The most line breaks that separate reasoning from an answer that follows rules. Further ones belong to the answer.
pub const MAX_SEPARATOR: usize = 2;

const fn between(open: &'static str, close: &'static str) -> Thinking {
    Thinking { marks: &[], open, close, head: "", tail: "" }
}

/// The forms of reasoning in order of precedence. A template gets the first one whose marks it holds, together with the opening or the
/// closing text.
pub const THINKING: &[Thinking] = &[
    Thinking { head: "<|channel|>final<|message|>", ..between("<|channel|>analysis<|message|>", "<|end|><|start|>assistant") },
    between("<think>", "</think>"),
    between("[THINK]", "[/THINK]"),
    Thinking {
        marks: &["<|START_TEXT|>"],
        head: "<|START_TEXT|>",
        tail: "<|END_TEXT|>",
        ..between("<|START_THINKING|>", "<|END_THINKING|>")
    },
    Thinking { head: "<|START_RESPONSE|>", tail: "<|END_RESPONSE|>", ..between("<|START_THINKING|>", "<|END_THINKING|>") },
    between("<seed:think>", "</seed:think>"),
    between("<mm:think>", "</mm:think>"),
    between("<|channel>thought\n", "<channel|>"),
    between("<think:opensource>", "</think:opensource>"),
    Thinking {
        head: "<|open|>response<|sep|>",
        tail: "<|close|>response<|sep|>",
        ..between("<|open|>think<|sep|>", "<|close|>think<|sep|>")
    },
    Thinking { head: " to=user<|message|>", ..between(" to=self<|message|>", "<|eom|><|start|>assistant") },
    Thinking { head: "<|content|>", ..between("<|think|>", "<|end|><|begin|>assistant") },
    Thinking { tail: "[END FINAL RESPONSE]", ..between("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]") },
    // The prompt ends with `>>>`, and the model writes the recipient first.
    Thinking { marks: &[">>>all"], head: "all\n", ..between("", "") },
];

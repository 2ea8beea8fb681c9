//! The dialect of a model's family: how its template takes tools, and how the model writes calls and reasoning.

mod families;
mod syntax;

use tokenizer::Tokenizer;

pub use families::{GENERIC, SYNTAXES, THINKING};
pub use syntax::{Arguments, Syntax, Tagged, Thinking};

/// Where a template takes the tools of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolPlacement {
    /// In its variable `tools`.
    Variable,
    /// In a key `tools` of the system message, as Phi's template does.
    SystemKey,
    /// Nowhere: the system message describes them in words.
    Words,
}

/// How a template takes the calls of earlier answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallForm {
    /// As `tool_calls`, with the arguments as an object.
    Objects,
    /// As `tool_calls`, with the arguments as JSON in a string.
    Strings,
    /// As text of the answer, because it does not know calls.
    Text,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Dialect {
    pub syntax: &'static Syntax,
    pub thinking: Option<&'static Thinking>,
    pub placement: ToolPlacement,
    pub calls: CallForm,
    /// Whether the template shows a system message.
    pub takes_system: bool,
    /// Whether the template refuses ids of calls other than nine letters and digits.
    pub short_ids: bool,
    /// The control tokens that calls and reasoning are written with.
    pub tags: Vec<u32>,
}

impl Dialect {
    /// The control tokens in the texts of the syntax and of the reasoning, in ascending order.
    pub(super) fn control_tokens(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let Syntax { trigger, open, before, between, after, separator, close, .. } = *self.syntax;
        let thinking = self.thinking.map_or(["", "", ""], |thinking| [thinking.open, thinking.close, thinking.head]);
        let tagged = self.syntax.tagged().map_or([""; 4], |tags| [tags.before, tags.text, tags.json, tags.after]);
        let texts = [trigger, open, before, between, after, separator, close].into_iter().chain(tagged).chain(thinking);
        let mut tags: Vec<u32> = texts.flat_map(|text| tokenizer.control_pieces(text)).filter_map(Result::ok).collect();
        tags.sort_unstable();
        tags.dedup();
        tags
    }

    /// Whether a prompt ends inside the model's reasoning.
    pub fn opens_reasoning(&self, prompt: &str) -> bool {
        self.thinking.is_some_and(|thinking| prompt.trim_end().ends_with(thinking.open.trim_end()))
    }
}

//! The dialect of a model family: how its template takes tools, and how the model writes calls and reasoning.

mod families;
mod notation;
mod placeholders;
mod reasoning;
mod syntax;
mod turn_order;

use super::effort::ReasoningLevels;
use tokenizer::Tokenizer;

pub use families::{GENERIC, SYNTAXES};
pub use notation::Notation;
pub use placeholders::{SyntaxPart, filled, match_with_placeholders, parts, split};
pub use reasoning::{MAX_SEPARATOR, THINKING};
pub use syntax::{Arguments, Syntax, Tagged, Thinking, type_of};
pub use turn_order::{Alternation, CallText, SystemPlace, TurnOrder};

/// The place in which a template takes the tools of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolPlacement {
    /// In the template's variable `tools`.
    Variable,
    /// In a variable of another name.
    Named(&'static str),
    /// In a key `tools` of the system message, as Phi's template does.
    SystemKey,
    /// Nowhere: the system message describes them in words.
    Words,
}

/// The form in which a template takes the calls of earlier answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallForm {
    /// As `tool_calls`, with the arguments as an object.
    Objects,
    /// As `tool_calls`, with the arguments as JSON in a string.
    Strings,
    /// As text of the answer, because the template does not support calls.
    Text,
}

/// The form in which a template takes the results of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultForm {
    /// As messages with the role `tool`.
    Messages,
    /// As the key `tool_responses` of the message that made the calls, as Gemma 4's template does.
    OfCalls,
    /// As text of the user's messages, because the template does not support results.
    Text,
}

/// The way in which a template shows pictures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PictureForm {
    /// Not at all: a picture is a line of the message's text.
    Lines,
    /// As parts of a list, which the template turns into this text. The text holds a control token, so no client can write it.
    Parts { mark: String },
    /// As parts of a list, which the template turns into a text that a client can write, too. So pictures are a part of the text, with the
    /// template's white space before and after each. `first`: they go before the message's text.
    Inline { space: [String; 2], first: bool },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Dialect {
    pub syntax: &'static Syntax,
    pub thinking: Option<&'static Thinking>,
    pub placement: ToolPlacement,
    pub calls: CallForm,
    /// Whether the template shows a call only if the message's content is null.
    pub null_content: bool,
    /// The form in which the template takes the results of calls.
    pub results: ResultForm,
    /// The key under which the template takes the reasoning of earlier answers.
    pub reasoning_key: &'static str,
    /// The orders of messages that the template takes.
    pub turns: TurnOrder,
    /// The levels of reasoning that the template supports, and the way to set them.
    pub levels: ReasoningLevels,
    /// Whether the template refuses ids of calls other than nine letters and digits.
    pub short_ids: bool,
    /// The way in which the template shows pictures.
    pub pictures: PictureForm,
    /// Whether the template shows a message's content only if it is a list of parts.
    pub needs_lists: bool,
    /// The control tokens that are used to write calls and reasoning.
    pub tags: Vec<u32>,
}

impl Dialect {
    /// The control tokens in the texts of the syntax and of the reasoning, in ascending order.
    pub(super) fn control_tokens(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let thinking = self.thinking.map_or([""; 4], |thinking| [thinking.open, thinking.close, thinking.head, thinking.tail]);
        let texts = self.syntax.texts().into_iter().chain(thinking);
        let mut tags: Vec<u32> = texts.flat_map(|text| tokenizer.control_pieces(text)).filter_map(Result::ok).collect();
        tags.sort_unstable();
        tags.dedup();
        tags
    }

    /// Whether a prompt ends inside the model's reasoning.
    pub fn opens_reasoning(&self, prompt: &str) -> bool {
        self.reasons().is_some_and(|thinking| prompt.trim_end().ends_with(thinking.open.trim_end()))
    }

    /// Whether the template itself declares tools to the model.
    pub fn takes_tools(&self) -> bool {
        self.placement != ToolPlacement::Words
    }

    /// The texts around the family's reasoning. `None` if the family does not reason.
    pub fn reasons(&self) -> Option<&'static Thinking> {
        self.thinking.filter(|thinking| !thinking.open.is_empty())
    }

    /// A dialect whose template takes any order of messages as is. For probes and tests.
    pub(super) fn plain(syntax: &'static Syntax, placement: ToolPlacement, calls: CallForm) -> Self {
        Self {
            syntax,
            thinking: None,
            placement,
            calls,
            null_content: false,
            results: if calls == CallForm::Text { ResultForm::Text } else { ResultForm::Messages },
            reasoning_key: "reasoning_content",
            turns: TurnOrder::ALL,
            levels: ReasoningLevels::None,
            short_ids: false,
            pictures: PictureForm::Lines,
            needs_lists: false,
            tags: Vec::new(),
        }
    }
}

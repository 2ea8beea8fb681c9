//! [`AnswerStart`]: where in the model's turn an answer begins.

use super::conversation::{Conversation, Ending, Message};
use super::dialect::Dialect;

/// The place in the model's turn at which an answer begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnswerStart {
    /// At the start of the turn, so the model may reason first.
    #[default]
    Turn,
    /// Inside reasoning. `begun`: the prompt already holds some reasoning, not only the tag that opens it.
    Reasoning { begun: bool },
    /// Inside the answer's text, which the model continues.
    Text,
}

impl Dialect {
    /// Where the answer to a conversation begins. `prompt` is the rendered conversation.
    pub fn entry(&self, conversation: &Conversation, prompt: &str) -> AnswerStart {
        if self.opens_reasoning(prompt) {
            return AnswerStart::Reasoning { begun: false };
        }
        if let Some(thought) = self.continued_reasoning(conversation) {
            return AnswerStart::Reasoning { begun: !thought.trim().is_empty() };
        }
        match continued(conversation).is_some_and(|message| !message.text().trim().is_empty()) {
            true => AnswerStart::Text,
            false => AnswerStart::Turn,
        }
    }

    /// The reasoning that the answer continues, if the last message opens reasoning and does not close it.
    pub fn continued_reasoning(&self, conversation: &Conversation) -> Option<String> {
        let (thinking, text) = (self.reasons()?, continued(conversation)?.text());
        let thought = text.trim_start().strip_prefix(thinking.open.trim())?;
        (!thought.contains(thinking.close)).then(|| thought.to_owned())
    }
}

/// The message that the answer continues.
fn continued(conversation: &Conversation) -> Option<&Message> {
    conversation.messages.last().filter(|_| conversation.ending == Ending::Continue)
}

#[cfg(test)]
impl AnswerStart {
    /// Inside reasoning that the template has opened, or at the start of the turn.
    pub fn opened(is_opened: bool) -> Self {
        if is_opened { Self::Reasoning { begun: false } } else { Self::Turn }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::Role;
    use crate::dialect::{CallForm, GENERIC, THINKING, ToolPlacement};

    #[test]
    fn an_answer_begins_where_its_prompt_ends() {
        let dialect = Dialect { thinking: Some(&THINKING[1]), ..Dialect::plain(GENERIC, ToolPlacement::Words, CallForm::Text) };
        let of = |text: &str, ending| {
            let messages = vec![Message::of_text(Role::Assistant, text)];
            let conversation = Conversation { messages, ending, ..Conversation::default() };
            dialect.entry(&conversation, &format!("<|assistant|>{text}"))
        };
        let continued = |text| of(text, Ending::Continue);
        assert_eq!(continued("The capital"), AnswerStart::Text);
        assert_eq!(continued("Write <think> first, then"), AnswerStart::Text, "a text about the tag");
        assert_eq!(continued("<think>Hm.</think>\n\nThe"), AnswerStart::Text);
        assert_eq!([continued(""), continued("\n")], [AnswerStart::Turn; 2]);
        assert_eq!(continued("<think>\n"), AnswerStart::Reasoning { begun: false });
        assert_eq!(continued("<think>\nHm,"), AnswerStart::Reasoning { begun: true });
        assert_eq!(of("<think>\nHm,", Ending::OpenTurn), AnswerStart::Turn);
        assert_eq!(of("<|assistant|><think>\n", Ending::OpenTurn), AnswerStart::Reasoning { begun: false }, "the template opens it");
    }
}

//! Reads from a chat template how it sets levels of reasoning: by name, or by a switch that changes the prompt.

use super::conversation::{Conversation, Message, Role};
use super::dialect::Dialect;
use super::effort::{LEVELS, NONE, ReasoningLevels, STRENGTHS, SWITCHES};
use super::trial::Trials;

/// Finds the way in which the template sets levels of reasoning.
pub(super) fn levels(trials: &Trials, dialect: &Dialect) -> ReasoningLevels {
    let source = trials.template.source();
    let shown = |name: &str, value| {
        let messages = vec![Message::of_text(Role::System, "a"), Message::of_text(Role::User, "b")];
        let variables = [(name.to_owned(), value)].into_iter().collect();
        trials.render(&Conversation { messages, variables, ..Conversation::default() }, dialect)
    };
    if let Some(variable) = LEVELS.into_iter().find(|name| source.contains(name)) {
        let refused = STRENGTHS.into_iter().chain([NONE]).filter(|level| shown(variable, (*level).into()).is_none()).collect();
        return ReasoningLevels::Named { variable, refused };
    }
    let is_shown = |name: &str, [off, on]: [_; 2]| shown(name, off).is_some_and(|text| shown(name, on).is_some_and(|other| other != text));
    let found =
        SWITCHES.iter().find(|switch| source.contains(switch.name) && is_shown(switch.name, [false, true].map(|on| switch.value(on))));
    found.map_or(ReasoningLevels::None, ReasoningLevels::Switched)
}

//! Levels of reasoning: how a template knows them, and which one a conversation gets.

use serde_json::Value;

use super::conversation::Conversation;

/// The effort with which a model reasons at the level that its template chooses.
pub const REASON: &str = "on";
/// The effort of a model that is not to reason.
pub(super) const NONE: &str = "none";

/// Levels of reasoning by their strength.
pub(super) const STRENGTHS: [&str; 6] = ["minimal", "low", "medium", "high", "xhigh", "max"];

/// The variables by which templates know levels of reasoning.
pub(super) const LEVELS: [&str; 3] = ["reasoning_effort", "thinking_effort", "reasoning_strength"];

/// A variable that switches reasoning on and off.
#[derive(Debug, PartialEq, Eq)]
pub struct ReasoningSwitch {
    pub name: &'static str,
    off: SwitchValue,
    on: SwitchValue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SwitchValue {
    Flag(bool),
    Word(&'static str),
}

pub(super) const SWITCHES: &[ReasoningSwitch] = &[
    ReasoningSwitch { name: "enable_thinking", off: SwitchValue::Flag(false), on: SwitchValue::Flag(true) },
    ReasoningSwitch { name: "thinking", off: SwitchValue::Flag(false), on: SwitchValue::Flag(true) },
    ReasoningSwitch { name: "thinking_mode", off: SwitchValue::Word("disabled"), on: SwitchValue::Word("enabled") },
];

impl ReasoningSwitch {
    pub(super) fn value(&self, is_on: bool) -> Value {
        match if is_on { self.on } else { self.off } {
            SwitchValue::Flag(flag) => flag.into(),
            SwitchValue::Word(word) => word.into(),
        }
    }
}

/// How a template knows levels of reasoning.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ReasoningLevels {
    #[default]
    None,
    /// By name, in a variable. `refused`: those of [`STRENGTHS`] and `none` that the template refuses.
    Named {
        variable: &'static str,
        refused: Vec<&'static str>,
    },
    Switched(&'static ReasoningSwitch),
}

/// A variable of the template that no conversation needs, or that it needs with this value.
pub(super) type Variable = Option<(&'static str, Value)>;

impl ReasoningLevels {
    /// The variable that sets an effort. `reasons`: whether the model reasons. `is_advice`: only what is sure to count is set. `None`: the
    /// template does not know the effort.
    fn variable(&self, effort: &str, reasons: bool, is_advice: bool) -> Option<Variable> {
        match self {
            Self::Named { variable, refused } if effort != REASON => {
                let is_known = !is_advice || !refused.contains(&effort);
                is_known.then(|| Some((*variable, effort.into())))
            }
            Self::Switched(switch) if effort == REASON || effort == NONE => Some(Some((switch.name, switch.value(effort == REASON)))),
            // Where nothing switches reasoning on, the model reasons by itself.
            _ if effort == REASON => Some(None),
            // Levels that ask for nothing: the one that clients send by default, and no reasoning of a model that does none.
            _ if !is_advice && (effort == "medium" || (effort == NONE && !reasons)) => Some(None),
            _ => None,
        }
    }

    /// The variable that sets the effort of a conversation. An effort that is advice becomes the first of its others that the template
    /// knows, or is left out. `None`: the template does not know the effort.
    pub(super) fn variable_of(&self, conversation: &Conversation, reasons: bool) -> Option<Variable> {
        let Some(effort) = &conversation.effort else { return Some(None) };
        match &conversation.or_efforts {
            None => self.variable(effort, reasons, false),
            Some(others) => {
                let found = std::iter::once(effort).chain(others).find_map(|effort| self.variable(effort, reasons, true));
                Some(found.flatten())
            }
        }
    }
}

/// The levels next to one, the nearest first, and the stronger one of two that are as near. Empty if the level is not known.
pub fn nearest_efforts(effort: &str) -> Vec<String> {
    let Some(at) = STRENGTHS.iter().position(|level| *level == effort) else { return Vec::new() };
    let mut others: Vec<usize> = (0..STRENGTHS.len()).rev().filter(|other| *other != at).collect();
    others.sort_by_key(|other| other.abs_diff(at));
    others.into_iter().map(|other| STRENGTHS[other].to_owned()).collect()
}

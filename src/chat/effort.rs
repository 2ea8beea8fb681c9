//! [`ReasoningLevels`]: the way in which a template sets levels of reasoning, and the level that a conversation gets.

use serde_json::Value;

use super::conversation::Conversation;

/// The effort that turns reasoning on at the template's own level.
pub const REASON: &str = "on";
/// The effort that turns reasoning off.
pub(super) const NONE: &str = "none";

/// Levels of reasoning, weakest first.
pub(super) const STRENGTHS: [&str; 6] = ["minimal", "low", "medium", "high", "xhigh", "max"];

/// The variables in which templates take a level of reasoning.
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

/// The way in which a template sets levels of reasoning.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ReasoningLevels {
    #[default]
    None,
    /// By name, in a variable. `refused`: the levels among [`STRENGTHS`] and `none` that the template refuses.
    Named {
        variable: &'static str,
        refused: Vec<&'static str>,
    },
    Switched(&'static ReasoningSwitch),
}

/// The variable of the template to set, with its value. `None`: no variable is needed.
pub(super) type Variable = Option<(&'static str, Value)>;

impl ReasoningLevels {
    /// The variable that sets an effort. `reasons`: whether the model reasons. `is_advice`: set only levels that the template is sure to
    /// take. `None`: the template does not know the effort.
    fn variable(&self, effort: &str, reasons: bool, is_advice: bool) -> Option<Variable> {
        match self {
            Self::Named { variable, refused } if effort != REASON => {
                let is_known = !is_advice || !refused.contains(&effort);
                is_known.then(|| Some((*variable, effort.into())))
            }
            Self::Switched(switch) if effort == REASON || effort == NONE => Some(Some((switch.name, switch.value(effort == REASON)))),
            // Without a switch, the model reasons on its own.
            _ if effort == REASON => Some(None),
            // Levels that need no variable: the one that clients send by default, and `none` for a model that does not reason.
            _ if !is_advice && (effort == "medium" || (effort == NONE && !reasons)) => Some(None),
            _ => None,
        }
    }

    /// The variable that sets the effort of a conversation. If the effort is advice, the first effort that the template knows is set, or
    /// none at all. `None`: the template does not know the effort.
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

/// The other levels, nearest first; of two equally near ones, the stronger first. Empty if the level is unknown.
pub fn nearest_efforts(effort: &str) -> Vec<String> {
    let Some(at) = STRENGTHS.iter().position(|level| *level == effort) else { return Vec::new() };
    let mut others: Vec<usize> = (0..STRENGTHS.len()).rev().filter(|other| *other != at).collect();
    others.sort_by_key(|other| other.abs_diff(at));
    others.into_iter().map(|other| STRENGTHS[other].to_owned()).collect()
}

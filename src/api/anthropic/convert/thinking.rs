//! `thinking` and `output_config.effort`: whether and how much the model reasons.

use serde_json::{Map, Value};

use crate::http::error::{ApiError, quoted};
use crate::http::fields::Fields;

/// The least budget, as in Anthropic's API.
const MIN_BUDGET: i64 = 1024;
const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];
/// The variables by which chat templates know levels of reasoning. A template without them shows none.
const LEVELS: [&str; 3] = ["reasoning_effort", "thinking_effort", "reasoning_strength"];
/// The variables by which chat templates switch reasoning on and off.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

/// What becomes of the model's reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shown {
    /// It is left out: the client has not asked for it and may not know its blocks.
    #[default]
    No,
    /// Its blocks hold a signature only, which carries it.
    Signed,
    Whole,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thinking {
    pub is_on: bool,
    pub shown: Shown,
    /// The most tokens of reasoning.
    pub budget: Option<u32>,
}

/// `None`: the request does not say.
pub fn thinking(fields: &Fields, max_tokens: Option<u32>) -> Result<Option<Thinking>, ApiError> {
    let Some(value) = fields.get("thinking") else { return Ok(None) };
    let inner = fields.within(value, "thinking")?;
    let kind = inner.required("type", inner.string("type")?)?;
    match kind {
        "enabled" => inner.only(&["type", "budget_tokens", "display"])?,
        "adaptive" => inner.only(&["type", "display"])?,
        "disabled" => {
            inner.only(&["type"])?;
            return Ok(Some(Thinking { is_on: false, shown: Shown::No, budget: None }));
        }
        other => return Err(inner.invalid("type", format_args!("must be enabled, disabled or adaptive, not `{}`", quoted(other)))),
    }
    let shown = match inner.string("display")? {
        None | Some("summarized") => Shown::Whole,
        Some("omitted") => Shown::Signed,
        Some(other) => return Err(inner.invalid("display", format_args!("must be summarized or omitted, not `{}`", quoted(other)))),
    };
    let budget = if kind == "enabled" { Some(budget(&inner, max_tokens)?) } else { None };
    Ok(Some(Thinking { is_on: true, shown, budget }))
}

fn budget(inner: &Fields, max_tokens: Option<u32>) -> Result<u32, ApiError> {
    let budget = inner.integer("budget_tokens", MIN_BUDGET..=i64::from(u32::MAX))?;
    let budget = inner.required("budget_tokens", budget)? as u32;
    match max_tokens.filter(|most| budget >= *most) {
        Some(most) => Err(inner.invalid("budget_tokens", format_args!("is {budget}, and must be less than the {most} of `max_tokens`"))),
        None => Ok(budget),
    }
}

/// Sets the variables that switch reasoning, except those that `kept` has.
pub fn switch(variables: &mut Map<String, Value>, is_on: bool, kept: &Map<String, Value>) {
    let mode = if is_on { "enabled" } else { "disabled" };
    let switches = SWITCHES.map(|name| (name, Value::Bool(is_on))).into_iter().chain([("thinking_mode", mode.into())]);
    for (name, value) in switches.filter(|(name, _)| !kept.contains_key(*name)) {
        variables.entry(name).or_insert(value);
    }
}

/// `effort` of `output_config`. It is advice: a model without levels of reasoning has one for all of them.
pub fn effort(output: &Fields, variables: &mut Map<String, Value>) -> Result<(), ApiError> {
    let Some(effort) = output.string("effort")? else { return Ok(()) };
    if !EFFORTS.contains(&effort) {
        return Err(output.invalid("effort", format_args!("must be one of {}, not `{}`", EFFORTS.join(", "), quoted(effort))));
    }
    variables.extend(LEVELS.map(|name| (name.to_owned(), effort.into())));
    Ok(())
}

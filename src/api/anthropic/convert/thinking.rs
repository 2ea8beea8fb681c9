//! `thinking` and `output_config.effort`: whether and how much the model reasons.

use serde_json::{Map, Value};

use chat::{Conversation, nearest_efforts};
use http::error::{ApiError, quoted};
use http::fields::Fields;

/// The least budget, as in Anthropic's API.
const MIN_BUDGET: i64 = 1024;
const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];
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

/// `None`: the request does not say. `interleaved`: it may reason between its calls.
pub fn thinking(fields: &Fields, max_tokens: Option<u32>, interleaved: bool) -> Result<Option<Thinking>, ApiError> {
    let Some(value) = fields.get("thinking") else { return Ok(None) };
    let inner = fields.within(value, "thinking")?;
    let kind = inner.required("type", inner.string("type")?)?;
    match kind {
        // With `between_tools`, the model decides when it reasons.
        "enabled" | "adaptive" | "between_tools" => {}
        "disabled" => return Ok(Some(Thinking { is_on: false, shown: Shown::No, budget: None })),
        other => {
            return Err(
                inner.invalid("type", format_args!("must be enabled, disabled, adaptive or between_tools, not `{}`", quoted(other)))
            );
        }
    }
    inner.object("block_binding")?;
    let shown = match inner.string("display")? {
        None | Some("summarized" | "updates") => Shown::Whole,
        Some("omitted") => Shown::Signed,
        Some(other) => {
            return Err(inner.invalid("display", format_args!("must be summarized, updates or omitted, not `{}`", quoted(other))));
        }
    };
    let budget = if kind == "enabled" { Some(budget(&inner, max_tokens, interleaved)?) } else { None };
    Ok(Some(Thinking { is_on: true, shown, budget }))
}

/// `interleaved`: the budget is one of all turns, and an answer takes of it what fits.
fn budget(inner: &Fields, max_tokens: Option<u32>, interleaved: bool) -> Result<u32, ApiError> {
    let budget = inner.integer("budget_tokens", MIN_BUDGET..=i64::from(u32::MAX))?;
    let budget = inner.required("budget_tokens", budget)? as u32;
    match max_tokens.filter(|most| budget >= *most) {
        Some(most) if interleaved => Ok((most - 1).max(1)),
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

/// `effort` of `output_config`. It is advice: a template that does not know it gets the nearest that it knows, or none.
pub fn effort(output: &Fields, conversation: &mut Conversation) -> Result<(), ApiError> {
    let Some(effort) = output.string("effort")? else { return Ok(()) };
    if !EFFORTS.contains(&effort) {
        return Err(output.invalid("effort", format_args!("must be one of {}, not `{}`", EFFORTS.join(", "), quoted(effort))));
    }
    conversation.or_efforts = Some(nearest_efforts(effort));
    conversation.effort = Some(effort.to_owned());
    Ok(())
}

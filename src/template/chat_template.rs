//! [`ChatTemplate`]: a parsed template in its sandbox.

use std::sync::Arc;

use crate::budget::{input_bytes, with_budget};
use crate::clock::Clock;
use crate::error::TemplateError;
use crate::failure::{Fault, Kind, Outcome};
use crate::input::{Input, RenderInput, is_reserved};
use crate::large_stack::on_large_stack;
use crate::syntax::ast::Statement;
use crate::syntax::{Known, parse};
use crate::{library, run, source};

/// The most steps of one render: `BASE_STEPS`, and `MESSAGE_STEPS` per message, up to `MAX_STEPS`. A real template takes a few thousand for
/// a short conversation. Some visit every message for each message, and the heaviest takes millions for a thousand messages.
const BASE_STEPS: u64 = 500_000;
const MESSAGE_STEPS: u64 = 20_000;
const MAX_STEPS: u64 = 20_000_000;

/// A parsed template. Rendering does not change it, so many threads may share one.
pub struct ChatTemplate {
    body: Arc<Vec<Statement>>,
    clock: Clock,
    source: String,
    bos_token: String,
    eos_token: String,
}

impl ChatTemplate {
    /// Parses a template. `strftime_now` returns the current time in UTC.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, TemplateError> {
        Self::with_clock(source, bos_token, eos_token, Clock::System)
    }

    /// Like `new`, with a given clock for `strftime_now`.
    pub fn with_clock(source: &str, bos_token: &str, eos_token: &str, clock: Clock) -> Result<Self, TemplateError> {
        source::check(source).map_err(TemplateError::Invalid)?;
        let copy = source.to_owned();
        let known = Known { filter: library::has_filter, test: library::has_test };
        let body = on_large_stack(move || parse(&copy, known))?.map_err(|fault| shown(&fault))?;
        let (bos_token, eos_token) = (bos_token.to_string(), eos_token.to_string());
        Ok(Self { body: Arc::new(body), clock, source: source.to_owned(), bos_token, eos_token })
    }

    /// The template's Jinja source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders the prompt. May take as long as the limits permit, so do not call it on the event loop.
    pub fn render(&self, input: &RenderInput) -> Result<String, TemplateError> {
        if let Some(name) = input.kwargs.keys().find(|name| is_reserved(name)) {
            return Err(TemplateError::Invalid(format!("the variable `{name}` is defined for every template and cannot be set")));
        }
        let kwargs = input.kwargs.values().map(input_bytes).sum::<u64>();
        let bytes = input_bytes(&input.messages) + input.tools.as_ref().map_or(0, input_bytes) + kwargs;
        let messages = input.messages.as_array().map_or(0, Vec::len) as u64;
        let steps = BASE_STEPS.saturating_add(messages.saturating_mul(MESSAGE_STEPS)).min(MAX_STEPS);
        let (mut variables, body, clock) = (self.variables(input), Arc::clone(&self.body), self.clock);
        let without_tools = input.tools.is_none();
        let prompt: Outcome<String> = on_large_stack(move || {
            with_budget(bytes, steps, || {
                let prompt = run::render(&body, &variables, clock);
                // Templates written only for tools may loop over them without checking that there are any. An undefined variable acts as an
                // empty list.
                if without_tools && prompt.as_ref().is_err_and(|fault| fault.kind() == Kind::Type) {
                    variables.retain(|(name, _)| &**name != "tools");
                    return run::render(&body, &variables, clock).or(prompt);
                }
                prompt
            })
        })?;
        prompt.map_err(|fault| shown(&fault))
    }

    fn variables(&self, input: &RenderInput) -> Vec<(Arc<str>, Input)> {
        let mut pairs: Vec<(Arc<str>, Input)> = input.kwargs.iter().map(|(name, value)| (name.as_str().into(), Input::of(value))).collect();
        pairs.push(("messages".into(), Input::of(&input.messages)));
        pairs.push(("tools".into(), input.tools.as_ref().map_or(Input::None, Input::of)));
        pairs.push(("add_generation_prompt".into(), Input::Bool(input.add_generation_prompt)));
        pairs.push(("bos_token".into(), Input::Text(self.bos_token.as_str().into())));
        pairs.push(("eos_token".into(), Input::Text(self.eos_token.as_str().into())));
        pairs
    }
}

fn shown(fault: &Fault) -> TemplateError {
    let what = match fault.kind() {
        Kind::Raised => return TemplateError::Raised(fault.text().to_owned()),
        Kind::Syntax => format!("syntax error: {}", fault.text()),
        _ => fault.text().to_owned(),
    };
    TemplateError::Invalid(match fault.line() {
        Some(line) => format!("line {line}: {what}"),
        None => what,
    })
}

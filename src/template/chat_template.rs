//! [`ChatTemplate`]: a compiled template in its sandbox.

use std::error::Error as _;
use std::io::Write;
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, ErrorKind};

use crate::budget::MAX_OUTPUT;
use crate::clock::Clock;
use crate::error::TemplateError;
use crate::input::{RenderInput, is_reserved};
use crate::instrument::instrument;
use crate::large_stack::on_large_stack;
use crate::{budget, builtins, json, python, source};

/// Instructions that one render may execute: `BASE_FUEL`, and `MESSAGE_FUEL` per message up to `MAX_FUEL`. A real template takes a few
/// thousand for a short conversation. Some look at every message for each message, and the heaviest takes millions for a thousand.
const BASE_FUEL: u64 = 500_000;
const MESSAGE_FUEL: u64 = 20_000;
const MAX_FUEL: u64 = 20_000_000;

/// A compiled template. Rendering does not change it, so many threads may share one.
pub struct ChatTemplate {
    env: Arc<Environment<'static>>,
    source: String,
    bos_token: String,
    eos_token: String,
}

impl ChatTemplate {
    /// Compiles a template. `strftime_now` gives the current time in UTC.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, TemplateError> {
        Self::with_clock(source, bos_token, eos_token, Clock::System)
    }

    /// Like `new`, with a clock for `strftime_now`.
    pub fn with_clock(source: &str, bos_token: &str, eos_token: &str, clock: Clock) -> Result<Self, TemplateError> {
        source::check(source).map_err(TemplateError::Invalid)?;
        let source = source::strip_generation_tags(source);
        let copy = source.clone();
        let env = on_large_stack(move || environment(copy, clock))?.map_err(|e| invalid(&e))?;
        Ok(Self { env: Arc::new(env), source, bos_token: bos_token.to_string(), eos_token: eos_token.to_string() })
    }

    /// The Jinja source, without `generation` tags.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders the prompt. May take as long as the limits permit, so do not call it on the event loop.
    pub fn render(&self, input: &RenderInput) -> Result<String, TemplateError> {
        if let Some(name) = input.kwargs.keys().find(|name| is_reserved(name)) {
            return Err(TemplateError::Invalid(format!("the variable `{name}` is defined for every template and cannot be set")));
        }
        let kwargs = input.kwargs.values().map(budget::input_bytes).sum::<u64>();
        let bytes = budget::input_bytes(&input.messages) + input.tools.as_ref().map_or(0, budget::input_bytes) + kwargs;
        let context = self.context(input);
        let messages = input.messages.as_array().map_or(0, Vec::len) as u64;
        let mut env = Environment::clone(&self.env);
        env.set_fuel(Some(BASE_FUEL.saturating_add(messages.saturating_mul(MESSAGE_FUEL)).min(MAX_FUEL)));
        on_large_stack(move || budget::with_budget(bytes, || render(&env, context)))?
    }

    fn context(&self, input: &RenderInput) -> minijinja::Value {
        let mut pairs: Vec<(String, minijinja::Value)> =
            input.kwargs.iter().map(|(k, v)| (k.clone(), minijinja::Value::from(Serde(v)))).collect();
        pairs.push(("messages".into(), minijinja::Value::from(Serde(&input.messages))));
        pairs.push(("tools".into(), input.tools.as_ref().map_or(minijinja::Value::from(()), |t| minijinja::Value::from(Serde(t)))));
        pairs.push(("add_generation_prompt".into(), input.add_generation_prompt.into()));
        pairs.push(("bos_token".into(), self.bos_token.as_str().into()));
        pairs.push(("eos_token".into(), self.eos_token.as_str().into()));
        minijinja::Value::from_pairs(pairs)
    }
}

fn environment(source: String, clock: Clock) -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    let source = instrument(&source, syntax.clone())?;
    env.set_syntax(syntax);
    builtins::add_to(&mut env);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_unknown_method_callback(python::method);
    env.add_test("iterable", python::is_iterable);
    env.add_filter("tojson", json::tojson);
    env.add_filter("from_json", json::from_json);
    env.add_function("raise_exception", |text: String| -> Result<minijinja::Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(RaisedText(text)))
    });
    env.add_function("strftime_now", move |format: &str| clock.strftime(format));
    env.add_template_owned("chat_template", source)?;
    Ok(env)
}

fn render(env: &Environment<'static>, context: minijinja::Value) -> Result<String, TemplateError> {
    let mut output = CappedOutput(Vec::new());
    let template = env.get_template("chat_template").map_err(|e| invalid(&e))?;
    template.render_captured_to(context, &mut output).map_err(|e| invalid(&e))?;
    String::from_utf8(output.0).map_err(|_| TemplateError::Invalid("the output is not UTF-8".into()))
}

/// The text of a call of `raise_exception`, as the source of minijinja's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct RaisedText(String);

fn invalid(error: &Error) -> TemplateError {
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(RaisedText(text)) = inner.downcast_ref() {
            return TemplateError::Raised(text.clone());
        }
        source = inner.source();
    }
    let what = match error.kind() {
        ErrorKind::OutOfFuel => "the render takes too many steps".to_owned(),
        ErrorKind::WriteFailure => format!("the output is longer than {} MiB", MAX_OUTPUT >> 20),
        kind => error.detail().map_or_else(|| kind.to_string(), |detail| format!("{kind}: {detail}")),
    };
    TemplateError::Invalid(match error.line() {
        Some(line) => format!("line {line}: {what}"),
        None => what,
    })
}

/// At most `MAX_OUTPUT` bytes. An output of more than `DOUBLING_OUTPUT` bytes reserves the whole limit at once: pages that are not
/// written take no memory, while doubling leaves copies behind that the allocator returns only some time later.
struct CappedOutput(Vec<u8>);

const DOUBLING_OUTPUT: usize = 4 << 20;

impl Write for CappedOutput {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let length = self.0.len() + bytes.len();
        if length > MAX_OUTPUT {
            return Err(std::io::Error::other("output limit"));
        }
        if length > DOUBLING_OUTPUT {
            self.0.reserve_exact(MAX_OUTPUT - self.0.len());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

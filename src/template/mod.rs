//! Chat templates: a model's own Jinja source, rendered in a sandbox.
//!
//! A template comes with a model file, so it is not trusted: its source is capped, it is compiled and rendered on a thread of its own with
//! a large stack (minijinja recurses over the syntax tree), and what a render takes in steps, holds in values and gives in bytes is
//! limited.

use std::error::Error as _;
use std::io::Write;
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use serde_json::{Map, Value};

mod clock;
mod edit;
mod features;
mod guard;
mod guarded;
mod json;
mod limits;
mod python;
#[cfg(test)]
mod tests;

pub use clock::Clock;
pub use features::Features;

/// Instructions that one render may take. The heaviest of the real templates at hand takes some thousands a conversation.
const FUEL: u64 = 500_000;
/// Bytes that one render may give.
const MAX_OUTPUT: usize = 32 << 20;
/// Address space, not memory: only the pages that a render touches become resident.
const STACK: usize = 256 << 20;
/// Names that a template's context defines itself, and that a request may therefore not set.
const RESERVED: [&str; 9] =
    ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "raise_exception", "strftime_now", "namespace", "range"];

#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The template's own `raise_exception`.
    #[error("{0}")]
    Raised(String),
    #[error("chat template: {0}")]
    Invalid(String),
}

/// What a template sees.
#[derive(Clone, Debug, Default)]
pub struct RenderInput {
    /// A JSON array of messages.
    pub messages: Value,
    pub tools: Option<Value>,
    pub add_generation_prompt: bool,
    /// `chat_template_kwargs`: may not override the names above.
    pub kwargs: Map<String, Value>,
}

/// A compiled template. Rendering is stateless: one may serve many threads.
pub struct ChatTemplate {
    env: Arc<Environment<'static>>,
    source: String,
    bos_token: String,
    eos_token: String,
}

impl ChatTemplate {
    /// Compiles a template; `strftime_now` gives the real time in UTC.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, TemplateError> {
        Self::with_clock(source, bos_token, eos_token, Clock::System)
    }

    /// As `new`, with the time that `strftime_now` gives.
    pub fn with_clock(source: &str, bos_token: &str, eos_token: &str, clock: Clock) -> Result<Self, TemplateError> {
        guard::check_source(source).map_err(TemplateError::Invalid)?;
        let source = guard::strip_generation_tags(source);
        let copy = source.clone();
        let env = on_large_stack(move || environment(copy, clock))?.map_err(|e| invalid(&e))?;
        Ok(Self { env: Arc::new(env), source, bos_token: bos_token.to_string(), eos_token: eos_token.to_string() })
    }

    /// The Jinja that it was compiled from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The prompt's text. Takes its limits' worth of time at most: call it off the event loop.
    pub fn render(&self, input: &RenderInput) -> Result<String, TemplateError> {
        if let Some(name) = input.kwargs.keys().find(|k| RESERVED.contains(&k.as_str()) || k.starts_with(edit::PREFIX)) {
            return Err(TemplateError::Invalid(format!("chat_template_kwargs may not set `{name}`")));
        }
        let kwargs = input.kwargs.values().map(limits::input_bytes).sum::<u64>();
        let bytes = limits::input_bytes(&input.messages) + input.tools.as_ref().map_or(0, limits::input_bytes) + kwargs;
        let context = self.context(input);
        on_large_stack(|| limits::within(bytes, || render(&self.env, context)))?
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
    let source = edit::guard(&source, syntax.clone())?;
    env.set_syntax(syntax);
    guarded::add_to(&mut env);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_unknown_method_callback(python::method);
    env.set_fuel(Some(FUEL));
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

/// Runs `f` on a fresh thread: a deep syntax tree or a deeply nested value overflows a server thread's 2 MiB, which would abort the
/// process.
fn on_large_stack<T: Send>(f: impl FnOnce() -> T + Send) -> Result<T, TemplateError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("chat-template".into()).stack_size(STACK).spawn_scoped(scope, f);
        let thread = thread.map_err(|e| TemplateError::Invalid(format!("no thread to render on: {e}")))?;
        thread.join().map_err(|_| TemplateError::Invalid("the renderer failed".into()))
    })
}

/// The text of a template's own `raise_exception`, carried through minijinja's error.
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
        ErrorKind::OutOfFuel => format!("takes more than {FUEL} steps"),
        ErrorKind::WriteFailure => format!("gives more than {} MiB", MAX_OUTPUT >> 20),
        kind => error.detail().map_or_else(|| kind.to_string(), |detail| format!("{kind}: {detail}")),
    };
    TemplateError::Invalid(match error.line() {
        Some(line) => format!("line {line}: {what}"),
        None => what,
    })
}

struct CappedOutput(Vec<u8>);

impl Write for CappedOutput {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT {
            return Err(std::io::Error::other("output limit"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

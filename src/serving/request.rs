//! A validated request is a type: [`ValidRequest`] fits its model's context and vocabulary.

use std::sync::Arc;

use serde_json::Value;

use super::again::Again;
use crate::answer::{Choice, Parser, Rules, Structure, Tools, prepare};
use crate::grammar::{GrammarError, Source};
use crate::logits::Grammar;
pub use crate::logits::SamplingParams;
use crate::registry::LoadedModel;
use crate::scheduler::NewSequence;
use crate::template::{RenderInput, TemplateError};
use crate::tokenizer::Tokenizer;

/// How many tokens may be generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// What the context has left.
    Rest,
    /// At most this many, fewer where the context ends sooner: a default that nobody asked for.
    Default(u32),
    /// This many must fit.
    Explicit(u32),
}

/// What the model continues.
#[derive(Clone, Debug)]
pub enum Prompt {
    /// Messages for the model's chat template.
    Chat(RenderInput),
    /// Text as it is; control tokens' texts in it are control tokens.
    Text(String),
    /// Token ids as they are: no BOS is added.
    Ids(Vec<u32>),
    /// What stands between the two is asked for.
    Infill { prefix: String, suffix: String },
}

impl Prompt {
    /// The prompt as a client sees it before the answer; `ids` are what it became.
    fn echo(&self, tokenizer: &Tokenizer, ids: &[u32]) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Infill { prefix, .. } => prefix.clone(),
            Self::Ids(_) | Self::Chat(_) => tokenizer.decode(ids, true),
        }
    }
}

/// How to generate, before it is known whether the model can.
#[derive(Clone, Debug)]
pub struct Options {
    pub sampling: SamplingParams,
    pub budget: Budget,
    /// Texts that end the generation.
    pub stop: Vec<String>,
    pub stop_token_ids: Vec<u32>,
    /// Do not end at the model's own end tokens.
    pub ignore_eos: bool,
    /// What the answer must look like; not with `ignore_eos` or a least number of tokens.
    pub structure: Option<Structure>,
    /// What may be called; in a chat only.
    pub tools: Option<Tools>,
    /// How much to think before the answer, and the field that asks for it; in a chat only.
    pub effort: Option<(&'static str, String)>,
    /// Go on with the last message of a chat, which is the assistant's, rather than answer it.
    pub continue_final: bool,
    /// Some(n): each token's log-probability, and those of the n likeliest in its place.
    pub logprobs: Option<u8>,
    /// Show the prompt; with `logprobs` its tokens', too.
    pub echo: bool,
    /// Prompts that begin alike share work only where this is the same.
    pub tenant: u64,
}

impl Options {
    /// The field that says what the answer must follow: a call that must come leaves no room for another format.
    fn rules(&self) -> &'static str {
        let forced = self.tools.as_ref().is_some_and(|tools| tools.choice != Choice::Auto);
        self.structure.as_ref().filter(|_| !forced).map_or("tools", |structure| structure.field)
    }
}

#[derive(Debug, PartialEq, thiserror::Error)]
pub enum RequestError {
    #[error("the model's context is {context} tokens, but the prompt has {prompt} and {wanted} more were asked for")]
    Context { prompt: usize, wanted: u32, context: usize },
    #[error("the model's context is {context} tokens, but the prompt has more than {most}")]
    TooLong { most: usize, context: usize },
    #[error("{field} names token {id}, but the vocabulary ends at {}", vocab_size.saturating_sub(1))]
    Vocabulary { field: &'static str, id: u32, vocab_size: usize },
    #[error("the prompt has no tokens")]
    Empty,
    #[error("the model `{0}` has no chat template: it can continue text, but not chat")]
    NoTemplate(String),
    #[error("{0}")]
    Template(String),
    #[error("`{field}`: {error}")]
    Grammar { field: &'static str, error: GrammarError },
    #[error("the vocabulary of the model `{0}` has no tokens to fill in the middle of a text")]
    NoInfill(String),
    #[error("`{field}`: the chat template of the model `{model}` has no levels of reasoning")]
    NoEffort { field: &'static str, model: String },
    #[error("the model `{0}` ranks texts: it has no embedding of one")]
    NoEmbedding(String),
}

impl From<TemplateError> for RequestError {
    fn from(error: TemplateError) -> Self {
        Self::Template(error.to_string())
    }
}

/// Tokens to which a prompt is counted: some contexts.
pub(super) fn most_counted(model: &LoadedModel) -> usize {
    model.context.saturating_mul(4)
}

/// A sequence that its model can run.
#[derive(Clone)]
pub struct ValidRequest {
    pub model: Arc<LoadedModel>,
    pub(super) sequence: NewSequence,
    pub(super) stop: Vec<String>,
    /// The prompt as text, where it is to be shown; else empty.
    pub(super) echo: String,
    /// Tells reasoning and calls from text; None: there is nothing but text.
    pub(super) parser: Option<Parser>,
    pub(super) again: Option<Arc<Again>>,
    /// The field that says what the answer must follow, where one does.
    pub(super) rules: &'static str,
}

impl ValidRequest {
    /// Renders, encodes and checks. It takes a second a megabyte: call it off the event loop.
    pub fn new(model: Arc<LoadedModel>, prompt: Prompt, options: &Options) -> Result<Self, RequestError> {
        let tokenizer = &model.tokenizer;
        let vocab_size = vocab_size(&model);
        let end_ids = if options.ignore_eos { &[] } else { tokenizer.end_ids() };
        check_ids("stop_token_ids", options.stop_token_ids.iter().copied(), vocab_size)?;
        check_ids("logit_bias", options.sampling.logit_bias.iter().map(|(id, _)| *id), vocab_size)?;
        let mut stop_ids = [end_ids, &options.stop_token_ids].concat();
        let shown = options.echo.then(|| prompt.clone());
        if matches!(prompt, Prompt::Infill { .. }) && !options.ignore_eos {
            stop_ids.extend(tokenizer.infill().into_iter().flat_map(|infill| infill.ids()));
        }
        // Of a chat: does the prompt end within reasoning?
        let (mut chat, mut again) = (None, None);
        let most = most_counted(&model);
        let prompt = match prompt {
            Prompt::Chat(mut input) => {
                if let Some((field, effort)) = &options.effort {
                    set_effort(&model, field, effort, &mut input)?;
                }
                again = Again::of(&input, options);
                let text = rendered(&model, input, options.tools.as_ref(), options.continue_final)?;
                chat = Some(opens_reasoning(&model, &text));
                tokenizer.encode_rendered(&text, most).ok_or(RequestError::TooLong { most, context: model.context })?
            }
            other => encode(&model, other, most)?,
        };
        check_ids("prompt", prompt.iter().copied(), vocab_size)?;
        let echo = shown.map(|shown| shown.echo(tokenizer, &prompt)).unwrap_or_default();
        let max_tokens = budget(prompt.len(), model.context, options.budget)?;
        let grammar = grammar(&model, options, chat)?;
        let answered = again.as_ref().map(|again| again.answered.clone()).unwrap_or_default();
        let parser = chat.and_then(|opened| parser(&model, options, opened, answered));
        stop_ids.sort_unstable();
        stop_ids.dedup();
        let mut params = options.sampling.clone();
        if params.min_tokens > 0 {
            params.suppressed.clone_from(&stop_ids);
        }
        let sequence = NewSequence {
            stop_ids,
            cache_salt: options.tenant,
            num_logprobs: options.logprobs,
            grammar,
            score_prompt: options.logprobs.filter(|_| options.echo),
            ..NewSequence::new(prompt, params, max_tokens)
        };
        // Where there is nothing but calls, no text can end the answer.
        let only_calls = options.tools.as_ref().is_some_and(|tools| tools.choice != Choice::Auto)
            && model.style.as_ref().is_some_and(|style| style.thinking.is_none());
        let stop = if only_calls { Vec::new() } else { options.stop.clone() };
        Ok(Self { model, sequence, stop, echo, parser, again, rules: options.rules() })
    }

    /// Of the prompt.
    pub fn num_tokens(&self) -> u32 {
        self.sequence.prompt.len() as u32
    }

    /// The prompt as text, where the request wants to see it; else empty.
    pub fn echo(&self) -> &str {
        &self.echo
    }
}

pub(super) fn check_ids(field: &'static str, mut ids: impl Iterator<Item = u32>, vocab_size: usize) -> Result<(), RequestError> {
    match ids.find(|id| *id as usize >= vocab_size) {
        Some(id) => Err(RequestError::Vocabulary { field, id, vocab_size }),
        None => Ok(()),
    }
}

/// What the answer must follow; `chat`: of a chat, does it begin within reasoning?
fn grammar(model: &LoadedModel, options: &Options, chat: Option<bool>) -> Result<Option<Arc<dyn Grammar>>, RequestError> {
    let (structure, grammars) = (options.structure.as_ref(), &model.grammars);
    let found = match (chat, &model.style, structure) {
        (Some(opened), Some(style), _) => Rules { style, grammars, tools: options.tools.as_ref(), structure, opened }.grammar(),
        (_, _, Some(structure)) => {
            let source = structure.format.add_to(Source::new("start: @answer"));
            source.and_then(|source| grammars.compile(&source)).map(Some).map_err(|error| (structure.field, error))
        }
        _ => Ok(None),
    };
    found.map_err(|(field, error)| RequestError::Grammar { field, error })
}

/// Ids that both the tokenizer and the weights know.
pub(super) fn vocab_size(model: &LoadedModel) -> usize {
    model.tokenizer.vocab_size().min(model.spec.vocab_size)
}

/// A prompt's ids. One that is somewhat too long is counted, so that its length can be told; one of more than `most` is not worth the time.
pub(super) fn encode(model: &LoadedModel, prompt: Prompt, most: usize) -> Result<Vec<u32>, RequestError> {
    let tokenizer = &model.tokenizer;
    let ids = match prompt {
        Prompt::Chat(input) => tokenizer.encode_rendered(&rendered(model, input, None, false)?, most),
        Prompt::Text(text) => tokenizer.encode_prompt(&text, most),
        Prompt::Ids(ids) => Some(ids),
        Prompt::Infill { prefix, suffix } => {
            let infill = tokenizer.infill().ok_or_else(|| RequestError::NoInfill(model.id.clone()))?;
            Some(tokenizer.encode_infill(infill, &prefix, &suffix))
        }
    };
    ids.ok_or(RequestError::TooLong { most, context: model.context })
}

fn parser(model: &LoadedModel, options: &Options, opened: bool, answered: Vec<(String, Value)>) -> Option<Parser> {
    let style = model.style.as_ref()?;
    let syntax = options.tools.as_ref().map(|_| style.syntax);
    let parser = (syntax.is_some() || style.thinking.is_some()).then(|| Parser::new(syntax, style.thinking, opened))?;
    // Where a format was asked for, JSON is an answer.
    let bare =
        options.tools.iter().filter(|_| options.structure.is_none()).flat_map(|tools| tools.callable()).map(|tool| tool.name.clone());
    Some(parser.with_bare_calls(bare.collect(), answered))
}

/// Templates know levels of reasoning by name, or only whether there is any.
fn set_effort(model: &LoadedModel, field: &'static str, effort: &str, input: &mut RenderInput) -> Result<(), RequestError> {
    let source = model.template.as_ref().map_or("", |template| template.source());
    let (name, value) = match effort {
        _ if source.contains("reasoning_effort") => ("reasoning_effort", effort.into()),
        "none" if source.contains("enable_thinking") => ("enable_thinking", false.into()),
        _ => return Err(RequestError::NoEffort { field, model: model.id.clone() }),
    };
    input.kwargs.insert(name.into(), value);
    Ok(())
}

/// Does a prompt end within reasoning?
fn opens_reasoning(model: &LoadedModel, prompt: &str) -> bool {
    let thinking = model.style.as_ref().and_then(|style| style.thinking);
    thinking.is_some_and(|thinking| prompt.trim_end().ends_with(thinking.open.trim_end()))
}

/// Stands behind the text that is to be continued: no text has it, since it is none.
const HERE: &str = "\u{fdd3}\u{fdd4}";

/// Messages → the prompt as text, with marks in it. Whatever a client wrote is shielded: only the template itself can write control tokens.
pub(super) fn rendered(
    model: &LoadedModel,
    mut input: RenderInput,
    tools: Option<&Tools>,
    continues: bool,
) -> Result<String, RequestError> {
    let template = model.template.as_ref().ok_or_else(|| RequestError::NoTemplate(model.id.clone()))?;
    let tokenizer = &model.tokenizer;
    if let Some(messages) = input.messages.as_array_mut() {
        for message in messages.iter_mut() {
            for (name, value) in message.as_object_mut().into_iter().flatten() {
                if name != "role" {
                    shield(tokenizer, value);
                }
            }
        }
        if let Some(last) = messages.last_mut().filter(|_| continues) {
            last["content"] = format!("{}{HERE}", last["content"].as_str().unwrap_or_default()).into();
        }
    }
    input.kwargs.values_mut().for_each(|value| shield(tokenizer, value));
    if let Some(style) = &model.style {
        let definitions = tools.map(|tools| {
            let mut definitions = tools.definitions();
            shield(tokenizer, &mut definitions);
            (tools, definitions)
        });
        prepare(style, definitions, &mut input);
    }
    let mut text = template.render(&input)?;
    if continues {
        let at = text.rfind(HERE).ok_or_else(|| RequestError::Template("the chat template does not show the last message".into()))?;
        text.truncate(at);
    }
    Ok(text)
}

fn shield(tokenizer: &Tokenizer, value: &mut Value) {
    match value {
        Value::String(text) => *text = tokenizer.shield(text),
        Value::Array(items) => items.iter_mut().for_each(|item| shield(tokenizer, item)),
        Value::Object(map) => map.values_mut().for_each(|item| shield(tokenizer, item)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Tokens that may be generated after `prompt` tokens in a context of `context`.
pub(super) fn budget(prompt: usize, context: usize, budget: Budget) -> Result<u32, RequestError> {
    if prompt == 0 {
        return Err(RequestError::Empty);
    }
    let rest = u32::try_from(context.saturating_sub(prompt)).unwrap_or(u32::MAX);
    let (wanted, max_tokens) = match budget {
        Budget::Rest => (1, rest),
        Budget::Default(most) => (1, most.min(rest)),
        Budget::Explicit(count) => (count, count),
    };
    if wanted > rest || prompt > context {
        return Err(RequestError::Context { prompt, wanted, context });
    }
    Ok(max_tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explicit_budgets_must_fit() {
        assert_eq!(budget(10, 100, Budget::Explicit(90)), Ok(90));
        assert_eq!(budget(10, 100, Budget::Explicit(91)), Err(RequestError::Context { prompt: 10, wanted: 91, context: 100 }));
        assert_eq!(budget(100, 100, Budget::Explicit(0)), Ok(0));
        assert_eq!(budget(101, 100, Budget::Explicit(0)), Err(RequestError::Context { prompt: 101, wanted: 0, context: 100 }));
        assert_eq!(budget(1, 100, Budget::Explicit(u32::MAX)), Err(RequestError::Context { prompt: 1, wanted: u32::MAX, context: 100 }));
    }

    #[test]
    fn open_budgets_take_what_is_left() {
        assert_eq!(budget(10, 100, Budget::Rest), Ok(90));
        assert_eq!(budget(90, 100, Budget::Default(16)), Ok(10));
        assert_eq!(budget(99, 100, Budget::Rest), Ok(1));
        assert!(budget(100, 100, Budget::Rest).is_err() && budget(101, 100, Budget::Default(16)).is_err());
        assert_eq!(budget(0, 100, Budget::Rest), Err(RequestError::Empty));
    }

    #[test]
    fn ids_beyond_the_vocabulary_are_named() {
        let error = check_ids("prompt", [0, 9, 10].into_iter(), 10).unwrap_err();
        assert_eq!(error.to_string(), "prompt names token 10, but the vocabulary ends at 9");
    }
}

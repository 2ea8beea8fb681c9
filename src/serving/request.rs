//! Validated requests: a [`ValidRequest`] fits its model's context and vocabulary.

use std::sync::Arc;

use super::encoded_prompt::{EncodedPrompt, PlannedPicture};
use super::error::{ContextLimit, RequestError};
use super::model::Model;
use super::options::{Budget, DraftLimits, Options, Truncate};
use super::output::Counts;
use super::prompt::{Prompt, check_ids, encode_rendered, encode_up_to, most_counted, rendered_behind, vocab_size, with_prefix};
use super::thinking_budget::ThinkingBudget;
use super::token_constraint::TokenConstraint;
use super::tool_retry::ToolRetry;
use super::transcript::StopTexts;
use chat::{AnswerStart, Conversation, Format, Parser, ReasoningMeter, RuleError, Rules, Subject, Tools};
use grammar::Source;
use logits::Grammar;
use scheduler::{DraftOptions, NewSequence};

/// A request that its model can run.
#[derive(Clone)]
pub struct ValidRequest {
    pub model: Arc<Model>,
    pub(super) options: Arc<Options>,
    pub(super) sequence: NewSequence,
    /// The memory that the rows of the prompt's pictures take [bytes].
    row_bytes: usize,
    /// The prompt's pictures, whose rows the sequence does not have yet.
    pictures: Vec<PlannedPicture>,
    pub(super) stop: StopTexts,
    /// Whether the answer has to make a call and may make several.
    pub(super) calls_several: bool,
    /// The prompt as text if the request wants it, otherwise empty.
    pub(super) echo: String,
    /// Separates reasoning and calls from text. `None` if everything is text.
    pub(super) parser: Option<Parser>,
    /// Counts the reasoning of an answer. `None` if the model does not reason or the prompt is no conversation.
    pub(super) meter: Option<ReasoningMeter>,
    pub(super) retry: Option<Arc<ToolRetry>>,
    /// The part of the request that the rules of the answer come from.
    pub(super) rules: Subject,
}

impl ValidRequest {
    /// Renders, encodes and checks. Takes up to a second per megabyte of prompt: call it off the event loop.
    pub fn new(model: Arc<Model>, prompt: Prompt, options: Arc<Options>) -> Result<Self, RequestError> {
        if model.base.spec.arch.bidirectional {
            return Err(RequestError::NoGeneration(model.id.clone()));
        }
        let model = model.or_with_template(options.template.as_deref())?;
        let vocab_size = vocab_size(&model);
        check_ids(Subject::StopTokens, options.stop_token_ids.iter().copied(), vocab_size)?;
        check_ids(Subject::LogitBias, options.sampling.logit_bias.iter().map(|(id, _)| *id), vocab_size)?;
        check_ids(Subject::AllowedIds, options.allowed_ids.iter().flatten().copied(), vocab_size)?;
        options.truncate.map_or(Ok(()), |truncate| check_most(truncate.most(), ContextLimit::of(&model)))?;
        let (encoded, entry) = encode_whole(&model, &prompt, &options)?;
        let score_prompt = options.prompt_logprobs.or(options.logprobs.filter(|_| options.echo));
        let encoded = truncated(check_pictures(encoded, &options, score_prompt)?, ContextLimit::of(&model), &options);
        let stop_ids = stop_ids(&model, &prompt, &options);
        let echo = match (options.echo, options.truncate) {
            (false, _) => String::new(),
            (true, None) => prompt.echo(&model.base.tokenizer, &encoded.ids),
            (true, Some(_)) => model.base.tokenizer.decode(&encoded.ids, true),
        };
        let max_tokens = budget(encoded.len(), ContextLimit::of(&model), model.defaults.budget(options.budget))?;
        let mut chat = match prompt {
            Prompt::Chat(conversation) => Some(Chat { model: &model, conversation, entry, options: &options }),
            _ => None,
        };
        let grammar = match &mut chat {
            Some(chat) => chat.grammar()?,
            None => grammar(&model, options.format.as_ref())?,
        };
        let grammar = permitted(&model, &options, grammar)?;
        let mut params = model.sampling_of(&options);
        if params.min_tokens > 0 {
            params.suppressed.clone_from(&stop_ids);
        }
        let row_bytes = encoded.num_row_bytes(model.pictures().map(|pictures| &*pictures.rules));
        let adapters = model.adapter_requests(&encoded.text_runs());
        let (items, pictures) = encoded.into_items();
        let sequence = NewSequence {
            stop_ids,
            adapters,
            cache_salt: options.cache_salt,
            num_logprobs: options.logprobs,
            grammar,
            drafts: draft_options(&model, &options),
            score_prompt,
            ..NewSequence::new(items, params, max_tokens)
        };
        let retry = chat.as_ref().and_then(|chat| ToolRetry::of(&chat.conversation, &options, max_tokens));
        let parser = chat.as_ref().and_then(|chat| chat.parser(retry.as_deref()));
        let meter = chat.as_ref().and_then(Chat::meter);
        let only_calls = chat.as_ref().is_some_and(Chat::is_only_calls);
        // An answer that is only calls ends where its grammar says. A stop text must not cut it.
        let texts = if only_calls { Vec::new() } else { model.defaults.stop(&options.stop) };
        let stop = StopTexts { texts, kept: options.keep_stop };
        let calls_several = chat.as_ref().and_then(Chat::tools).is_some_and(|tools| tools.must_call() && tools.parallel);
        let must_call = chat.as_ref().and_then(Chat::tools).is_some_and(Tools::must_call);
        // A forced call overrides the format.
        let rules = match (must_call, &options.format) {
            (false, Some(_)) => Subject::Format,
            _ if options.allowed_ids.is_some() || !options.bad_words.is_empty() => Subject::AllowedIds,
            _ => Subject::Tools,
        };
        Ok(Self { row_bytes, model, options, sequence, pictures, stop, calls_several, echo, parser, meter, retry, rules })
    }

    /// The second try, given the counts of the first. `None` if nothing is left to generate, or if the model refuses the request.
    pub(super) fn second_try(model: Arc<Model>, retry: &ToolRetry, spent: Counts, seed: u64) -> Option<Self> {
        let mut next = Self::new(model, Prompt::Chat(retry.conversation.clone()), Arc::new(retry.options(spent, seed)?)).ok()?;
        tokio::runtime::Handle::current().block_on(next.encode_pictures()).ok()?;
        Some(next)
    }

    /// The memory that the rows of the prompt's pictures will take [bytes].
    pub fn num_row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Encodes the prompt's pictures, which a request needs before it is submitted. Takes seconds for a large picture.
    ///
    /// # Errors
    /// Names the picture that cannot be read.
    pub async fn encode_pictures(&mut self) -> Result<(), RequestError> {
        let mut encoded = Vec::with_capacity(self.pictures.len());
        if let Some(pictures) = &self.model.base.pictures {
            for picture in &self.pictures {
                let rows = pictures.rows(picture.file.clone(), self.sequence.cache_salt, self.options.client.tenant).await;
                encoded.push(rows.map_err(|error| RequestError::Picture { field: picture.field.clone(), error })?);
            }
        }
        if !encoded.is_empty() {
            self.pictures.clear();
            let runs = encoded.iter().flat_map(|picture| &picture.runs).cloned();
            self.sequence.prompt = std::mem::take(&mut self.sequence.prompt).with_rows(runs);
        }
        Ok(())
    }

    /// Whether the engine has anything to do. False if there is nothing to generate and nothing to score (an echo).
    pub(super) fn has_sequence(&self) -> bool {
        self.sequence.max_tokens > 0 || self.sequence.score_prompt.is_some()
    }

    /// The prompt's number of tokens, once for each of `count` sequences.
    pub(super) fn prompts(&self, count: usize) -> impl Iterator<Item = usize> {
        std::iter::repeat_n(self.num_prompt_tokens(), if self.has_sequence() { count } else { 0 })
    }

    pub fn num_prompt_tokens(&self) -> usize {
        self.sequence.prompt.len()
    }

    /// The ids of the prompt's tokens.
    pub fn prompt_ids(&self) -> &[u32] {
        self.sequence.prompt.tokens()
    }
}

/// Encodes a prompt, and says how its answer starts. A prompt that will be truncated is encoded whole.
fn encode_whole(model: &Model, prompt: &Prompt, options: &Options) -> Result<(EncodedPrompt, AnswerStart), RequestError> {
    let most = if options.truncate.is_some() { usize::MAX } else { most_counted(model) };
    let Prompt::Chat(conversation) = prompt else { return Ok((encode_up_to(model, prompt, most)?.into(), AnswerStart::Turn)) };
    let text = rendered_behind(model, &options.prefix, conversation)?;
    let entry = model.dialect.as_ref().map_or(AnswerStart::Turn, |dialect| dialect.entry(conversation, text.end()));
    Ok((with_prefix(model, &options.prefix, encode_rendered(model, &text, most)?)?, entry))
}

/// The ids that end the generation, in ascending order.
fn stop_ids(model: &Model, prompt: &Prompt, options: &Options) -> Vec<u32> {
    let tokenizer = &model.base.tokenizer;
    let mut ids = options.stop_token_ids.clone();
    if !options.ignore_eos {
        ids.extend(tokenizer.end_ids());
        if matches!(prompt, Prompt::Infill { .. }) {
            ids.extend(tokenizer.infill().into_iter().flat_map(|infill| infill.ids()));
        }
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// What the request says about drafts. A prediction longer than the context is cut.
fn draft_options(model: &Model, options: &Options) -> DraftOptions {
    let DraftLimits { most, fewest, least_probability } = options.drafts;
    let tokens = |text: &String| {
        let mut ids = model.base.tokenizer.encode(text, false);
        ids.truncate(model.context());
        ids.into()
    };
    let prediction = options.prediction.as_ref().filter(|_| most != Some(0)).map(tokens);
    DraftOptions { prediction, most, fewest, least_probability, known: None }
}

/// Refuses a length to which prompts are cut if the context does not hold it. The context itself bounds a prompt that may have any length.
pub(super) fn check_most(most: usize, room: ContextLimit) -> Result<(), RequestError> {
    let context = room.context;
    if most > context && most != usize::MAX { Err(RequestError::Truncation { most, context }) } else { Ok(()) }
}

/// Refuses what a prompt with pictures cannot have.
fn check_pictures(prompt: EncodedPrompt, options: &Options, score_prompt: Option<u8>) -> Result<EncodedPrompt, RequestError> {
    match prompt.pictures.is_empty() {
        false if options.truncate.is_some() => Err(RequestError::PicturesCut),
        false if score_prompt.is_some() => Err(RequestError::PicturesScored),
        _ => Ok(prompt),
    }
}

/// Cuts a prompt to the length that the request permits, and keeps its end.
fn truncated(mut prompt: EncodedPrompt, room: ContextLimit, options: &Options) -> EncodedPrompt {
    let most = match options.truncate {
        None => return prompt,
        Some(Truncate::To(most)) => most,
        Some(Truncate::ToContext) => room.context.saturating_sub(options.budget.asked().unwrap_or(1).max(1) as usize).max(1),
    };
    prompt.ids.drain(..prompt.ids.len().saturating_sub(most));
    prompt
}

/// The grammar with the request's constraints on single ids.
fn permitted(model: &Model, options: &Options, grammar: Option<Arc<dyn Grammar>>) -> Result<Option<Arc<dyn Grammar>>, RequestError> {
    if options.allowed_ids.is_none() && options.bad_words.is_empty() {
        return Ok(grammar);
    }
    let tokenizer = &model.base.tokenizer;
    // A word has different tokens after a space than at the beginning of a text.
    let forms = |word: &String| [word.clone(), format!(" {}", word.trim_start())].map(|form| tokenizer.encode(&form, false));
    let bad: Vec<Vec<u32>> = options.bad_words.iter().flat_map(forms).filter(|ids| !ids.is_empty()).collect();
    Ok(Some(Arc::new(TokenConstraint::new(model.base.spec.vocab_size, options.allowed_ids.as_deref(), bad, grammar))))
}

/// The rules of an answer outside a conversation.
fn grammar(model: &Model, format: Option<&Format>) -> Result<Option<Arc<dyn Grammar>>, RequestError> {
    let Some(format) = format else { return Ok(None) };
    let source = format.add_to(Source::new("start: @answer"));
    let grammar = source.and_then(|source| model.base.grammars.compile(&source));
    Ok(Some(grammar.map_err(|error| RuleError { subject: Subject::Format, error: error.split().1 })?))
}

/// A conversation whose prompt is encoded.
struct Chat<'a> {
    model: &'a Model,
    conversation: Conversation,
    /// The state in which the answer begins.
    entry: AnswerStart,
    options: &'a Options,
}

impl Chat<'_> {
    fn tools(&self) -> Option<&Tools> {
        self.conversation.tools.as_ref()
    }

    /// The grammar of the answer. Tools whose schemas cannot be followed get looser ones.
    fn grammar(&mut self) -> Result<Option<Arc<dyn Grammar>>, RequestError> {
        let (format, grammars) = (self.options.format.as_ref(), &self.model.base.grammars);
        let Some(dialect) = &self.model.dialect else { return grammar(self.model, format) };
        let followed = Rules { dialect, grammars, tools: self.conversation.tools.as_ref(), format, entry: self.entry }.followed()?;
        for (name, why) in &followed.loosened {
            let (name, why) = (name.escape_debug(), why.escape_debug());
            tracing::debug!("the schema of the tool `{name}` cannot be enforced, so a looser one is used: {why}");
        }
        self.conversation.tools = followed.tools.or_else(|| self.conversation.tools.take());
        let rules = followed.grammar;
        let (Some(most), Some(thinking)) = (self.options.thinking_budget, dialect.reasons()) else { return Ok(rules) };
        let (meter, tags) = (ReasoningMeter::new(thinking, self.entry), (thinking.open, thinking.close));
        // Reasoning in the prompt that the answer continues counts, too.
        let thought = dialect.continued_reasoning(&self.conversation).unwrap_or_default();
        let spent = u32::try_from(grammars.tokenizer().encode(thought.trim(), true).len()).unwrap_or(u32::MAX);
        Ok(Some(Arc::new(ThinkingBudget::new(grammars, meter, tags, most.saturating_sub(spent), rules))))
    }

    fn meter(&self) -> Option<ReasoningMeter> {
        let thinking = self.model.dialect.as_ref()?.reasons()?;
        Some(ReasoningMeter::new(thinking, self.entry))
    }

    fn parser(&self, retry: Option<&ToolRetry>) -> Option<Parser> {
        let dialect = self.model.dialect.as_ref()?;
        let syntax = self.tools().map(|_| dialect.syntax);
        let parser = (syntax.is_some() || dialect.thinking.is_some()).then(|| Parser::new(syntax, dialect.thinking, self.entry))?;
        let parser = if self.options.format.is_some() { parser.with_format() } else { parser };
        // If the request has a format, bare JSON is an answer, not a call.
        let tools = self.tools().filter(|_| self.options.format.is_none());
        let bare = tools.into_iter().flat_map(Tools::callable).map(|tool| tool.name.clone());
        let answered = retry.map(|retry| retry.answered.clone()).unwrap_or_default();
        let parser = parser.with_bare_calls(bare.collect(), answered);
        Some(match self.tools() {
            Some(tools) => parser.with_tools(tools),
            None => parser,
        })
    }

    /// Whether the answer can hold neither text nor reasoning.
    fn is_only_calls(&self) -> bool {
        self.tools().is_some_and(Tools::must_call) && self.model.dialect.as_ref().is_some_and(|dialect| dialect.thinking.is_none())
    }
}

/// The number of tokens that may be generated after `prompt` tokens.
pub(super) fn budget(prompt: usize, room: ContextLimit, budget: Budget) -> Result<u32, RequestError> {
    if prompt == 0 {
        return Err(RequestError::Empty);
    }
    let rest = u32::try_from(room.context.saturating_sub(prompt)).unwrap_or(u32::MAX);
    // An answer needs room for at least one token. Only a request for no tokens may fill the context.
    let (wanted, max_tokens) = match budget {
        Budget::Rest => (1, rest),
        Budget::Default(most) => (1, most.min(rest)),
        Budget::Explicit(most) => (most.min(1), most.min(rest)),
        Budget::Strict(count) => (count, count),
    };
    if wanted > rest || prompt > room.context {
        return Err(RequestError::Context { prompt, wanted, room });
    }
    Ok(max_tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: ContextLimit = ContextLimit { context: 100, most: 400, by_name: false };

    fn budget(prompt: usize, budget: Budget) -> Result<u32, RequestError> {
        super::budget(prompt, ROOM, budget)
    }

    #[test]
    fn an_explicit_budget_ends_with_the_context() {
        assert_eq!(budget(10, Budget::Explicit(90)), Ok(90));
        assert_eq!(budget(10, Budget::Explicit(91)), Ok(90));
        assert_eq!(budget(1, Budget::Explicit(u32::MAX)), Ok(99));
        assert_eq!(budget(100, Budget::Explicit(0)), Ok(0));
        assert_eq!(budget(100, Budget::Explicit(7)), Err(RequestError::Context { prompt: 100, wanted: 1, room: ROOM }));
        assert_eq!(budget(101, Budget::Explicit(0)), Err(RequestError::Context { prompt: 101, wanted: 0, room: ROOM }));
    }

    #[test]
    fn a_strict_budget_must_fit() {
        assert_eq!(budget(10, Budget::Strict(90)), Ok(90));
        assert_eq!(budget(10, Budget::Strict(91)), Err(RequestError::Context { prompt: 10, wanted: 91, room: ROOM }));
        assert_eq!(budget(1, Budget::Strict(u32::MAX)), Err(RequestError::Context { prompt: 1, wanted: u32::MAX, room: ROOM }));
    }

    #[test]
    fn an_open_budget_takes_what_is_left() {
        assert_eq!(budget(10, Budget::Rest), Ok(90));
        assert_eq!(budget(90, Budget::Default(16)), Ok(10));
        assert_eq!(budget(99, Budget::Rest), Ok(1));
        assert!(budget(100, Budget::Rest).is_err() && budget(101, Budget::Default(16)).is_err());
        assert_eq!(budget(0, Budget::Rest), Err(RequestError::Empty));
    }

    #[test]
    fn the_error_says_what_to_do() {
        let error = budget(101, Budget::Rest).unwrap_err().to_string();
        assert_eq!(
            error,
            "this model's maximum context length is 100 tokens, but the prompt has 101: shorten it, or start the server with a larger \
             --context (the model was made for up to 400)"
        );
        let error = budget(10, Budget::Strict(91)).unwrap_err().to_string();
        assert!(error.contains("is 100 tokens, but the prompt has 10 and 91 more were asked for: "), "{error}");
        let whole = ContextLimit { context: 100, most: 100, by_name: false };
        let error = super::budget(101, whole, Budget::Rest).unwrap_err().to_string();
        assert!(error.ends_with("shorten it: the model was made for at most 100"), "{error}");
    }
}

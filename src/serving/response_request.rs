//! Requests for responses: prompts, each with its choices.

use std::sync::Arc;

use super::error::{RequestError, SubmitError};
use super::generation::Generation;
use super::ledger::{Account, Ledger};
use super::model::Model;
use super::options::Options;
use super::prompt::Prompt;
use super::request::ValidRequest;
use super::response_stream::ResponseStream;
use scheduler::{Client, DEFAULT_PRIORITY, RequestHandle, SequenceGroup};

/// The longest text that is validated at once. To tokenize on another thread costs two thread switches, which take longer than a short
/// text [bytes].
const MAX_QUICK: usize = 512;

/// A request for a response.
pub struct ResponseRequest {
    pub model: Arc<Model>,
    pub prompts: Vec<Prompt>,
    pub options: Options,
}

impl ResponseRequest {
    /// A request with one prompt.
    pub fn new(model: Arc<Model>, prompt: Prompt, options: Options) -> Self {
        Self { model, prompts: vec![prompt], options }
    }

    /// Whether validation takes so little time that it may run on an event loop.
    pub fn is_quick(&self) -> bool {
        self.options.format.is_none() && matches!(&self.prompts[..], [Prompt::Text(text)] if text.len() <= MAX_QUICK)
    }

    /// Whether a prompt may be encoded again while the response runs, which takes its memory again.
    pub fn has_tools(&self) -> bool {
        self.prompts.iter().any(|prompt| matches!(prompt, Prompt::Chat(chat) if chat.tools.is_some()))
    }

    /// Checks every prompt. Takes up to a second per megabyte of prompt.
    pub fn validate(self) -> Result<Vec<ValidRequest>, RequestError> {
        let Self { model, prompts, mut options } = self;
        if options.best_of > options.num_choices {
            // The log-probabilities decide which candidates are the likeliest.
            options.logprobs = options.logprobs.or(Some(0));
        }
        let options = Arc::new(options);
        prompts.into_iter().map(|prompt| ValidRequest::new(model.clone(), prompt, options.clone())).collect()
    }
}

/// Takes places in the queue of a model's engine for the prompts of one request, all or none. They share the engine with other requests as
/// one.
pub fn reserve<'a>(model: &'a Model, requests: &[ValidRequest]) -> Result<RequestHandle<'a>, SubmitError> {
    let client = requests.first().map_or(Client { tenant: None, priority: DEFAULT_PRIORITY }, |first| first.options.client);
    let prompts = requests.iter().flat_map(|request| request.prompts(request.options.best_of));
    Ok(model.base.handle.request(client, prompts)?)
}

/// Submits the prompts of one request to their model's engine thread, in places that were taken for them. `until` ends the response early.
pub fn submit<E>(
    requests: Vec<ValidRequest>,
    places: RequestHandle<'_>,
    ledger: Ledger,
    until: impl Future<Output = E> + 'static,
) -> Result<ResponseStream<E>, SubmitError> {
    let (num_choices, best_of) = requests.first().map_or((1, 1), |first| (first.options.num_choices, first.options.best_of));
    let echoes = requests.iter().filter(|request| request.options.echo).map(|request| request.echo.clone()).collect();
    let prompt_ids = requests.iter().filter(|request| request.options.return_ids).map(|request| request.prompt_ids().to_vec()).collect();
    let generations = generations(requests, places, best_of)?;
    let shares_prompt = |index: usize| !index.is_multiple_of(best_of);
    generations.iter().enumerate().for_each(|(index, generation)| ledger.enter(generation.account(), shares_prompt(index)));
    let until = Some(Box::pin(until) as _);
    Ok(ResponseStream { generations, next: 0, num_choices, best_of, echoes, prompt_ids, ledger, until })
}

/// Starts `count` generations per prompt, which differ only in their seeds. Each prompt is computed once. Its first generation has the
/// request's own seed, and only the first scores the prompt.
fn generations(requests: Vec<ValidRequest>, mut places: RequestHandle<'_>, count: usize) -> Result<Vec<Generation>, SubmitError> {
    let mut generations = Vec::with_capacity(requests.len() * count);
    for request in requests {
        let sequence_group = (count > 1).then(SequenceGroup::unique);
        for index in 0..count {
            let mut one = request.clone();
            one.sequence.sequence_group = sequence_group;
            // Seeds are spread, so that the second choice of seed 5 is not the first choice of seed 6.
            Arc::make_mut(&mut one.sequence.params).seed ^= (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let scores = one.sequence.score_prompt.take_if(|_| index > 0).is_some();
            let account = Account::new(one.num_prompt_tokens());
            let mut generation = Generation::start(&mut places, one, account)?;
            if scores {
                generation.await_prompt();
            }
            generations.push(generation);
        }
    }
    Ok(generations)
}

//! Responses to clients: where they begin, and how they end in the dialect's words and in the journal.

use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use actix_web::web;

use super::caller::Caller;
use super::chat_advice::refusal;
use super::error::{ApiError, Kind};
use super::fetched_pictures;
use super::journal::Journal;
use super::memory_budget::MemoryPermit;
use super::metrics;
use super::request_record::BodyEnd;
use super::state::{ActiveGeneration, AppState, off_loop};
use super::subject::FieldNames;
use serving::{Answer, NextOutput, Prompt, RequestError, ResponseRequest, ResponseStream, StreamError, ValidRequest};

/// A running response to a client. Dropping this value cancels it.
pub struct ClientStream {
    response: ResponseStream<ApiError>,
    /// The dialect's field names, for errors.
    names: FieldNames,
    journal: Rc<Journal>,
    is_complete: bool,
    _active: ActiveGeneration,
    /// The memory of a conversation with tools, which the generations may need again, or of a prompt's pictures.
    _held: Option<Arc<MemoryPermit>>,
}

/// Validates a request, then submits all its prompts to the engine or none. `held` is the memory that is held for the request.
pub async fn start(
    state: web::Data<AppState>,
    caller: &Caller,
    mut request: ResponseRequest,
    names: FieldNames,
    held: Arc<MemoryPermit>,
) -> Result<ClientStream, ApiError> {
    let (journal, active) = (caller.journal.clone(), ActiveGeneration::new(state.clone()));
    let options = &mut request.options;
    (options.cache_salt, options.client) = (caller.tenant.salt(options.cache_salt), caller.tenant.client());
    let (overdue, drain) = (journal.clone().overdue(), state.clone());
    let mut until = Box::pin(async move {
        tokio::select! {
            error = overdue => error,
            () = drain.drain.when_cut() => ApiError::new(Kind::Draining, "the server is shutting down"),
        }
    });
    let held = tokio::select! {
        error = &mut until => return Err(error),
        held = fetch_pictures(&state, &mut request, held) => held?,
    };
    let (is_quick, has_tools) = (request.is_quick(), request.has_tools());
    // The closure returns the memory, so it is held until validation ends even if the client has left.
    let validate = move || request.validate().map(|valid| (valid, held));
    let valid = if is_quick { validate() } else { off_loop(validate).await? };
    let (mut valid, held) = match valid {
        Ok(valid) => valid,
        Err(error) => return Err(refusal(&state, &caller.tenant, &names, &error).await),
    };
    // Before pictures are encoded, the queue and the memory must have room for them.
    let model = valid.first().map(|request| request.model.clone());
    let Some(model) = model else { return Err(ApiError::new(Kind::Internal, "the request has no prompt")) };
    let places = serving::reserve(&model, &valid)?;
    let held = rows_held(&state, &valid, held)?;
    let is_held = has_tools || valid.iter().any(|request| request.num_row_bytes() > 0);
    let encoded = tokio::select! {
        error = &mut until => return Err(error),
        encoded = encode_pictures(&mut valid) => encoded,
    };
    if let Err(error) = encoded {
        return Err(refusal(&state, &caller.tenant, &names, &error).await);
    }
    let response = serving::submit(valid, places, journal.ledger(), until)?;
    Ok(ClientStream { response, names, journal, is_complete: false, _active: active, _held: Some(held).filter(|_| is_held) })
}

async fn fetch_pictures(
    state: &AppState,
    request: &mut ResponseRequest,
    mut held: Arc<MemoryPermit>,
) -> Result<Arc<MemoryPermit>, ApiError> {
    for prompt in &mut request.prompts {
        if let Prompt::Chat(conversation) = prompt {
            held = fetched_pictures::fetch(state, &request.model, conversation, held).await?;
        }
    }
    Ok(held)
}

/// Takes the memory for the rows of all pictures, which the request holds until it has ended.
fn rows_held(state: &AppState, requests: &[ValidRequest], held: Arc<MemoryPermit>) -> Result<Arc<MemoryPermit>, ApiError> {
    let (size, most) = (requests.iter().map(ValidRequest::num_row_bytes).sum::<usize>(), state.limits().max_bodies_bytes);
    if size == 0 {
        return Ok(held);
    }
    if size > most / 2 {
        let (size, most) = (size >> 20, most >> 21);
        let message = format!("the rows of the pictures take {size} MiB, and a request may have {most} (half of limits.max_bodies_bytes)");
        return Err(ApiError::new(Kind::TooLarge, message));
    }
    let mut memory = state.bodies.share();
    memory.set(size)?;
    Ok(Arc::new(memory.along(held)))
}

async fn encode_pictures(requests: &mut [ValidRequest]) -> Result<(), RequestError> {
    for request in requests {
        request.encode_pictures().await?;
    }
    Ok(())
}

impl ClientStream {
    /// Takes the ids that a choice has generated since the last call. Empty unless the request asks for them.
    pub fn take_ids(&mut self, choice: usize) -> Vec<u32> {
        self.response.take_ids(choice)
    }

    /// Waits for the next output. Cancel safe.
    pub async fn next(&mut self) -> NextOutput<ApiError> {
        let next = self.response.next().await;
        self.is_complete = !matches!(next, Some(Ok(_)));
        next.map(|next| next.map_err(|error| self.refused(error)))
    }

    /// Waits for every choice and returns them in order.
    pub async fn collect(mut self) -> Result<Vec<Answer>, ApiError> {
        let answers = self.response.collect().await;
        self.is_complete = true;
        answers.map_err(|error| self.refused(error))
    }

    /// Records an error, which may occur after the head of the response has been sent.
    fn refused(&self, error: StreamError<ApiError>) -> ApiError {
        let error = match error {
            StreamError::Failed(failure) => self.names.failure(&failure),
            StreamError::Interrupted(error) => error,
        };
        self.journal.refuse(&error);
        error
    }

    /// Records that the response is cut because the client does not read.
    pub fn stall(&self) {
        self.journal.end(BodyEnd::Stalled);
    }
}

impl Deref for ClientStream {
    type Target = ResponseStream<ApiError>;

    fn deref(&self) -> &Self::Target {
        &self.response
    }
}

impl Drop for ClientStream {
    fn drop(&mut self) {
        if !self.is_complete && !self.journal.is_overdue() {
            metrics::http().disconnects.inc();
        }
    }
}

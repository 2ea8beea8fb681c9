//! Responses to clients: where they begin, and how they end in the dialect's words and in the journal.

use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use actix_web::web;

use super::caller::Caller;
use super::chat_advice::refusal;
use super::error::{ApiError, Kind};
use super::journal::Journal;
use super::memory_budget::MemoryPermit;
use super::metrics;
use super::request_record::BodyEnd;
use super::state::{ActiveGeneration, AppState, off_loop};
use super::subject::FieldNames;
use serving::{Answer, NextOutput, ResponseRequest, ResponseStream, StreamError};

/// A running response to a client. Dropping this value cancels it.
pub struct ClientStream {
    response: ResponseStream<ApiError>,
    /// The dialect's field names, for errors.
    names: FieldNames,
    journal: Rc<Journal>,
    is_complete: bool,
    _active: ActiveGeneration,
    /// The memory of a conversation with tools, which the generations may need again.
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
    let (is_quick, has_tools) = (request.is_quick(), request.has_tools());
    // The closure returns the memory, so it is held until validation ends even if the client has left.
    let validate = move || request.validate().map(|valid| (valid, held));
    let valid = if is_quick { validate() } else { off_loop(validate).await? };
    let (valid, held) = match valid {
        Ok(valid) => valid,
        Err(error) => return Err(refusal(&state, &caller.tenant, &names, &error).await),
    };
    let overdue = journal.clone().overdue();
    let until = async move {
        tokio::select! {
            error = overdue => error,
            () = state.drain.when_cut() => ApiError::new(Kind::Draining, "the server is shutting down"),
        }
    };
    let response = serving::submit(valid, journal.ledger(), until)?;
    Ok(ClientStream { response, names, journal, is_complete: false, _active: active, _held: Some(held).filter(|_| has_tools) })
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

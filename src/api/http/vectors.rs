//! Vectors of a client's texts.

use actix_web::web;

use super::caller::Caller;
use super::error::{ApiError, Kind};
use super::state::{ActiveGeneration, AppState, off_loop};
use super::subject::FieldNames;
use serving::embedding::{self, ValidText};
use serving::{Model, RequestError};

/// Checks that a model's vectors have the number of elements that a request asks for.
pub fn check_dimensions(model: &Model, dimensions: Option<usize>) -> Result<(), ApiError> {
    let hidden = model.base.spec.hidden_dim;
    match dimensions {
        Some(count) if count > hidden => {
            Err(ApiError::field("dimensions", format!("`dimensions` is {count}, but the model's vectors have {hidden}")))
        }
        _ => Ok(()),
    }
}

/// The form of vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorForm {
    /// How many elements to keep.
    pub dimensions: Option<usize>,
    /// Whether vectors are scaled to length 1.
    pub normalize: bool,
}

/// Returns the vector of each text that `validate` makes, and the total number of tokens.
pub async fn vectors(
    state: web::Data<AppState>,
    caller: &Caller,
    names: FieldNames,
    form: VectorForm,
    validate: impl FnOnce() -> Result<Vec<ValidText>, RequestError> + Send + 'static,
) -> Result<(Vec<Vec<f32>>, u32), ApiError> {
    let (active, ledger) = (ActiveGeneration::new(state), caller.journal.ledger());
    let work = async {
        let texts = off_loop(validate).await?.map_err(|error| names.request_error(&error))?;
        let running = embedding::submit(texts, caller.tenant.client())?;
        running.iter().for_each(|text| ledger.enter(&text.account(), false));
        let mut vectors = Vec::with_capacity(running.len());
        for text in running {
            vectors.push(text.vector(form.dimensions, form.normalize).await.map_err(|failure| names.failure(&failure))?);
        }
        Ok((vectors, ledger.counts().prompt))
    };
    tokio::select! {
        result = work => result,
        () = active.state().drain.when_cut() => Err(ApiError::new(Kind::Draining, "the server is shutting down")),
    }
}

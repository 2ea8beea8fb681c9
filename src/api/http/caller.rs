//! The caller of a request, apart from the request itself. A stream needs it if it begins after its request was answered.

use std::rc::Rc;
use std::sync::Arc;

use actix_web::{HttpRequest, web};

use super::error::{ApiError, Kind};
use super::journal::Journal;
use super::state::AppState;
use super::tenant::Tenant;
use registry::AdapterAsk;
use serving::Model;

/// The field with a request's adapters.
const LORA: &str = "lora";

#[derive(Clone)]
pub struct Caller {
    pub tenant: Tenant,
    pub journal: Rc<Journal>,
    route: Option<String>,
}

impl Caller {
    pub fn of(request: &HttpRequest) -> Self {
        Self { tenant: Tenant::of(request), journal: Journal::of(request), route: request.match_pattern() }
    }

    /// Returns the requested model, and waits for its load if necessary. Afterwards the request's log line and metrics name the model.
    pub async fn model(&self, state: &web::Data<AppState>, id: &str) -> Result<Arc<Model>, ApiError> {
        self.model_with(state, id, None).await
    }

    /// Like [`Caller::model`]. `asked`: the adapters that the request has instead of the name's own.
    pub async fn model_with(&self, state: &web::Data<AppState>, id: &str, asked: Option<&[AdapterAsk]>) -> Result<Arc<Model>, ApiError> {
        self.tenant.check_model(&state.registry, id)?;
        for AdapterAsk { which, .. } in asked.unwrap_or_default() {
            let adapter = state.registry.adapter_id(which).map_err(|error| ApiError::from(error).with_param(LORA))?;
            self.tenant.check_model(&state.registry, &adapter).map_err(|error| error.with_param(LORA))?;
        }
        let got = AppState::model(state, id, asked, self.tenant.client()).await;
        let is_of_adapters = |error: &ApiError| asked.is_some() && matches!(error.kind, Kind::AdapterFailed | Kind::InvalidValue);
        let model = got.map_err(|error| if is_of_adapters(&error) { error.with_param(LORA) } else { error })?;
        self.journal.set_model(&model.id, self.route.clone());
        self.journal.set_adapters(&model.adapters);
        Ok(model)
    }
}

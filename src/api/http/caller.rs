//! The caller of a request, apart from the request itself. A stream needs it if it begins after its request was answered.

use std::rc::Rc;
use std::sync::Arc;

use actix_web::{HttpRequest, web};

use super::error::ApiError;
use super::journal::Journal;
use super::state::AppState;
use super::tenant::Tenant;
use serving::Model;

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
        self.tenant.check_model(&state.registry, id)?;
        let model = AppState::model(state, id, self.tenant.client()).await?;
        self.journal.set_model(&model.id, self.route.clone());
        Ok(model)
    }
}

//! Who asks, apart from the request itself: what a stream needs that begins after its request was answered.

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

    /// The model that a request asks for, which waits for it if it is not loaded. From then on, the request's line in the log and its
    /// metrics name the model.
    pub async fn model(&self, state: &web::Data<AppState>, id: &str) -> Result<Arc<Model>, ApiError> {
        self.tenant.check_model(&state.registry, id)?;
        let model = AppState::model(state, id, self.tenant.client()).await?;
        self.journal.set_model(&model.id, self.route.clone());
        Ok(model)
    }
}

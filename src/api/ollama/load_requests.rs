//! Requests without a prompt: they load a model, or unload it if they have `keep_alive: 0`.

use std::time::{Duration, Instant};

use actix_web::{HttpRequest, web};

use super::convert::common::Common;
use super::start::{self, may_keep};
use super::types::common::End;
use http::caller::Caller;
use http::error::{ApiError, Kind};
use http::state::{AppState, off_loop};
use registry::KeepAlive;

/// Loads or unloads a model.
pub async fn load_or_unload(state: &web::Data<AppState>, http: &HttpRequest, common: &Common, began: Instant) -> Result<End, ApiError> {
    let caller = Caller::of(http);
    if common.keep != Some(KeepAlive::For(Duration::ZERO)) {
        let model = start::model(state, http, &caller, &common.model, common.keep).await?;
        common.settings.log_differences(&model);
        let load = u64::try_from(began.elapsed().as_nanos()).ok();
        return Ok(End { done_reason: Some("load".into()), total_duration: load, load_duration: load, ..End::default() });
    }
    caller.tenant.check_model(&state.registry, &common.model)?;
    if !may_keep(state, http, &caller) {
        let message = "`keep_alive`: this API key may not unload models: `penstock keys add NAME --admin` makes one that may";
        return Err(ApiError::new(Kind::AdminRequired, message).with_param("keep_alive"));
    }
    let (registry, name) = (state.registry.clone(), common.model.clone());
    off_loop(move || registry.release(&name)).await??;
    Ok(End { done_reason: Some("unload".into()), ..End::default() })
}

//! `/v1/models` for requests with the header `anthropic-version`.

use std::collections::BTreeMap;

use actix_web::{HttpRequest, HttpResponse, web};

use super::types::models::{MessagesModel, MessagesModelList};
use http::error::{ApiError, quoted};
use http::percent::percent_decode;
use http::rfc3339::of_seconds;
use http::state::{AppState, off_loop};
use http::tenant::Tenant;
use registry::ModelInfo;

pub const PATH: &str = "/v1/models";
/// The prefix of a model's path.
pub const PREFIX: &str = "/v1/models/";
/// Models per page, unless the query says otherwise.
const PAGE: usize = 20;
const MAX_PAGE: usize = 1000;
/// Known query parameters. `beta` says which of Anthropic's two API documents the client was generated from.
const KNOWN: [&str; 6] = ["limit", "after_id", "before_id", "lifecycle", "lifecycle[]", "beta"];
const STAGES: [&str; 3] = [ACTIVE, "deprecated", "retired"];
/// The lifecycle stage of every model here.
const ACTIVE: &str = "active";

impl From<ModelInfo> for MessagesModel {
    fn from(info: ModelInfo) -> Self {
        let ModelInfo { id, created, context, .. } = info;
        let (kind, display_name, created_at, lifecycle) = ("model".into(), id.clone(), of_seconds(created), ACTIVE.into());
        Self { kind, id, display_name, created_at, lifecycle, max_input_tokens: context, max_tokens: context }
    }
}

/// Returns a page of the models that the key may use. Models that chat come first.
pub async fn list(state: web::Data<AppState>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let query = web::Query::<BTreeMap<String, String>>::from_query(request.query_string());
    let query = query.map_err(|_| ApiError::field("query", "the query is not percent-encoded UTF-8"))?.into_inner();
    let (tenant, registry) = (Tenant::of(&request), state.registry.clone());
    let usable = move || {
        let all = registry.offered().into_iter().map(|offered| offered.info);
        all.filter(|info| tenant.may_use(&registry, &info.id)).map(MessagesModel::from).collect::<Vec<_>>()
    };
    let (data, has_more) = page(off_loop(usable).await?, &query)?;
    let id = |model: Option<&MessagesModel>| model.map(|model| model.id.clone());
    let (first_id, last_id) = (id(data.first()), id(data.last()));
    Ok(HttpResponse::Ok().json(MessagesModelList { data, has_more, first_id, last_id }))
}

/// Returns the models that a query asks for, and whether more follow in its direction.
fn page(mut models: Vec<MessagesModel>, query: &BTreeMap<String, String>) -> Result<(Vec<MessagesModel>, bool), ApiError> {
    if let Some(name) = query.keys().find(|name| !KNOWN.contains(&name.as_str())) {
        let name = quoted(name);
        return Err(ApiError::field(&name, format!("`{name}` is not a known parameter: the known ones are {}", KNOWN.join(", "))));
    }
    for stages in ["lifecycle", "lifecycle[]"].iter().filter_map(|name| query.get(*name)) {
        if let Some(stage) = stages.split(',').find(|stage| !STAGES.contains(stage)) {
            let stage = quoted(stage);
            return Err(ApiError::field("lifecycle", format!("`lifecycle` must be of {}, not `{stage}`", STAGES.join(", "))));
        }
        if stages.split(',').all(|stage| stage != ACTIVE) {
            models.clear();
        }
    }
    let limit =
        match query.get("limit") {
            None => PAGE,
            Some(text) => text.parse().ok().filter(|limit| (1..=MAX_PAGE).contains(limit)).ok_or_else(|| {
                ApiError::field("limit", format!("`limit` must be an integer from 1 to {MAX_PAGE}, not `{}`", quoted(text)))
            })?,
        };
    let at = |name: &str, models: &[MessagesModel]| match query.get(name) {
        None => Ok(None),
        Some(id) => models
            .iter()
            .position(|model| model.id == *id)
            .map(Some)
            .ok_or_else(|| ApiError::field(name, format!("`{name}` is `{}`, which is not the id of a listed model", quoted(id)))),
    };
    match (at("after_id", &models)?, at("before_id", &models)?) {
        (Some(_), Some(_)) => Err(ApiError::field("before_id", "`before_id` is not allowed with `after_id`")),
        (None, Some(before)) => {
            models.truncate(before);
            let skipped = models.len().saturating_sub(limit);
            Ok((models.split_off(skipped), skipped > 0))
        }
        (after, None) => {
            let mut rest = models.split_off(after.map_or(0, |after| after + 1));
            let has_more = rest.len() > limit;
            rest.truncate(limit);
            Ok((rest, has_more))
        }
    }
}

/// Returns a model by its id.
pub async fn retrieve(state: web::Data<AppState>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    // The router leaves %2F encoded, so this handler decodes the path.
    let raw = request.uri().path().strip_prefix(PREFIX).unwrap_or_default();
    let id = percent_decode(raw).ok_or_else(|| ApiError::model_not_found(raw, None))?;
    // A model that the key may not use is treated as unknown, as in the list.
    let (tenant, registry) = (Tenant::of(&request), &state.registry);
    let info = registry.info(&id).filter(|_| tenant.may_use(registry, &id)).ok_or_else(|| tenant.not_found(registry, &id))?;
    Ok(HttpResponse::Ok().json(MessagesModel::from(info)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_comes_in_pages() {
        let model = |id: &str| {
            MessagesModel::from(ModelInfo {
                id: id.into(),
                created: 0,
                context: None,
                loaded: false,
                root: id.into(),
                parent: None,
                adapter: None,
                sampling: None,
            })
        };
        let ids = |query: &[(&str, &str)]| {
            let query = query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let (models, has_more) = page(["a", "b", "c"].map(model).to_vec(), &query).map_err(|error| error.param.unwrap())?;
            Ok::<_, String>((models.into_iter().map(|model| model.id).collect::<String>(), has_more))
        };
        let due = |ids: &str, has_more| Ok((ids.to_owned(), has_more));
        assert_eq!(ids(&[]), due("abc", false));
        assert_eq!(ids(&[("limit", "2")]), due("ab", true));
        assert_eq!(ids(&[("limit", "2"), ("after_id", "a")]), due("bc", false));
        assert_eq!(ids(&[("limit", "1"), ("before_id", "c")]), due("b", true));
        assert_eq!(ids(&[("after_id", "c")]), due("", false));
        assert_eq!(ids(&[("lifecycle", "deprecated,active"), ("beta", "true")]), due("abc", false));
        assert_eq!(ids(&[("lifecycle[]", "retired")]), due("", false));
        for (name, value) in [("lifecycle", "new"), ("limit", "0"), ("limit", "x"), ("after_id", "z"), ("lmit", "1")] {
            assert_eq!(ids(&[(name, value)]), Err(name.to_owned()));
        }
    }
}

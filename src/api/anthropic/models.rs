//! `/v1/models` for requests with the header `anthropic-version`.

use std::collections::BTreeMap;

use actix_web::{HttpRequest, HttpResponse, web};

use super::types::models::{MessagesModel, MessagesModelList};
use crate::http::error::{ApiError, quoted};
use crate::http::percent::percent_decode;
use crate::http::state::AppState;
use crate::http::tenant::Tenant;
use registry::ModelInfo;

pub const PATH: &str = "/v1/models";
/// The prefix of a model's path.
pub const PREFIX: &str = "/v1/models/";
/// Models per page, unless the query says otherwise.
const PAGE: usize = 20;
const MAX_PAGE: usize = 1000;

impl From<ModelInfo> for MessagesModel {
    fn from(info: ModelInfo) -> Self {
        let ModelInfo { id, created, context, .. } = info;
        let (kind, display_name, created_at, lifecycle) = ("model".into(), id.clone(), time_of(created), "active".into());
        Self { kind, id, display_name, created_at, lifecycle, max_input_tokens: context, max_tokens: context }
    }
}

/// A page of the models that the key may use.
pub async fn list(state: web::Data<AppState>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let query = web::Query::<BTreeMap<String, String>>::from_query(request.query_string());
    let query = query.map_err(|_| ApiError::field("query", "the query is not percent-encoded UTF-8"))?.into_inner();
    let tenant = Tenant::of(&request);
    let usable = state.registry.list().into_iter().filter(|info| tenant.may_use(&state.registry, &info.id));
    let (data, has_more) = page(usable.map(MessagesModel::from).collect(), &query)?;
    let id = |model: Option<&MessagesModel>| model.map(|model| model.id.clone());
    let (first_id, last_id) = (id(data.first()), id(data.last()));
    Ok(HttpResponse::Ok().json(MessagesModelList { data, has_more, first_id, last_id }))
}

/// The models that a query asks for, and whether there are more in its direction.
fn page(mut models: Vec<MessagesModel>, query: &BTreeMap<String, String>) -> Result<(Vec<MessagesModel>, bool), ApiError> {
    if let Some(name) = query.keys().find(|name| !["limit", "after_id", "before_id"].contains(&name.as_str())) {
        let name = quoted(name);
        return Err(ApiError::field(&name, format!("`{name}` is not a known parameter: there are limit, after_id and before_id")));
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
            .ok_or_else(|| ApiError::field(name, format!("`{name}` is `{}`, which is no id of a model in the list", quoted(id)))),
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

/// A model by its id.
pub async fn retrieve(state: web::Data<AppState>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    // The router leaves %2F encoded, so this handler decodes the path.
    let raw = request.uri().path().strip_prefix(PREFIX).unwrap_or_default();
    let id = percent_decode(raw).ok_or_else(|| ApiError::model_not_found(raw, None))?;
    // A model that the key may not use is not in its list, and neither is it here.
    let (tenant, registry) = (Tenant::of(&request), &state.registry);
    let info = registry.info(&id).filter(|_| tenant.may_use(registry, &id)).ok_or_else(|| tenant.not_found(registry, &id))?;
    Ok(HttpResponse::Ok().json(MessagesModel::from(info)))
}

/// Unix seconds in RFC 3339.
fn time_of(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Eras of 400 years that begin on 1 March, so that a leap day is the last of its year.
    let (era, day) = ((days + 719_468) / 146_097, (days + 719_468) % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = 400 * era + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_rfc_3339() {
        let due = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_799, "2000-02-29T23:59:59Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_795_392_000, "2026-11-23T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ];
        assert_eq!(due.map(|(seconds, _)| time_of(seconds)), due.map(|(_, text)| text));
    }

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
        for (name, value) in [("limit", "0"), ("limit", "x"), ("after_id", "z"), ("lmit", "1")] {
            assert_eq!(ids(&[(name, value)]), Err(name.to_owned()));
        }
    }
}

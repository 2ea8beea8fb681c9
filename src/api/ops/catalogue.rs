//! `/admin/catalogue`: lets operators search for models to fetch.

use std::collections::BTreeMap;

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use tokio::sync::Semaphore;
use utoipa::ToSchema;

use super::admin::check;
use http::error::{ApiError, Kind, quoted};
use http::state::{AppState, off_loop};
use registry::{FoundIn, FoundModel};

const KNOWN: [&str; 2] = ["search", "hub"];
/// The longest search [bytes].
const MAX_SEARCH: usize = 200;
/// The most searches at once, because each one may wait for the hub.
static SEARCHES: Semaphore = Semaphore::const_new(4);

/// A model that can be fetched, or a repository that holds some.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CatalogueModel {
    /// The name to fetch it by. For a repository, the words that list its models.
    #[schema(example = "smollm2:135m")]
    pub id: String,
    /// `catalogue`, `hub` (a model of a repository) or `repository`
    #[schema(example = "catalogue")]
    pub source: String,
    #[schema(required = true)]
    pub family: Option<String>,
    #[schema(required = true)]
    pub licence: Option<String>,
    /// The longest context that the model was made for [tokens].
    #[schema(required = true)]
    pub context: Option<usize>,
    /// Whether it is a base model, which continues texts. Null if unknown.
    #[schema(required = true)]
    pub base: Option<bool>,
    /// The size of its files [bytes].
    #[schema(required = true)]
    pub bytes: Option<u64>,
    /// An estimate of the memory that it takes [bytes].
    #[schema(required = true)]
    pub needed: Option<u64>,
    pub on_disk: bool,
    /// The size of an interrupted download on disk [bytes].
    pub partial: u64,
    /// How often a repository was downloaded.
    #[schema(required = true)]
    pub downloads: Option<u64>,
}

/// The memory of the device that models are loaded on [bytes].
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CatalogueDevice {
    pub name: String,
    #[schema(required = true)]
    pub free: Option<u64>,
    #[schema(required = true)]
    pub total: Option<u64>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "object": "list",
    "data": [{"id": "smollm2:135m", "source": "catalogue", "family": "smollm2", "licence": "Apache-2.0", "context": 8192, "base": false,
        "bytes": 98362432, "needed": 391388496, "on_disk": true, "partial": 0, "downloads": null}],
    "device": {"name": "CPU", "free": 16106127360u64, "total": 25769803776u64},
    "hub_error": null
}))]
pub struct CatalogueList {
    #[schema(example = "list")]
    pub object: String,
    pub data: Vec<CatalogueModel>,
    #[schema(required = true)]
    pub device: Option<CatalogueDevice>,
    /// Why the hub could not be searched.
    #[schema(required = true)]
    pub hub_error: Option<String>,
}

impl From<FoundModel> for CatalogueModel {
    fn from(found: FoundModel) -> Self {
        let source = match found.place {
            FoundIn::Catalogue => "catalogue",
            FoundIn::Hub => "hub",
            FoundIn::Repository => "repository",
        };
        Self {
            id: found.id,
            source: source.into(),
            family: found.family,
            licence: found.licence,
            context: found.context,
            base: found.only_continues,
            bytes: found.bytes,
            needed: found.needed,
            on_disk: found.on_disk,
            partial: found.partial,
            downloads: found.downloads,
        }
    }
}

/// Search for models to fetch
///
/// Searches the catalogue and, with `hub=true`, the Hugging Face hub. Without words, lists the whole catalogue.
#[utoipa::path(get, path = "/admin/catalogue", operation_id = "adminSearchCatalogue", tag = "administration",
    params(
        ("search" = Option<String>, Query, description = "words of a name, or `owner/name` for the models of a repository of the hub"),
        ("hub" = Option<bool>, Query, description = "whether to search the hub, too")),
    responses(
    (status = 200, description = "what was found, with its size and an estimate of its memory", body = CatalogueList),
    (status = 400, description = "a parameter is wrong"),
    (status = 403, description = "the request may not manage models"),
    (status = 429, description = "too many searches run")))]
pub async fn search(state: web::Data<AppState>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    check(&state, &request)?;
    let query = web::Query::<BTreeMap<String, String>>::from_query(request.query_string());
    let query = query.map_err(|_| ApiError::field("query", "the query is not percent-encoded UTF-8"))?.into_inner();
    let (words, hub) = parameters(&query)?;
    let full = || ApiError::new(Kind::QueueFull, "too many searches run: try again later");
    let running = SEARCHES.try_acquire().map_err(|_| full())?;
    let registry = state.registry.clone();
    let search = move || {
        // Held until the search ends even if the client has left.
        let _running = running;
        (registry.search(&words, hub), registry.device())
    };
    let (found, device) = off_loop(search).await?;
    let device = device.map(|device| CatalogueDevice {
        name: device.name,
        free: device.memory.map(|memory| memory.free),
        total: device.memory.map(|memory| memory.total),
    });
    let data = found.models.into_iter().map(CatalogueModel::from).collect();
    Ok(HttpResponse::Ok().json(CatalogueList { object: "list".into(), data, device, hub_error: found.hub_fault }))
}

/// Returns the words to search for, and whether to search the hub.
fn parameters(query: &BTreeMap<String, String>) -> Result<(String, bool), ApiError> {
    if let Some(name) = query.keys().find(|name| !KNOWN.contains(&name.as_str())) {
        let name = quoted(name);
        return Err(ApiError::field(&name, format!("`{name}` is not a known parameter: the known ones are {}", KNOWN.join(", "))));
    }
    let words = query.get("search").cloned().unwrap_or_default();
    if words.len() > MAX_SEARCH {
        return Err(ApiError::field("search", format!("`search` has {} bytes, at most {MAX_SEARCH} are allowed", words.len())));
    }
    match query.get("hub").map(String::as_str) {
        None | Some("false") => Ok((words, false)),
        Some("true") => Ok((words, true)),
        Some(other) => Err(ApiError::field("hub", format!("`hub` must be true or false, not `{}`", quoted(other)))),
    }
}

#[cfg(test)]
mod tests {
    use super::parameters;

    #[test]
    fn a_search_has_words_and_a_place() {
        let of = |query: &[(&str, &str)]| {
            let query = query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            parameters(&query).map_err(|error| error.param.unwrap())
        };
        assert_eq!(of(&[]), Ok((String::new(), false)));
        assert_eq!(of(&[("search", "qwen"), ("hub", "true")]), Ok(("qwen".to_owned(), true)));
        let long = "x".repeat(201);
        for (name, value) in [("hub", "1"), ("serach", "x"), ("search", long.as_str())] {
            assert_eq!(of(&[(name, value)]), Err(name.to_owned()));
        }
    }
}

//! Endpoints of Ollama that this server does not have: making, copying and uploading models. They answer with an explanation. The OpenAPI
//! document omits them, because operations that always fail are of no use there.

use actix_web::web::{self, ServiceConfig};
use actix_web::{HttpRequest, ResponseError};

use http::error::{ApiError, Kind};
use http::routes::resource;

const ENTRY: &str = "an entry of its configuration gives a model another name and parameters of its own (docs/models.md)";
const FILES: &str = "name the file in its configuration instead";

/// The paths, the actions that they would perform, and the alternative.
const PATHS: [(&str, &str, &str); 4] = [
    ("/api/create", "make", ENTRY),
    ("/api/copy", "copy", ENTRY),
    ("/api/push", "upload", "it only fetches them, with /api/pull"),
    ("/api/blobs/{digest}", "take parts of", FILES),
];

pub fn routes(config: &mut ServiceConfig) {
    for (path, what, instead) in PATHS {
        let refuse = move |_: HttpRequest| async move {
            let message = format!("this server does not {what} models: {instead}");
            ApiError::new(Kind::NotImplemented, message).error_response()
        };
        // Clients ask whether a part exists before they send it.
        let (post, head) = (web::post().to(refuse), web::head().to(refuse));
        config.service(resource(path, "POST, HEAD", post).route(head));
    }
}

//! What Ollama has and this server does not: making, copying and uploading models. It is said rather than described: the document has no
//! operations that always fail.

use actix_web::web::{self, ServiceConfig};
use actix_web::{HttpRequest, ResponseError};

use http::error::{ApiError, Kind};
use http::routes::resource;

const ENTRY: &str = "an entry of its configuration gives a model another name and parameters of its own (docs/models.md)";
const FILES: &str = "name the file in its configuration instead";

/// The paths, what they would do, and what to do instead.
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
        // Clients ask for a part before they send it.
        let (post, head) = (web::post().to(refuse), web::head().to(refuse));
        config.service(resource(path, "POST, HEAD", post).route(head));
    }
}

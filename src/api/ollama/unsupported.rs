//! Endpoints of Ollama that this server does not have: uploading models to a registry. They answer with an explanation. The OpenAPI
//! document omits them, because operations that always fail are of no use there.

use actix_web::web::{self, ServiceConfig};
use actix_web::{HttpRequest, ResponseError};

use http::error::{ApiError, Kind};
use http::routes::resource;

/// The paths, the actions that they would perform, and the alternative.
const PATHS: [(&str, &str, &str); 1] = [(
    "/api/push",
    "upload models to a registry",
    "copy the file, whose path `penstock list --json` shows, or POST it to another server's /api/blobs",
)];

pub fn routes(config: &mut ServiceConfig) {
    for (path, what, instead) in PATHS {
        let refuse = move |_: HttpRequest| async move {
            let message = format!("this server does not {what}: {instead}");
            ApiError::new(Kind::NotImplemented, message).error_response()
        };
        config.service(resource(path, "POST", web::post().to(refuse)));
    }
}

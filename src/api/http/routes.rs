//! The server's routes, and helpers to define them.

use actix_web::http::header;
use actix_web::web::ServiceConfig;
use actix_web::{HttpRequest, HttpResponse, Resource, ResponseError, Route, guard, web};

use super::dialect::Dialects;
use super::error::{ApiError, Kind, quoted};
use super::paths::Directory;
use super::state::AppState;

/// Everything that the server serves.
#[derive(Clone)]
pub struct ServerContext {
    pub state: web::Data<AppState>,
    pub dialects: web::Data<Dialects>,
    /// Registers the routes that belong to no dialect.
    pub shared_routes: fn(&mut ServiceConfig),
    /// Suggests a path for requests without a route.
    pub directory: web::Data<Directory>,
}

impl ServerContext {
    pub fn configure(&self, config: &mut ServiceConfig) {
        config.app_data(self.state.clone()).app_data(self.dialects.clone()).app_data(self.directory.clone());
        self.dialects.in_order_of_routes().for_each(|dialect| dialect.routes(config));
        config.configure(self.shared_routes).default_service(web::to(not_found));
    }
}

/// A route for GET and HEAD. Probes send HEAD, and the server then leaves out the body.
pub fn get() -> Route {
    web::route().guard(guard::Any(guard::Get()).or(guard::Head()))
}

/// A resource at `path`. A method that is not in `allowed` gets status 405 with the list of allowed methods.
pub fn resource(path: &str, allowed: &'static str, route: Route) -> Resource {
    web::resource(path).route(route).default_service(web::to(move |request: HttpRequest| async move {
        let message = format!("{} is not allowed on {}: use {allowed}", quoted(request.method().as_str()), quoted(request.path()));
        let mut response = ApiError::new(Kind::MethodNotAllowed, message).error_response();
        response.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static(allowed));
        response
    }))
}

/// Answers a request for a path without a route, and suggests the path that was most likely meant.
pub async fn not_found(request: HttpRequest) -> HttpResponse {
    let (dialects, directory) = (request.app_data::<web::Data<Dialects>>(), request.app_data::<web::Data<Directory>>());
    let near = directory.zip(dialects).and_then(|(directory, dialects)| directory.nearest(request.path(), dialects));
    let hint = near.map_or(String::new(), |near| format!(": did you mean {near}?"));
    let message = format!("no such route: {} {}{hint}", quoted(request.method().as_str()), quoted(request.path()));
    ApiError::new(Kind::RouteNotFound, message).error_response()
}

//! Tests that errors of the middleware, the routes and the body reader use the envelope of the dialect that owns the path.

use std::sync::{Arc, LazyLock};

use actix_web::dev::ServiceResponse;
use actix_web::http::Method;
use actix_web::middleware::from_fn;
use actix_web::test::{TestRequest, init_service, try_call_service};
use actix_web::web::{self, Data, ServiceConfig};
use actix_web::{App, HttpResponse, body};
use serde_json::{Value, json};

use super::dialect::{Dialect, Dialects};
use super::error::ApiError;
use super::field_schema::FieldSchema;
use super::json::JsonBody;
use super::keyring::Keyring;
use super::middleware::around;
use super::openapi::Document;
use super::paths::Directory;
use super::routes::{ServerContext, get, resource};
use super::state::AppState;
use config::{Config, ConfigSources, Overrides};
use registry::Registry;

/// A dialect with one route, whose envelope has the dialect's name as its only key.
struct Tiny {
    name: &'static str,
    prefixes: &'static [&'static str],
    route: &'static str,
}

const DEFAULT: Tiny = Tiny { name: "default", prefixes: &["/v1"], route: "/v1/chat" };
const OTHER: Tiny = Tiny { name: "other", prefixes: &["/v1/other", "/elsewhere"], route: "/v1/other" };

impl Dialect for Tiny {
    fn prefixes(&self) -> &'static [&'static str] {
        self.prefixes
    }

    fn routes(&self, config: &mut ServiceConfig) {
        config.service(resource(self.route, "POST", web::post().to(echo)));
    }

    fn error_body(&self, error: &ApiError, _: Option<&str>) -> Value {
        json!({self.name: error.kind.code()})
    }

    fn document(&self) -> Document {
        Document { json: json!({}), error_schema: "Tiny" }
    }
}

async fn echo(body: JsonBody) -> Result<HttpResponse, ApiError> {
    static ANY: LazyLock<FieldSchema> = LazyLock::new(FieldSchema::default);
    let (value, _held) = body.read(&ANY, |value| Ok(value.clone())).await?;
    Ok(HttpResponse::Ok().json(value))
}

async fn panics() -> HttpResponse {
    panic!("a bug in a handler")
}

fn shared_routes(config: &mut ServiceConfig) {
    config.service(resource("/panic", "GET", get().to(panics))).service(resource("/v1/other/panic", "GET", get().to(panics)));
}

fn site() -> ServerContext {
    let env = vec![("HOME".to_owned(), "/home/u".to_owned())];
    let mut config = Config::load_from(&ConfigSources { env, ..Default::default() }, &Overrides::default()).unwrap();
    config.limits.max_body_bytes = 64;
    let registry = Registry::new(&config, &["smollm2".to_owned()]).unwrap();
    let keys = Arc::new(Keyring::open(&config).unwrap());
    let dialects = Dialects::new(Box::new(DEFAULT), vec![Box::new(OTHER)]);
    let (state, directory) =
        (Data::new(AppState::new(&config, registry, keys)), Data::new(Directory::new(|_| json!({"paths": {"/panic": {}}}))));
    ServerContext { state, dialects: Data::new(dialects), shared_routes, directory }
}

/// Returns the status and the body of the response to a request with the host header `localhost`.
async fn answer(site: &ServerContext, request: TestRequest) -> (u16, Value) {
    let app = App::new().wrap(from_fn(around)).configure(|config| site.configure(config));
    let response = match try_call_service(&init_service(app).await, request.to_request()).await {
        Ok(response) => ServiceResponse::into_parts(response).1.map_into_boxed_body(),
        Err(error) => error.error_response(),
    };
    let status = response.status().as_u16();
    assert_eq!(response.headers().get("content-type").unwrap(), "application/json");
    assert_eq!(response.headers().get("x-request-id").unwrap(), "mine");
    (status, serde_json::from_slice(&body::to_bytes(response.into_body()).await.unwrap()).unwrap())
}

fn request(method: Method, path: &str) -> TestRequest {
    TestRequest::default().method(method).uri(path).insert_header(("host", "localhost")).insert_header(("x-request-id", "mine"))
}

fn post(path: &str, text: &'static str) -> TestRequest {
    request(Method::POST, path).insert_header(("content-type", "application/json")).set_payload(text)
}

#[actix_web::test]
async fn an_error_comes_in_the_envelope_of_the_dialect_that_owns_the_path() {
    let site = site();
    let long = "[\"a body of more than sixty-four bytes, which is the limit in these tests\"]";
    for (name, path, below) in [("default", "/v1/chat", "/v1/chat/nothing"), ("other", "/v1/other", "/elsewhere/nothing")] {
        let is = |status: u16, code: &str| (status, json!({name: code}));
        assert_eq!(answer(&site, post(path, "[1, 2]")).await, (200, json!([1, 2])));
        assert_eq!(answer(&site, request(Method::GET, below)).await, is(404, "unknown_url"));
        assert_eq!(answer(&site, request(Method::GET, path)).await, is(405, "method_not_allowed"));
        assert_eq!(answer(&site, post(path, long)).await, is(413, "request_too_large"));
        assert_eq!(answer(&site, post(path, "{\"a\": 1, \"a\": 2}")).await, is(400, "invalid_json"));
        let plain = request(Method::POST, path).insert_header(("content-type", "text/plain")).set_payload("[]");
        assert_eq!(answer(&site, plain).await, is(415, "unsupported_media_type"));
        assert_eq!(answer(&site, post(path, "[]").insert_header(("host", "evil.example"))).await, is(403, "host_not_allowed"));
    }
    assert_eq!(answer(&site, request(Method::GET, "/nothing")).await, (404, json!({"default": "unknown_url"})));
    site.state.drain.start();
    assert_eq!(answer(&site, post("/v1/chat", "[]")).await, (503, json!({"default": "shutting_down"})));
    assert_eq!(answer(&site, post("/v1/other", "[]")).await, (503, json!({"other": "shutting_down"})));
}

#[actix_web::test]
async fn a_handlers_panic_is_an_error_and_not_a_closed_connection() {
    let site = site();
    let (status, body) = answer(&site, request(Method::GET, "/panic")).await;
    assert_eq!((status, body), (500, json!({"default": "internal_error"})), "the message of the panic is for the log");
    assert_eq!(answer(&site, request(Method::GET, "/v1/other/panic")).await, (500, json!({"other": "internal_error"})));
}

#[test]
fn the_longest_prefix_in_whole_segments_owns_a_path() {
    let dialects = Dialects::new(Box::new(DEFAULT), vec![Box::new(OTHER)]);
    let name = |path: &str| dialects.of(path).error_body(&ApiError::model_not_found("m", None), None);
    for (path, owner) in [
        ("/v1", "default"),
        ("/v1/other", "other"),
        ("/v1/other/x", "other"),
        ("/v1/others", "default"),
        ("/elsewhere", "other"),
        ("/x", "default"),
    ] {
        assert_eq!(name(path), json!({owner: "model_not_found"}), "{path}");
    }
}

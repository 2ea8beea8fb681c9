//! In-process calls to the dialect's own endpoints, so that a line of a batch is answered exactly like a client's request.

use std::panic::AssertUnwindSafe;
use std::rc::Rc;

use actix_http::{Method, Payload, Request, Uri, h1};
use actix_service::{Service, ServiceFactory, map_config};
use actix_web::dev::AppConfig;
use actix_web::http::header::{self, HeaderValue};
use actix_web::web::{Data, ServiceConfig};
use actix_web::{App, HttpMessage, body};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use serde_json::Value;

use super::super::error;
use http::error::{ApiError, Kind};
use http::journal::Journal;
use http::state::AppState;
use http::tenant::Tenant;

/// The response of an endpoint.
pub struct Reply {
    pub status: u16,
    pub body: Value,
    /// The error, if the request failed.
    pub error: Option<ApiError>,
}

type ReplyFuture = LocalBoxFuture<'static, Reply>;

pub struct InProcessClient {
    call: Box<dyn Fn(Request) -> ReplyFuture>,
}

impl InProcessClient {
    /// Builds the service from the dialect's `routes`.
    pub async fn new(state: Data<AppState>, routes: impl FnOnce(&mut ServiceConfig)) -> Self {
        let app = App::new().app_data(state).configure(routes);
        let service = map_config(app, |()| AppConfig::default()).new_service(()).await;
        // Making the service fails only because of a bug, since the server has been made from the same parts.
        let service = service.expect("the routes make a service");
        let call = move |request| -> ReplyFuture {
            let answer = service.call(request);
            Box::pin(async move {
                let answer = AssertUnwindSafe(answer).catch_unwind().await;
                let Ok(Ok(response)) = answer else { return refused(&ApiError::new(Kind::Internal, "an internal error occurred")) };
                if let Some(error) = response.response().extensions().get::<ApiError>() {
                    return refused(error);
                }
                let status = response.status().as_u16();
                let bytes = body::to_bytes(response.into_body()).await.unwrap_or_default();
                match serde_json::from_slice(&bytes) {
                    Ok(body) => Reply { status, body, error: None },
                    Err(_) => refused(&ApiError::new(Kind::Internal, "the endpoint's response is not JSON")),
                }
            })
        };
        Self { call: Box::new(call) }
    }

    /// Posts JSON to an endpoint on behalf of a tenant.
    pub fn post(&self, endpoint: &str, json: Vec<u8>, tenant: Tenant, journal: Rc<Journal>) -> ReplyFuture {
        let (_, mut payload) = h1::Payload::create(true);
        payload.unread_data(Bytes::from(json));
        let mut request = Request::with_payload(Payload::from(payload));
        let head = request.head_mut();
        head.method = Method::POST;
        head.uri = endpoint.parse().unwrap_or_else(|_| Uri::from_static("/"));
        head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        request.extensions_mut().insert(tenant);
        request.extensions_mut().insert(journal);
        (self.call)(request)
    }
}

fn refused(error: &ApiError) -> Reply {
    let body = serde_json::to_value(error::body(error)).expect("the envelope is JSON");
    Reply { status: error.kind.status().as_u16(), body, error: Some(error.clone()) }
}

//! The dialect's own endpoints, called inside the process: what answers a client answers a line of a batch.

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

/// What an endpoint has answered.
pub struct Reply {
    pub status: u16,
    pub body: Value,
    /// `None`: it has succeeded.
    pub error: Option<ApiError>,
}

type Answering = LocalBoxFuture<'static, Reply>;

pub struct Inside {
    call: Box<dyn Fn(Request) -> Answering>,
}

impl Inside {
    /// `routes`: those of the dialect.
    pub async fn new(state: Data<AppState>, routes: impl FnOnce(&mut ServiceConfig)) -> Self {
        let app = App::new().app_data(state).configure(routes);
        let service = map_config(app, |()| AppConfig::default()).new_service(()).await;
        // A failure to make the service is a fault of the program: its parts are those that the server was made of.
        let service = service.expect("the routes make a service");
        let call = move |request| -> Answering {
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
                    Err(_) => refused(&ApiError::new(Kind::Internal, "the endpoint answered something that is no JSON")),
                }
            })
        };
        Self { call: Box::new(call) }
    }

    /// Posts JSON to an endpoint as a tenant.
    pub fn post(&self, endpoint: &str, json: Vec<u8>, tenant: Tenant, journal: Rc<Journal>) -> Answering {
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

//! Request bodies. Ollama's documentation sends them with `curl -d`, which labels them as forms.

use actix_web::dev::Payload;
use actix_web::{FromRequest, HttpMessage, HttpRequest};
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;

use http::error::ApiError;
use http::json::{JsonBody, check_type, is_of_browser};

/// The content type that `curl -d` sets.
const FORM: &str = "application/x-www-form-urlencoded";
/// A JSON body. It may be labelled as a form unless a browser sends it, because another origin's page can send forms without a preflight
/// request.
pub struct Body(pub JsonBody);

impl FromRequest for Body {
    type Error = ApiError;
    type Future = LocalBoxFuture<'static, Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        JsonBody::receive(request, payload, check).map(|body| body.map(Self)).boxed_local()
    }
}

fn check(request: &HttpRequest) -> Result<(), ApiError> {
    let is_form = request.content_type().eq_ignore_ascii_case(FORM);
    if is_form && !is_of_browser(request) { Ok(()) } else { check_type(request) }
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    #[test]
    fn curl_may_call_json_a_form_and_a_browser_may_not() {
        let with = |headers: &[(&'static str, &'static str)]| {
            let request = headers.iter().fold(TestRequest::post(), |request, header| request.insert_header(*header));
            check(&request.to_http_request()).is_ok()
        };
        let form = ("content-type", FORM);
        assert!(with(&[form]) && with(&[]) && with(&[("content-type", "application/json"), ("origin", "http://a.example")]));
        assert!(!with(&[form, ("origin", "http://a.example")]) && !with(&[form, ("sec-fetch-site", "cross-site")]));
        assert!(!with(&[("content-type", "text/plain")]) && !with(&[("origin", "null")]));
    }
}

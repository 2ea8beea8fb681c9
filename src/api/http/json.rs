//! The JSON body of a request: bounded in size, time and depth, without duplicate keys.

use std::fmt;
use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::error::PayloadError;
use actix_web::http::header;
use actix_web::{FromRequest, HttpMessage, HttpRequest, web};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::error::{ApiError, Kind, quoted};
use super::inflate::{Encoding, too_large};
use super::state::{AppState, off_loop};

/// The server parses larger bodies off the event loop. In bytes.
const PARSE_INLINE: usize = 64 << 10;

/// A parsed body.
pub struct JsonBody(pub Value);

impl FromRequest for JsonBody {
    type Error = ApiError;
    type Future = LocalBoxFuture<'static, Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let (request, payload) = (request.clone(), payload.take());
        Box::pin(async move {
            let state = request.app_data::<web::Data<AppState>>().cloned();
            let limits = &state.as_ref().ok_or_else(|| ApiError::new(Kind::Internal, "the server has no state"))?.limits;
            let (limit, seconds) = (limits.max_body_bytes, limits.body_timeout_seconds);
            let encoding = check_head(&request, limit)?;
            let body = tokio::time::timeout(Duration::from_secs(seconds), read(payload, limit)).await;
            let body = body.map_err(|_| ApiError::new(Kind::Timeout, format!("the body did not arrive within {seconds} s")))??;
            let value = if encoding == Encoding::Identity && body.len() <= PARSE_INLINE {
                parse(&body)
            } else {
                off_loop(move || encoding.unpack(body, limit).and_then(|body| parse(&body))).await?
            };
            Ok(Self(value?))
        })
    }
}

fn check_head(request: &HttpRequest, limit: usize) -> Result<Encoding, ApiError> {
    let kind = request.content_type().to_ascii_lowercase();
    // A page of another origin may send some content types without a preflight request. JSON is not one of them.
    if kind != "application/json" && !(kind.starts_with("application/") && kind.ends_with("+json")) {
        let got = if kind.is_empty() { "nothing".into() } else { format!("`{}`", quoted(&kind)) };
        return Err(ApiError::new(Kind::MediaType, format!("content-type must be `application/json`, not {got}")));
    }
    let encoding = Encoding::of(request.headers())?;
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > limit as u64) {
        return Err(too_large(limit));
    }
    Ok(encoding)
}

async fn read(mut payload: Payload, limit: usize) -> Result<Bytes, ApiError> {
    let mut body = BytesMut::new();
    while let Some(chunk) = payload.next().await {
        let chunk = chunk.map_err(|error| match error {
            PayloadError::Overflow => too_large(limit),
            other => ApiError::new(Kind::MalformedBody, format!("the body could not be read: {other}")),
        })?;
        if body.len() + chunk.len() > limit {
            return Err(too_large(limit));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

/// Parses strict JSON: one value in UTF-8, with less than 128 levels (serde_json's own bound) and no duplicate key.
pub fn parse(body: &[u8]) -> Result<Value, ApiError> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let value = Strict.deserialize(&mut deserializer).and_then(|value| deserializer.end().map(|()| value));
    value.map_err(|error| ApiError::new(Kind::MalformedBody, format!("the body is not valid JSON: {}", quoted(&error.to_string()))))
}

struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number is not finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(Strict)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the key `{}` appears twice", quoted(&key))));
            }
            map.insert(key, access.next_value_seed(Strict)?);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_that_are_not_strict_json_are_refused() {
        let deep = format!("{}1{}", "[".repeat(128), "]".repeat(128));
        let cases: [&[u8]; 9] = [
            b"",
            b"{",
            b"{} x",
            b"{\"a\": NaN}",
            b"{\"a\": 1e999}",
            b"{\"a\": \"\\ud800\"}",
            b"{\"a\": \"\xff\"}",
            br#"{"a": 1, "a": 2}"#,
            deep.as_bytes(),
        ];
        for body in cases {
            let error = parse(body).unwrap_err();
            assert_eq!(error.kind, Kind::MalformedBody, "{}", String::from_utf8_lossy(body));
        }
        assert!(parse(br#"{"a": {"b": [1, 1]}, "c": {"b": 1}}"#).is_ok());
        assert!(parse(br#"[{"a": 1}, {"a": {"x": 1, "x": 1}}]"#).unwrap_err().message.contains("`x` appears twice"));
    }
}

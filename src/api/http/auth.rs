//! Authentication by API key, and the response headers that report the key's limits.

use std::time::{Duration, Instant};

use actix_web::dev::ServiceRequest;
use actix_web::http::header::{self, HeaderMap, HeaderName, HeaderValue};

use super::error::{ApiError, Kind};
use super::keyring::Keyring;
use super::tenant::Tenant;
use keys::{InFlight, Limit, Rate, Refusal};

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The rate-limit headers that OpenAI's SDKs and libraries based on them read: limit, remaining, reset.
const OF_REQUESTS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
];
const OF_TOKENS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
];

/// Finds the tenant of a request by its key.
///
/// # Errors
/// Fails if the request needs a key and has no known one.
pub fn authenticate(request: &ServiceRequest, keyring: &Keyring) -> Result<Tenant, ApiError> {
    if keyring.is_open(request.path()) {
        return Ok(Tenant::default());
    }
    let wrong = |message: &str| ApiError::new(Kind::Unauthorized, message);
    let secret = match (bearer(request.headers())?, one(request.headers(), &X_API_KEY)?) {
        (Some(one), Some(other)) if one != other => {
            return Err(wrong("`Authorization` and `x-api-key` hold different API keys: send one of them"));
        }
        (Some(secret), _) | (None, Some(secret)) => secret,
        (None, None) => return Err(wrong("this server needs an API key: send `Authorization: Bearer KEY` or `x-api-key: KEY`")),
    };
    let key = keyring.find(secret).ok_or_else(|| wrong("the API key is not known: it is wrong, or it was revoked"))?;
    Ok(Tenant::with_key(key))
}

/// Returns the value of a header that may occur once.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a [u8]>, ApiError> {
    let mut values = headers.get_all(name);
    match (values.next(), values.next()) {
        (_, Some(_)) => Err(ApiError::new(Kind::Unauthorized, format!("the header `{name}` occurs more than once"))),
        (value, None) => Ok(value.map(HeaderValue::as_bytes)),
    }
}

/// Returns the token of `Authorization: Bearer TOKEN`. Other schemes are ignored, since they may be meant for a proxy.
fn bearer(headers: &HeaderMap) -> Result<Option<&[u8]>, ApiError> {
    let Some(value) = one(headers, &header::AUTHORIZATION)? else { return Ok(None) };
    let (scheme, rest) = value.split_at(value.iter().position(|byte| *byte == b' ').unwrap_or(value.len()));
    Ok(scheme.eq_ignore_ascii_case(b"bearer").then(|| rest.trim_ascii()).filter(|token| !token.is_empty()))
}

/// Starts a request of a tenant, which counts against the limits of its key. If `only_looks`, the request takes no place among the running
/// ones.
///
/// # Errors
/// Fails if a limit is reached.
pub fn begin(tenant: &Tenant, only_looks: bool) -> Result<Option<InFlight>, ApiError> {
    let now = Instant::now();
    let begun = if only_looks { tenant.look(now).map(|()| None) } else { tenant.begin(now) };
    begun.map_err(|Refusal { limit, allowed, retry_after }| {
        let message = match limit {
            Limit::Requests => format!("this API key may send {allowed} requests per minute: try again in {}", seconds(retry_after)),
            Limit::Tokens => format!("this API key may use {allowed} tokens per minute: try again in {}", seconds(retry_after)),
            Limit::Concurrency => format!("this API key may have {allowed} requests at once: wait for one of them to end"),
        };
        ApiError { retry_after: Some(retry_after), ..ApiError::new(Kind::RateLimit, message) }
    })
}

/// Writes the key's remaining rates to the response's headers.
pub fn mark(headers: &mut HeaderMap, tenant: &Tenant) {
    let (requests, tokens) = tenant.rates();
    let mut write = |names: &[HeaderName; 3], rate: Option<Rate>| {
        let Some(Rate { limit, remaining, reset }) = rate else { return };
        let text = |text: String| HeaderValue::from_str(&text).expect("digits and letters are a header value");
        headers.insert(names[0].clone(), limit.into());
        headers.insert(names[1].clone(), remaining.into());
        headers.insert(names[2].clone(), text(seconds(reset)));
    };
    write(&OF_REQUESTS, requests);
    write(&OF_TOKENS, tokens);
}

/// Formats a duration as OpenAI does: `6m0s`, `1.5s`, `20ms`, `0s`.
fn seconds(time: Duration) -> String {
    // Rounded up, so that a client that waits this long has waited long enough.
    let milliseconds = time.as_nanos().div_ceil(1_000_000);
    let (minutes, rest) = (milliseconds / 60_000, milliseconds % 60_000);
    match (minutes, rest / 1000, rest % 1000) {
        (0, 0, 0) => "0s".into(),
        (0, 0, milliseconds) => format!("{milliseconds}ms"),
        (0, seconds, 0) => format!("{seconds}s"),
        (0, seconds, milliseconds) => format!("{seconds}.{}s", format!("{milliseconds:03}").trim_end_matches('0')),
        (minutes, seconds, milliseconds) => format!("{minutes}m{}s", seconds + u128::from(milliseconds > 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_worded_as_clients_read_them() {
        let worded = [0, 1, 999, 1000, 1500, 59_999, 60_000, 360_000, 61_001].map(|ms| seconds(Duration::from_millis(ms)));
        assert_eq!(worded, ["0s", "1ms", "999ms", "1s", "1.5s", "59.999s", "1m0s", "6m0s", "1m2s"]);
        assert_eq!(seconds(Duration::from_nanos(1)), "1ms");
    }

    fn headers(values: &[(&'static str, &'static str)]) -> HeaderMap {
        values.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn a_bearer_token_is_read_and_other_schemes_are_not() {
        let token = |value| bearer(&headers(&[("authorization", value)])).unwrap().map(<[u8]>::to_vec);
        for good in ["Bearer abc", "bearer abc", "BEARER   abc "] {
            assert_eq!(token(good).as_deref(), Some(&b"abc"[..]), "{good}");
        }
        for other in ["Basic abc", "abc", "Bearer", "Bearer ", "Bearerabc"] {
            assert_eq!(token(other), None, "{other}");
        }
        assert!(bearer(&headers(&[("authorization", "Bearer a"), ("authorization", "Bearer b")])).is_err());
    }
}

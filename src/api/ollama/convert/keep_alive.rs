//! Conversion of `keep_alive`.

use serde_json::Value;

use super::duration::{Signed, of_seconds, parse};
use http::error::{ApiError, quoted};
use http::fields::{Fields, wrong_type};
use registry::KeepAlive;

const FIELD: &str = "keep_alive";
const FORMS: &str = "seconds or a duration such as 5m or 1h30m, at most a hundred years";

pub fn keep_alive(fields: &Fields) -> Result<Option<KeepAlive>, ApiError> {
    let wrong = |got: &str| fields.invalid(FIELD, format_args!("must be {FORMS}, not `{}`", quoted(got)));
    let found = match fields.get(FIELD) {
        None => return Ok(None),
        Some(Value::Number(number)) => number.as_f64().and_then(of_seconds).ok_or_else(|| wrong(&number.to_string()))?,
        // Web forms send an empty text to mean nothing.
        Some(Value::String(text)) if text.is_empty() => return Ok(None),
        Some(Value::String(text)) => parse(text).ok_or_else(|| wrong(text))?,
        Some(other) => return Err(wrong_type(FIELD, FORMS, other)),
    };
    Ok(Some(match found {
        Signed::Endless => KeepAlive::Forever,
        Signed::For(time) => KeepAlive::For(time),
    }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn seconds_and_durations_are_read() {
        let read = |value: Value| keep_alive(&Fields::root(&json!({FIELD: value})).unwrap()).map_err(|error| error.param.unwrap());
        let seconds = |count| Ok(Some(KeepAlive::For(Duration::from_secs(count))));
        assert_eq!([read(json!(0)), read(json!(300)), read(json!("5m"))], [seconds(0), seconds(300), seconds(300)]);
        assert_eq!([read(json!(-1)), read(json!("-1m"))], [Ok(Some(KeepAlive::Forever)), Ok(Some(KeepAlive::Forever))]);
        assert_eq!([read(json!(null)), read(json!(""))], [Ok(None), Ok(None)]);
        for bad in [json!(true), json!([]), json!("soon"), json!("5"), json!(1e300)].into_iter().filter(|bad| bad != "5") {
            assert_eq!(read(bad.clone()), Err("keep_alive".to_owned()), "{bad}");
        }
    }
}

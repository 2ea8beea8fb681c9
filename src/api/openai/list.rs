//! Paginated lists.

use std::collections::BTreeMap;

use actix_web::{HttpRequest, web};
use serde::Serialize;
use utoipa::ToSchema;

use http::error::{ApiError, Kind, quoted};

/// The part of a list that a client asks for.
#[derive(Debug)]
pub struct Query {
    after: Option<String>,
    limit: usize,
    is_ascending: bool,
    others: BTreeMap<String, String>,
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Page<T> {
    #[schema(example = "list")]
    pub object: String,
    pub data: Vec<T>,
    pub first_id: Option<String>,
    pub last_id: Option<String>,
    pub has_more: bool,
}

impl<T> Page<T> {
    /// Converts the items of a page with `read`.
    pub fn map<U>(self, read: impl FnMut(T) -> U) -> Page<U> {
        let Self { object, data, first_id, last_id, has_more } = self;
        Page { object, data: data.into_iter().map(read).collect(), first_id, last_id, has_more }
    }
}

/// Returns the query parameters of a request.
pub fn parameters(request: &HttpRequest) -> Result<BTreeMap<String, String>, ApiError> {
    let pairs = web::Query::<Vec<(String, String)>>::from_query(request.query_string());
    let pairs = pairs.map_err(|_| ApiError::new(Kind::InvalidValue, "the query is not percent-encoded UTF-8"))?.into_inner();
    let mut map = BTreeMap::new();
    for (name, value) in pairs {
        if map.insert(name.clone(), value).is_some() && !name.ends_with("[]") {
            return Err(ApiError::field(&name, format!("the parameter `{}` occurs twice", quoted(&name))));
        }
    }
    Ok(map)
}

/// Parses a parameter as a number.
pub fn number(name: &str, value: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64, ApiError> {
    let number = value.parse::<u64>().ok().filter(|number| range.contains(number));
    let (least, most) = (range.start(), range.end());
    number.ok_or_else(|| ApiError::field(name, format!("`{name}` must be an integer from {least} to {most}, not `{}`", quoted(value))))
}

/// Parses a parameter as a truth value.
pub fn flag(name: &str, value: &str) -> Result<bool, ApiError> {
    match value {
        "true" | "True" | "1" => Ok(true),
        "false" | "False" | "0" => Ok(false),
        other => Err(ApiError::field(name, format!("`{name}` must be true or false, not `{}`", quoted(other)))),
    }
}

/// Refuses parameters that are not in `known`. `metadata[` permits `metadata[KEY]` with any key.
pub fn check_known(parameters: &BTreeMap<String, String>, known: &[&str]) -> Result<(), ApiError> {
    let is_known = |name: &&String| known.iter().any(|known| name == known || known.ends_with('[') && name.starts_with(known));
    match parameters.keys().find(|name| !is_known(name)) {
        None => Ok(()),
        Some(name) => {
            let message = format!("the parameter `{}` is not known here: leave it out, or use {}", quoted(name), known.join(", "));
            Err(ApiError::field(name, message))
        }
    }
}

impl Query {
    /// Reads the query of a request. The pair gives the default and the largest `limit`, and `others` the names of further parameters.
    pub fn of(request: &HttpRequest, (default, most): (usize, usize), others: &[&str]) -> Result<Self, ApiError> {
        let mut map = parameters(request)?;
        check_known(&map, &[&["after", "limit", "order"], others].concat())?;
        let limit = map.remove("limit").map(|value| number("limit", &value, 1..=most as u64)).transpose()?;
        let is_ascending = match map.remove("order").as_deref() {
            None | Some("desc") => false,
            Some("asc") => true,
            Some(other) => return Err(ApiError::field("order", format!("`order` must be asc or desc, not `{}`", quoted(other)))),
        };
        Ok(Self { after: map.remove("after"), limit: limit.map_or(default, |limit| limit as usize), is_ascending, others: map })
    }

    /// Lists the oldest entries first, unless the client asks otherwise.
    pub fn ascending_unless_asked(mut self, request: &HttpRequest) -> Self {
        self.is_ascending |= !request.query_string().contains("order=");
        self
    }

    pub fn other(&self, name: &str) -> Option<&str> {
        self.others.get(name).map(String::as_str)
    }

    pub fn others(&self) -> &BTreeMap<String, String> {
        &self.others
    }

    /// Returns a page of `items`, which are in the order of their creation.
    ///
    /// # Errors
    /// Fails if the list has no item with the id `after`.
    pub fn page<T>(&self, mut items: Vec<T>, id: impl Fn(&T) -> String) -> Result<Page<T>, ApiError> {
        if !self.is_ascending {
            items.reverse();
        }
        if let Some(after) = &self.after {
            let at = items.iter().position(|item| id(item) == *after);
            let at = at.ok_or_else(|| ApiError::field("after", format!("`after` names `{}`, which is not in the list", quoted(after))))?;
            items.drain(..=at);
        }
        let has_more = items.len() > self.limit;
        items.truncate(self.limit);
        let (first_id, last_id) = (items.first().map(&id), items.last().map(&id));
        Ok(Page { object: "list".into(), data: items, first_id, last_id, has_more })
    }
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    fn query(text: &str) -> Result<Query, ApiError> {
        Query::of(&TestRequest::with_uri(&format!("/x?{text}")).to_http_request(), (20, 100), &["purpose"])
    }

    fn page(text: &str) -> Page<u32> {
        query(text).unwrap().page((1..=5).collect(), u32::to_string).unwrap()
    }

    #[test]
    fn pages_follow_each_other_in_both_orders() {
        let first = page("limit=2");
        assert_eq!((first.data, first.last_id.as_deref(), first.has_more), (vec![5, 4], Some("4"), true));
        assert_eq!(page("limit=3&after=4").data, [3, 2, 1]);
        let last = page("order=asc&after=3&limit=2");
        assert_eq!((last.data, last.has_more), (vec![4, 5], false));
        assert_eq!(page("after=1").data, Vec::<u32>::new());
    }

    #[test]
    fn errors_name_the_parameter() {
        for (text, name) in
            [("limit=0", "limit"), ("limit=101", "limit"), ("order=up", "order"), ("limt=3", "limt"), ("limit=1&limit=2", "limit")]
        {
            assert_eq!(query(text).err().and_then(|error| error.param).as_deref(), Some(name), "{text}");
        }
        let gone = query("after=9").unwrap().page(vec![1], u32::to_string).unwrap_err();
        assert_eq!(gone.param.as_deref(), Some("after"));
        assert_eq!(query("purpose=batch").unwrap().other("purpose"), Some("batch"));
    }
}

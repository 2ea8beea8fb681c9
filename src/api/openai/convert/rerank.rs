//! `/v1/rerank` and `/score`: the requests.

use serde_json::Value;

use super::generation;
use super::known::Body;
use crate::http::error::ApiError;
use crate::http::fields::{Fields, wrong_type};
use config::Limits;

const MAX_PAIRS: usize = 1024;

/// A query and the texts that may answer it.
#[derive(Debug)]
pub struct Rerank {
    pub asked: Asked,
    pub query: String,
    pub documents: Vec<String>,
    /// How many results to return.
    pub top_n: usize,
    pub return_documents: bool,
}

/// Pairs of texts.
#[derive(Debug)]
pub struct Scores {
    pub asked: Asked,
    pub pairs: Vec<(String, String)>,
}

/// What both requests say.
#[derive(Debug)]
pub struct Asked {
    pub model: String,
    /// Probabilities rather than logits.
    pub activated: bool,
    /// The number of the `user`.
    pub user: u64,
}

fn asked(fields: &Fields) -> Result<Asked, ApiError> {
    let activated = fields.bool("use_activation")?.unwrap_or(true);
    Ok(Asked { model: super::model(fields)?, activated, user: generation::user(fields)? })
}

pub fn rerank(body: &Value, limits: &Limits) -> Result<Rerank, ApiError> {
    let fields = Fields::root(body)?;
    Body::Rerank.check(body, limits)?;
    let asked = asked(&fields)?;
    let query = fields.required("query", fields.string("query")?)?;
    if query.is_empty() {
        return Err(fields.invalid("query", "must not be empty"));
    }
    let list = fields.required("documents", fields.array("documents")?)?;
    let documents = texts(&fields, "documents", list, document)?;
    let top_n = fields.count("top_n", 1)?.map_or(documents.len(), |count| documents.len().min(count as usize));
    let return_documents = fields.bool("return_documents")?.unwrap_or(false);
    Ok(Rerank { asked, query: query.to_owned(), documents, top_n, return_documents })
}

pub fn score(body: &Value, limits: &Limits) -> Result<Scores, ApiError> {
    let fields = Fields::root(body)?;
    Body::Score.check(body, limits)?;
    let asked = asked(&fields)?;
    let side = |field: &str| match fields.required(field, fields.get(field))? {
        text @ Value::String(_) => texts(&fields, field, std::slice::from_ref(text), text_of),
        Value::Array(list) => texts(&fields, field, list, text_of),
        other => Err(wrong_type(field, "a string or a list of strings", other)),
    };
    let (first, second) = (side("text_1")?, side("text_2")?);
    if first.len() != 1 && first.len() != second.len() {
        let (one, other) = (first.len(), second.len());
        return Err(fields.invalid("text_1", format_args!("holds {one} texts and `text_2` {other}: send one, or as many")));
    }
    let first = first.into_iter().cycle();
    Ok(Scores { asked, pairs: first.zip(second).collect() })
}

type Read = fn(&Fields, &Value, &str) -> Result<String, ApiError>;

fn texts(fields: &Fields, field: &str, list: &[Value], read: Read) -> Result<Vec<String>, ApiError> {
    if list.is_empty() || list.len() > MAX_PAIRS {
        return Err(fields.invalid(field, format_args!("must hold 1 to {MAX_PAIRS} texts")));
    }
    let one = |(i, item)| {
        let text = read(fields, item, &format!("{field}[{i}]"))?;
        if text.is_empty() { Err(fields.invalid(field, "must not hold an empty text")) } else { Ok(text) }
    };
    list.iter().enumerate().map(one).collect()
}

fn text_of(_: &Fields, item: &Value, path: &str) -> Result<String, ApiError> {
    item.as_str().map(str::to_owned).ok_or_else(|| wrong_type(path, "a string", item))
}

/// A text, or an object with one.
fn document(_: &Fields, item: &Value, path: &str) -> Result<String, ApiError> {
    match item {
        Value::String(text) => Ok(text.clone()),
        Value::Object(_) => {
            let fields = Fields::at(item, path)?;
            Ok(fields.required("text", fields.string("text")?)?.to_owned())
        }
        other => Err(wrong_type(path, "a string or an object with `text`", other)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::tests::limits;
    use super::*;

    #[test]
    fn documents_are_texts_or_objects_with_one() {
        let body = json!({"model": "m", "query": "q", "documents": ["a", {"text": "b"}], "top_n": 9, "return_documents": true});
        let request = rerank(&body, &limits()).unwrap();
        assert_eq!((request.documents, request.top_n, request.return_documents), (vec!["a".into(), "b".into()], 2, true));
    }

    #[test]
    fn one_text_is_compared_with_each_of_several() {
        let read = |one: Value, other: Value| score(&json!({"model": "m", "text_1": one, "text_2": other}), &limits());
        let pair = |one: &str, other: &str| (one.to_owned(), other.to_owned());
        assert_eq!(read(json!("q"), json!(["a", "b"])).unwrap().pairs, [pair("q", "a"), pair("q", "b")]);
        assert_eq!(read(json!(["p", "q"]), json!(["a", "b"])).unwrap().pairs, [pair("p", "a"), pair("q", "b")]);
        assert_eq!(read(json!(["p", "q"]), json!("a")).unwrap_err().param.as_deref(), Some("text_1"));
    }

    #[test]
    fn errors_name_the_field() {
        let base = json!({"model": "m", "query": "q", "documents": ["a"]});
        for (field, value, param) in [
            ("query", json!(""), "query"),
            ("query", json!(null), "query"),
            ("documents", json!([]), "documents"),
            ("documents", json!("a"), "documents"),
            ("documents", json!(["a", ""]), "documents"),
            ("documents", json!(["a", 5]), "documents[1]"),
            ("documents", json!([{"txt": "a"}]), "documents[0].txt"),
            ("documents", json!([{"text": 5}]), "documents[0].text"),
            ("documents", json!(vec!["a"; 1025]), "documents"),
            ("top_n", json!(0), "top_n"),
            ("model", json!(null), "model"),
            ("top_k", json!(1), "top_k"),
        ] {
            let mut body = base.clone();
            body[field] = value;
            assert_eq!(rerank(&body, &limits()).unwrap_err().param.as_deref(), Some(param), "{field}");
        }
    }
}

//! Conversion of requests to `/v1/rerank` and `/score`.

use std::sync::Arc;

use serde_json::Value;

use super::generation;
use http::error::ApiError;
use http::fields::{Fields, wrong_type};
use serving::{Truncate, Truncation};

const MAX_PAIRS: usize = 1024;
/// The largest total size of the texts of all pairs. A text counts once per pair that contains it, because it is encoded that often
/// [bytes].
const MAX_TEXTS: usize = 16 << 20;

type Pair = (Arc<str>, Arc<str>);

/// A query, and the documents to rank by it.
#[derive(Debug)]
pub struct Rerank {
    pub asked: RankOptions,
    pub query: Arc<str>,
    pub documents: Vec<Arc<str>>,
    /// The number of results to return.
    pub top_n: usize,
    pub return_documents: bool,
    pub form: RankForm,
}

/// The form of a ranking on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankForm {
    /// `documents` and `results`, as Cohere's and Jina's APIs have them.
    Documents,
    /// `texts` and a list of scores, as text-embeddings-inference has them. The model may be left out.
    Texts,
}

/// Pairs of texts to score.
#[derive(Debug)]
pub struct Scores {
    pub asked: RankOptions,
    pub pairs: Vec<Pair>,
}

/// The options that both requests share.
#[derive(Debug)]
pub struct RankOptions {
    /// The model. `None` means the first one that is served.
    pub model: Option<String>,
    /// Whether to return probabilities and not logits.
    pub activated: bool,
    pub cut: Truncation,
    /// The number of the `user`.
    pub user: u64,
}

fn asked(fields: &Fields) -> Result<RankOptions, ApiError> {
    let activated = fields.bool("use_activation")?.unwrap_or(true);
    let document = fields.count("max_tokens_per_doc", 1)?.map(|most| most as usize);
    let cut = Truncation { document, prompt: generation::truncate(fields)?.map(Truncate::most) };
    Ok(RankOptions { model: Some(super::model(fields)?), activated, cut, user: generation::user(fields)? })
}

/// Reads the options of text-embeddings-inference.
fn asked_by_texts(fields: &Fields) -> Result<RankOptions, ApiError> {
    let activated = !fields.bool("raw_scores")?.unwrap_or(false);
    let most = fields.bool("truncate")?.unwrap_or(false).then(|| Truncate::ToContext.most());
    let model = fields.string("model")?.map(str::to_owned);
    Ok(RankOptions { model, activated, cut: Truncation { document: None, prompt: most }, user: generation::user(fields)? })
}

pub fn rerank(body: &Value) -> Result<Rerank, ApiError> {
    let fields = Fields::root(body)?;
    let form = match (fields.get("texts"), fields.get("documents")) {
        (Some(_), None) => RankForm::Texts,
        _ => RankForm::Documents,
    };
    let (asked, list_name, return_name) = match form {
        RankForm::Documents => (asked(&fields)?, "documents", "return_documents"),
        RankForm::Texts => (asked_by_texts(&fields)?, "texts", "return_text"),
    };
    let query = fields.required("query", fields.string("query")?)?;
    if query.is_empty() {
        return Err(fields.invalid("query", "must not be empty"));
    }
    let list = fields.required(list_name, fields.array(list_name)?)?;
    let documents = texts(&fields, list_name, list, document)?;
    check_total(&fields, "query", query.len() * documents.len() + documents.iter().map(|text| text.len()).sum::<usize>())?;
    // A value of 0 means all.
    let top_n = fields.count("top_n", 0)?.filter(|&count| count > 0).map_or(documents.len(), |count| documents.len().min(count as usize));
    let return_documents = fields.bool(return_name)?.unwrap_or(false);
    Ok(Rerank { asked, query: query.into(), documents, top_n, return_documents, form })
}

pub fn score(body: &Value) -> Result<Scores, ApiError> {
    let fields = Fields::root(body)?;
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
    let pairs: Vec<Pair> = first.zip(second).collect();
    check_total(&fields, "text_1", pairs.iter().map(|(one, other)| one.len() + other.len()).sum())?;
    Ok(Scores { asked, pairs })
}

fn check_total(fields: &Fields, field: &str, size: usize) -> Result<(), ApiError> {
    if size > MAX_TEXTS {
        let problem = format!("makes pairs whose texts have {size} bytes in total, and {MAX_TEXTS} are allowed: send fewer at a time");
        return Err(fields.invalid(field, problem));
    }
    Ok(())
}

type Read = fn(&Fields, &Value, &str) -> Result<Arc<str>, ApiError>;

fn texts(fields: &Fields, field: &str, list: &[Value], read: Read) -> Result<Vec<Arc<str>>, ApiError> {
    if list.is_empty() || list.len() > MAX_PAIRS {
        return Err(fields.invalid(field, format_args!("must hold 1 to {MAX_PAIRS} texts")));
    }
    let one = |(i, item)| {
        let text = read(fields, item, &format!("{field}[{i}]"))?;
        if text.is_empty() { Err(fields.invalid(field, "must not hold an empty text")) } else { Ok(text) }
    };
    list.iter().enumerate().map(one).collect()
}

fn text_of(_: &Fields, item: &Value, path: &str) -> Result<Arc<str>, ApiError> {
    item.as_str().map(Arc::from).ok_or_else(|| wrong_type(path, "a string", item))
}

/// Reads a text, or an object that holds one.
fn document(_: &Fields, item: &Value, path: &str) -> Result<Arc<str>, ApiError> {
    match item {
        Value::String(text) => Ok(text.as_str().into()),
        Value::Object(_) => {
            let fields = Fields::at(item, path)?;
            Ok(fields.required("text", fields.string("text")?)?.into())
        }
        other => Err(wrong_type(path, "a string or an object with `text`", other)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::schemas::RERANKS;
    use super::*;
    use config::UnknownFields;

    #[test]
    fn documents_are_texts_or_objects_with_one() {
        let body = json!({"model": "m", "query": "q", "documents": ["a", {"text": "b"}], "top_n": 9, "return_documents": true});
        let request = rerank(&body).unwrap();
        assert_eq!((request.documents, request.top_n, request.return_documents), (vec!["a".into(), "b".into()], 2, true));
        let body = json!({"query": "q", "texts": ["a", "b"], "raw_scores": true, "truncate": true, "return_text": true});
        let request = rerank(&body).unwrap();
        assert_eq!((request.form, request.return_documents, request.asked.activated), (RankForm::Texts, true, false));
        assert!(request.asked.model.is_none() && request.asked.cut.prompt.is_some());
    }

    #[test]
    fn one_text_is_compared_with_each_of_several() {
        let read = |one: Value, other: Value| score(&json!({"model": "m", "text_1": one, "text_2": other}));
        let pair = |one: &str, other: &str| -> Pair { (one.into(), other.into()) };
        assert_eq!(read(json!("q"), json!(["a", "b"])).unwrap().pairs, [pair("q", "a"), pair("q", "b")]);
        assert_eq!(read(json!(["p", "q"]), json!(["a", "b"])).unwrap().pairs, [pair("p", "a"), pair("q", "b")]);
        assert_eq!(read(json!(["p", "q"]), json!("a")).unwrap_err().param.as_deref(), Some("text_1"));
    }

    #[test]
    fn a_text_of_many_pairs_is_shared_and_bounded() {
        let body = |size: usize| json!({"model": "m", "query": "q".repeat(size), "documents": vec!["a"; 1024]});
        assert_eq!(rerank(&body(MAX_TEXTS / 1024)).unwrap_err().param.as_deref(), Some("query"));
        assert!(rerank(&body(MAX_TEXTS / 1024 - 1)).is_ok());
        let body = |size: usize| json!({"model": "m", "text_1": "q".repeat(size), "text_2": vec!["a"; 1024]});
        assert_eq!(score(&body(MAX_TEXTS / 1024)).unwrap_err().param.as_deref(), Some("text_1"));
        let pairs = score(&body(1000)).unwrap().pairs;
        assert!(pairs.iter().all(|(one, _)| Arc::ptr_eq(one, &pairs[0].0)));
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
            ("top_n", json!(-1), "top_n"),
            ("model", json!(null), "model"),
            ("top_k", json!(1), "top_k"),
        ] {
            let mut body = base.clone();
            body[field] = value;
            let read = RERANKS.admit(&mut body, UnknownFields::Name).and_then(|_| rerank(&body));
            assert_eq!(read.unwrap_err().param.as_deref(), Some(param), "{field}");
        }
    }
}

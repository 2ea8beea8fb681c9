//! Conversion of requests to `/api/create` and `/api/copy`.

use serde_json::{Map, Value};

use super::model::model_or_name;
use config::{ExampleMessage, ExampleRole};
use create::{AdapterOrigin, Changes, Origin, Recipe, TemplateText, catalogue_name};
use http::error::{ApiError, quoted};
use http::fields::{Fields, wrong_type};
use registry::blob_digest;

/// The most files of a model.
const MAX_FILES: usize = 1000;

/// A request to make a model.
#[derive(Debug)]
pub struct Create {
    pub model: String,
    pub recipe: Recipe,
    pub stream: bool,
}

pub fn create(body: &Value) -> Result<Create, ApiError> {
    let fields = Fields::root(body)?;
    let model = model_or_name(&fields)?;
    refuse(&fields)?;
    let quantize =
        fields.string("quantize")?.filter(|text| !text.is_empty()).or(fields.string("quantization")?.filter(|text| !text.is_empty()));
    let adapter = fields.object("adapters")?.filter(|adapters| !adapters.is_empty());
    let adapter = adapter.map(|adapters| blobs(adapters, "adapters").map(AdapterOrigin::Blobs)).transpose()?;
    let recipe = Recipe { origin: origin(&fields)?, adapter, changes: changes(&fields)?, quantize: quantize.map(str::to_owned) };
    Ok(Create { model, recipe, stream: fields.bool("stream")?.unwrap_or(true) })
}

/// Refuses what clients of Ollama may ask for and what is not supported.
fn refuse(fields: &Fields) -> Result<(), ApiError> {
    for (name, instead) in [
        ("modelfile", "send its contents as `from`, `system`, `template`, `parameters` and so on"),
        ("path", "upload the file to /api/blobs and name it in `files`"),
    ] {
        if fields.get(name).is_some_and(|value| value != "") {
            return Err(ApiError::unsupported(name, format!("`{name}` is not supported: {instead}")));
        }
    }
    Ok(())
}

fn origin(fields: &Fields) -> Result<Origin, ApiError> {
    let from = fields.string("from")?.filter(|name| !name.is_empty());
    let files = fields.object("files")?.filter(|files| !files.is_empty());
    match (from, files) {
        (Some(_), Some(_)) => Err(fields.invalid("files", "is not allowed with `from`: a model is made from one of them")),
        (None, None) => Err(fields.invalid("from", "or `files` is required: neither 'from' or 'files' was specified")),
        (Some(name), None) => {
            let path = name.starts_with(['.', '/', '~'])
                || name.contains("..")
                || name.contains('\\')
                || name.to_ascii_lowercase().ends_with(".gguf");
            match path {
                true => {
                    Err(fields
                        .invalid("from", "must be the name of a model, not a path: upload a file to /api/blobs and name it in `files`"))
                }
                false => Ok(Origin::Model(catalogue_name(name))),
            }
        }
        (None, Some(files)) => blobs(files, "files").map(Origin::Blobs),
    }
}

/// Reads the names and digests of uploaded files.
fn blobs(files: &Map<String, Value>, field: &str) -> Result<Vec<(String, String)>, ApiError> {
    if files.len() > MAX_FILES {
        return Err(ApiError::field(field, format!("`{field}` has more than {MAX_FILES} files")));
    }
    let file = |(name, digest): (&String, &Value)| {
        let path = format!("{field}.{}", quoted(name));
        let digest = digest.as_str().ok_or_else(|| wrong_type(&path, "a digest", digest))?;
        Ok((name.clone(), blob_digest(digest).map_err(|fault| ApiError::field(&path, format!("`{path}`: {fault}")))?))
    };
    files.iter().map(file).collect()
}

fn changes(fields: &Fields) -> Result<Changes, ApiError> {
    let mut changes = Changes { system: fields.string("system")?.map(str::to_owned), ..Changes::default() };
    if let Some(source) = fields.string("template")?.filter(|text| !text.is_empty()) {
        let template = TemplateText::new(source).map_err(|fault| ApiError::field("template", format!("`template`: {fault}")))?;
        changes.template = Some(template);
    }
    for (name, value) in fields.object("parameters")?.into_iter().flatten().filter(|(_, value)| !value.is_null()) {
        let path = format!("parameters.{}", quoted(name));
        changes.set_parameter(name, value).map_err(|fault| ApiError::field(&path, format!("`{path}`: {fault}")))?;
    }
    if let Some(list) = fields.array("messages")? {
        let message = |(at, value): (usize, &Value)| example(&fields.within(value, &format!("messages[{at}]"))?);
        changes.messages = Some(list.iter().enumerate().map(message).collect::<Result<_, _>>()?);
    }
    changes.licences = match fields.get("license") {
        None => None,
        Some(Value::String(text)) => Some(vec![text.clone()]),
        Some(Value::Array(texts)) => {
            let text =
                |text: &Value| text.as_str().map(str::to_owned).ok_or_else(|| wrong_type("license", "a text or a list of texts", text));
            Some(texts.iter().map(text).collect::<Result<_, _>>()?)
        }
        Some(other) => return Err(wrong_type("license", "a text or a list of texts", other)),
    };
    Ok(changes)
}

fn example(fields: &Fields) -> Result<ExampleMessage, ApiError> {
    super::messages::refuse_images(fields)?;
    if fields.array("tool_calls")?.is_some_and(|calls| !calls.is_empty()) {
        let path = fields.path("tool_calls");
        return Err(ApiError::unsupported(&path, format!("`{path}` is not supported: an example is a text")));
    }
    let role = fields.required("role", fields.string("role")?)?;
    let role = ExampleRole::by_name(role)
        .ok_or_else(|| fields.invalid("role", format_args!("must be system, user or assistant, not `{}`", quoted(role))))?;
    Ok(ExampleMessage { role, content: fields.required("content", fields.string("content")?)?.to_owned() })
}

/// A request to give a model a second name.
#[derive(Debug)]
pub struct Copy {
    pub source: String,
    pub destination: String,
}

pub fn copy(body: &Value) -> Result<Copy, ApiError> {
    let fields = Fields::root(body)?;
    let name = |field: &str| match fields.required(field, fields.string(field)?)? {
        "" => Err(fields.invalid(field, "must not be empty")),
        name => Ok(name.to_owned()),
    };
    Ok(Copy { source: name("source")?, destination: name("destination")? })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_becomes_a_recipe() {
        let body = json!({"model": "m", "from": "smollm2:latest", "system": "S", "parameters": {"stop": "x", "top_k": 3, "seed": null},
            "messages": [{"role": "user", "content": "a"}], "license": "L",
            "quantize": "q8_0", "template": "{{ .Prompt }}", "stream": false});
        let Create { model, recipe, stream } = create(&body).unwrap();
        assert_eq!((model.as_str(), stream, &recipe.origin), ("m", false, &Origin::Model("smollm2".into())));
        assert_eq!((recipe.quantize.as_deref(), recipe.changes.system.as_deref()), (Some("q8_0"), Some("S")));
        assert_eq!(Value::Object(recipe.changes.parameters), json!({"stop": ["x"], "top_k": 3}));
        assert_eq!((recipe.changes.messages.unwrap().len(), recipe.changes.licences), (1, Some(vec!["L".to_owned()])));
        let digest = "AB".repeat(32);
        let files = create(&json!({"name": "m", "files": {"m.gguf": format!("sha256:{digest}")}})).unwrap().recipe.origin;
        assert_eq!(files, Origin::Blobs(vec![("m.gguf".to_owned(), digest.to_lowercase())]));
    }

    #[test]
    fn wrong_requests_are_refused_with_the_field() {
        for (body, param, words) in [
            (json!({"from": "a"}), "model", "required"),
            (json!({"model": "m"}), "from", "neither 'from' or 'files'"),
            (json!({"model": "m", "from": "a", "files": {"a.gguf": "x"}}), "files", "one of them"),
            (json!({"model": "m", "from": "../a"}), "from", "not a path"),
            (json!({"model": "m", "from": "/etc/passwd"}), "from", "not a path"),
            (json!({"model": "m", "files": {"a.gguf": "sha256:00"}}), "files.a.gguf", "invalid digest format"),
            (json!({"model": "m", "files": {"a.gguf": 3}}), "files.a.gguf", "a digest"),
            (json!({"model": "m", "from": "a", "adapters": {"a.gguf": "sha256:00"}}), "adapters.a.gguf", "invalid digest format"),
            (json!({"model": "m", "modelfile": "FROM a"}), "modelfile", "not supported"),
            (json!({"model": "m", "from": "a", "parameters": {"tempreature": 1}}), "parameters.tempreature", "did you mean temperature?"),
            (json!({"model": "m", "from": "a", "messages": [{"role": "tool", "content": ""}]}), "messages[0].role", "system, user"),
            (json!({"model": "m", "from": "a", "template": "{{ .Nope }}"}), "template", "line 1: the field `.Nope`"),
            (json!({"model": "m", "from": "a", "license": 3}), "license", "list of texts"),
        ] {
            let error = create(&body).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{body}");
            assert!(error.message.contains(words), "{body}: {}", error.message);
        }
        assert_eq!(copy(&json!({"source": "a"})).unwrap_err().param.as_deref(), Some("destination"));
        assert_eq!(copy(&json!({"source": "", "destination": "b"})).unwrap_err().param.as_deref(), Some("source"));
    }
}

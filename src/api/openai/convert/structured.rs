//! Conversion of `response_format`, and of the fields with which other servers' clients ask for structured output.

use serde_json::Value;

use super::verbosity;
use chat::Format;
use http::error::{ApiError, quoted};
use http::fields::{Fields, wrong_type};
use http::integers::rounded;
use http::subject::FieldNames;

const MAX_CHOICES: usize = 1000;
const MAX_NAME: usize = 64;

/// A format, and the field that requests it.
#[derive(Clone, Debug, PartialEq)]
pub struct Structure {
    pub format: Format,
    pub field: &'static str,
}

/// Returns the field by which an error names the format.
pub fn field_of(structure: Option<&Structure>, names: FieldNames) -> &'static str {
    structure.map_or(names.format, |structure| structure.field)
}

/// Reads the required format of the answer. At most one field may request one.
pub fn structure(fields: &Fields) -> Result<Option<Structure>, ApiError> {
    let mut found: Option<Structure> = None;
    let mut take = |field: &'static str, format: Option<Format>| {
        let Some(format) = format else { return Ok(()) };
        if found.as_ref().is_some_and(|other| other.field == field) {
            return Err(fields.invalid(field, "says twice what the answer must be: keep one of its fields"));
        }
        if let Some(other) = &found {
            return Err(fields.invalid(field, format_args!("cannot be combined with `{}`: both say what the answer must be", other.field)));
        }
        found = Some(Structure { format, field });
        Ok(())
    };
    take("response_format", fields.get("response_format").map(response_format).transpose()?.flatten())?;
    for (field, kind) in
        [("regex", "regex"), ("grammar", "grammar"), ("choice", "choice"), ("guided_json", "json"), ("json_schema", "json")]
    {
        take(field, format(fields, field, kind)?)?;
    }
    for (field, kind) in [("guided_regex", "regex"), ("guided_grammar", "grammar"), ("guided_choice", "choice")] {
        take(field, format(fields, field, kind)?)?;
    }
    if let Some(value) = fields.get("structured_outputs") {
        let inner = Fields::at(value, "structured_outputs")?;
        refuse_variants(&inner)?;
        for kind in ["json", "regex", "grammar", "choice", "json_object"] {
            take("structured_outputs", format(&inner, kind, kind)?)?;
        }
    }
    Ok(found)
}

/// Refuses variants of `structured_outputs` that exist elsewhere and not here.
fn refuse_variants(fields: &Fields) -> Result<(), ApiError> {
    let asks = |name: &str| fields.get(name).is_some_and(|value| value != &Value::Bool(false));
    let variants = ["structural_tag", "whitespace_pattern", "disable_any_whitespace", "disable_additional_properties"];
    match variants.into_iter().find(|name| asks(name)) {
        Some(name) => {
            let path = fields.path(name);
            Err(ApiError::unsupported(&path, format!("`{path}` is not supported yet")))
        }
        None => Ok(()),
    }
}

/// Reads the format of a request to `/v1/responses`, which also has a field `text`.
pub fn of_response(fields: &Fields) -> Result<Option<Structure>, ApiError> {
    let (found, format) = (structure(fields)?, text_format(fields)?);
    if let (Some(found), Some(_)) = (&found, &format) {
        return Err(fields.invalid("text", format_args!("cannot be combined with `{}`: both say what the answer must be", found.field)));
    }
    Ok(format.map(|format| Structure { format, field: "text" }).or(found))
}

/// Reads `text.format`.
fn text_format(fields: &Fields) -> Result<Option<Format>, ApiError> {
    let Some(text) = fields.get("text") else { return Ok(None) };
    let text = Fields::at(text, "text")?;
    verbosity::check(&text)?;
    let Some(format) = text.get("format") else { return Ok(None) };
    let format = Fields::at(format, "text.format")?;
    match format.required("type", format.string("type")?)? {
        "text" => Ok(None),
        "json_object" => Ok(Some(Format::JsonObject)),
        "json_schema" => named_schema(&format).map(Some),
        other => Err(format.invalid("type", format_args!("must be text, json_object or json_schema, not `{}`", quoted(other)))),
    }
}

/// Reads a format of a known kind from a field.
fn format(fields: &Fields, field: &str, kind: &str) -> Result<Option<Format>, ApiError> {
    Ok(match kind {
        "json" => match fields.get(field) {
            Some(Value::String(text)) => {
                let schema = serde_json::from_str(text).map_err(|_| fields.invalid(field, "is a string that is not JSON"))?;
                if let Some((path, problem)) = rounded(text.as_bytes()) {
                    return Err(fields.invalid(field, format_args!("is a schema whose {path} {problem}")));
                }
                Some(Format::JsonSchema(schema))
            }
            other => other.map(|schema| schema_at(schema, &fields.path(field))).transpose()?,
        },
        "json_object" => fields.bool(field)?.and_then(|asked| asked.then_some(Format::JsonObject)),
        "regex" => text(fields, field)?.map(Format::Regex),
        "grammar" => text(fields, field)?.map(Format::grammar),
        _ => fields.array(field)?.map(|items| choices(fields, field, items)).transpose()?,
    })
}

/// Reads a text. An empty one asks for nothing.
fn text(fields: &Fields, field: &str) -> Result<Option<String>, ApiError> {
    Ok(fields.string(field)?.filter(|text| !text.is_empty()).map(str::to_owned))
}

fn choices(fields: &Fields, field: &str, items: &[Value]) -> Result<Format, ApiError> {
    if items.is_empty() || items.len() > MAX_CHOICES {
        return Err(fields.invalid(field, format_args!("must hold 1 to {MAX_CHOICES} texts")));
    }
    let text = |item: &Value| match item.as_str() {
        Some("") => Err(fields.invalid(field, "must not hold an empty text")),
        Some(text) => Ok(text.to_owned()),
        None => Err(wrong_type(&fields.path(field), "a list of strings", item)),
    };
    Ok(Format::Choice(items.iter().map(text).collect::<Result<_, _>>()?))
}

fn schema_at(schema: &Value, path: &str) -> Result<Format, ApiError> {
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(Format::JsonSchema(schema.clone())),
        other => Err(wrong_type(path, "a JSON schema", other)),
    }
}

fn response_format(value: &Value) -> Result<Option<Format>, ApiError> {
    let fields = Fields::at(value, "response_format")?;
    let kind = fields.required("type", fields.string("type")?)?;
    Ok(Some(match kind {
        "text" => return Ok(None),
        "json_object" => match fields.get("schema") {
            Some(schema) => schema_at(schema, "response_format.schema")?,
            None => Format::JsonObject,
        },
        "json_schema" => json_schema(&fields)?,
        "regex" | "grammar" | "choice" => fields.required(kind, format(&fields, kind, kind)?)?,
        other => {
            let kinds = "text, json_object, json_schema, regex, grammar or choice";
            return Err(fields.invalid("type", format_args!("must be {kinds}, not `{}`", quoted(other))));
        }
    }))
}

/// Reads the schema of a `response_format`. llama.cpp's clients give it without the object around it.
fn json_schema(fields: &Fields) -> Result<Format, ApiError> {
    if let (None, Some(schema)) = (fields.get("json_schema"), fields.get("schema")) {
        return schema_at(schema, "response_format.schema");
    }
    let value = fields.required("json_schema", fields.get("json_schema"))?;
    named_schema(&Fields::at(value, "response_format.json_schema")?)
}

/// Reads a named schema. `strict` has no effect: a schema is either followed strictly or refused.
fn named_schema(inner: &Fields) -> Result<Format, ApiError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let is_name = |name: &str| (1..=MAX_NAME).contains(&name.len()) && name.chars().all(fits);
    // The name is checked, but used nowhere.
    if inner.string("name")?.is_some_and(|name| !is_name(name)) {
        return Err(inner.invalid("name", format_args!("must be 1 to {MAX_NAME} of a-z, A-Z, 0-9, _ and -")));
    }
    inner.string("description")?;
    inner.bool("strict")?;
    match inner.get("schema") {
        Some(schema) => schema_at(schema, &inner.path("schema")),
        None => Ok(Format::JsonObject),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(body: &Value) -> Result<Option<Structure>, ApiError> {
        structure(&Fields::root(body).unwrap())
    }

    #[test]
    fn each_way_to_ask_for_a_format_is_understood() {
        let schema = json!({"type": "object"});
        let named = json!({"type": "json_schema", "json_schema": {"name": "x-1_A", "strict": true, "description": "d", "schema": schema}});
        let of_schema = || Format::JsonSchema(schema.clone());
        let cases = [
            (json!({"response_format": {"type": "json_object"}}), Format::JsonObject),
            (json!({"response_format": {"type": "json_object", "schema": schema}}), of_schema()),
            (json!({"response_format": named}), of_schema()),
            (json!({"response_format": {"type": "json_schema", "schema": schema}}), of_schema()),
            (json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}), Format::JsonObject),
            (json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}), of_schema()),
            (json!({"response_format": {"type": "regex", "regex": "a+"}}), Format::Regex("a+".into())),
            (json!({"response_format": {"type": "choice", "choice": ["a", "b"]}}), Format::Choice(vec!["a".into(), "b".into()])),
            (json!({"regex": "a+"}), Format::Regex("a+".into())),
            (json!({"grammar": "start: \"a\""}), Format::Lark("start: \"a\"".into())),
            (json!({"grammar": "root ::= \"a\""}), Format::Gbnf("root ::= \"a\"".into())),
            (json!({"choice": ["a"]}), Format::Choice(vec!["a".into()])),
            (json!({"guided_json": schema}), of_schema()),
            (json!({"guided_json": schema.to_string()}), of_schema()),
            (json!({"guided_choice": ["a"]}), Format::Choice(vec!["a".into()])),
            (json!({"structured_outputs": {"regex": "a"}}), Format::Regex("a".into())),
            (json!({"structured_outputs": {"json_object": true}}), Format::JsonObject),
        ];
        for (body, format) in cases {
            assert_eq!(parse(&body).unwrap().map(|structure| structure.format), Some(format), "{body}");
        }
        let nothing =
            json!({"response_format": {"type": "text"}, "grammar": "", "guided_json": null, "structured_outputs": {"regex": null}});
        assert!(parse(&nothing).unwrap().is_none());
    }

    #[test]
    fn a_response_asks_with_its_field_text() {
        let parse = |body: Value| of_response(&Fields::root(&body).unwrap()).map_err(|error| error.param.unwrap());
        let schema = json!({"type": "object"});
        let format = |format: Value| json!({"text": {"format": format}});
        let named = format(json!({"type": "json_schema", "name": "x", "strict": true, "schema": schema}));
        let due = |format| Ok(Some(Structure { format, field: "text" }));
        assert_eq!(parse(named.clone()), due(Format::JsonSchema(schema)));
        assert_eq!(parse(format(json!({"type": "json_object"}))), due(Format::JsonObject));
        assert_eq!(parse(format(json!({"type": "json_schema", "schema": true}))), due(Format::JsonSchema(json!(true))));
        for nothing in [format(json!({"type": "text"})), json!({"text": {"verbosity": "medium", "format": null}}), json!({"text": null})] {
            assert_eq!(parse(nothing), Ok(None));
        }
        let both = json!({"text": named["text"], "regex": "a"});
        for (body, param) in [
            (both, "text"),
            (json!({"text": "json"}), "text"),
            (json!({"text": {"verbosity": "lengthy"}}), "text.verbosity"),
            (format(json!({"type": "regex", "regex": "a"})), "text.format.type"),
            (format(json!({"type": "json_schema", "name": "x", "schema": 3})), "text.format.schema"),
        ] {
            assert_eq!(parse(body.clone()), Err(param.into()), "{body}");
        }
        assert_eq!(parse(json!({"regex": "a"})).unwrap().unwrap().field, "regex");
    }

    #[test]
    fn the_error_names_the_field() {
        let cases = [
            (json!({"response_format": "json"}), "response_format"),
            (json!({"response_format": {}}), "response_format.type"),
            (json!({"response_format": {"type": "xml"}}), "response_format.type"),
            (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema"),
            (json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}}), "response_format.json_schema.name"),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": 3}}}),
                "response_format.json_schema.schema",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": 1}}}),
                "response_format.json_schema.strict",
            ),
            (json!({"response_format": {"type": "regex"}}), "response_format.regex"),
            (json!({"choice": []}), "choice"),
            (json!({"choice": ["a", 1]}), "choice"),
            (json!({"choice": [""]}), "choice"),
            (json!({"guided_json": "{"}), "guided_json"),
            (json!({"regex": "a", "response_format": {"type": "json_object"}}), "regex"),
            (json!({"structured_outputs": {"regex": "a", "choice": ["b"]}}), "structured_outputs"),
        ];
        for (body, param) in cases {
            assert_eq!(parse(&body).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }
}

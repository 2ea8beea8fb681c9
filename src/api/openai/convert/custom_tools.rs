//! Custom tools: they take a text in place of arguments. To the model, each is a function whose only argument is a string named `input`.

use serde_json::{Map, Value, json};

use super::super::input_text::arguments_of;
use super::tool_shape::{self, Shape};
use chat::{Call, Declaration, InputGrammar, Tool};
use http::error::{ApiError, quoted};
use http::fields::Fields;

/// A tool of the list `tools`.
pub fn tool(fields: Fields, shape: Shape) -> Result<Tool, ApiError> {
    let custom = shape.inner(fields, "custom")?;
    let name = tool_shape::name(&custom)?.to_owned();
    let description = custom.string("description")?;
    let input = match custom.get("format") {
        None => None,
        Some(value) => grammar(Fields::at(value, &custom.path("format"))?, shape)?,
    };
    let mut schema = json!({"type": "string"});
    let what = match &input {
        None => None,
        Some(InputGrammar::Regex(regex)) => {
            schema["pattern"] = format!("^(?:{regex})$").into();
            Some(format!("Text that matches this regular expression: {regex}"))
        }
        Some(InputGrammar::Lark(lark)) => Some(format!("Text that follows this grammar in Lark's syntax:\n{lark}")),
    };
    let mut shown = json!({"type": "string"});
    if let Some(what) = what {
        shown["description"] = what.into();
    }
    let mut function = Map::from_iter([("name".to_owned(), Value::from(name.as_str()))]);
    function.extend(description.map(|text| ("description".to_owned(), text.into())));
    function.insert("parameters".into(), object(shown));
    Ok(Tool { name, parameters: Some(object(schema)), strict: true, declaration: Declaration::Function(function), input })
}

/// The schema of an object whose only member is `input`.
fn object(input: Value) -> Value {
    json!({"type": "object", "properties": {"input": input}, "required": ["input"], "additionalProperties": false})
}

/// `format`
fn grammar(format: Fields, shape: Shape) -> Result<Option<InputGrammar>, ApiError> {
    match format.required("type", format.string("type")?)? {
        "text" => return Ok(None),
        "grammar" => {}
        other => return Err(format.invalid("type", format_args!("must be text or grammar, not `{}`", quoted(other)))),
    }
    let grammar = shape.inner(format, "grammar")?;
    let definition = grammar.required("definition", grammar.string("definition")?)?;
    if definition.trim().is_empty() {
        return Err(grammar.invalid("definition", "must not be empty"));
    }
    match grammar.required("syntax", grammar.string("syntax")?)? {
        "regex" => Ok(Some(InputGrammar::Regex(definition.to_owned()))),
        "lark" => Ok(Some(InputGrammar::Lark(definition.to_owned()))),
        other => Err(grammar.invalid("syntax", format_args!("must be lark or regex, not `{}`", quoted(other)))),
    }
}

/// A call of an earlier answer.
pub fn call(id: &str, custom: &Fields) -> Result<Call, ApiError> {
    let input = custom.required("input", custom.string("input")?)?;
    Ok(Call { id: id.to_owned(), name: tool_shape::full_name(custom)?, arguments: arguments_of(input) })
}

/// The names of the custom tools of a list that was found valid.
pub fn names(fields: &Fields) -> Result<Vec<String>, ApiError> {
    let customs = fields.array("tools")?.unwrap_or_default().iter().filter(|tool| tool["type"] == "custom");
    Ok(customs.filter_map(|tool| tool["custom"]["name"].as_str()).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: Value, shape: Shape) -> Result<Tool, ApiError> {
        tool(Fields::at(&value, "tools[0]").unwrap(), shape)
    }

    #[test]
    fn a_custom_tool_is_a_function_of_one_text() {
        let format = json!({"type": "grammar", "syntax": "regex", "definition": "a|b"});
        let flat = read(json!({"type": "custom", "name": "f", "description": "d", "format": format}), Shape::Flat).unwrap();
        let grammar = json!({"type": "grammar", "grammar": {"syntax": "regex", "definition": "a|b"}});
        let nested = json!({"type": "custom", "custom": {"name": "f", "description": "d", "format": grammar}});
        assert_eq!(read(nested, Shape::Nested).unwrap(), flat);
        assert_eq!(flat.input, Some(InputGrammar::Regex("a|b".into())));
        assert_eq!(flat.parameters.unwrap()["properties"]["input"]["pattern"], "^(?:a|b)$");
        let Declaration::Function(function) = flat.declaration else { panic!("the template's own form") };
        assert_eq!((&function["name"], &function["description"]), (&json!("f"), &json!("d")));
        let free = read(json!({"type": "custom", "name": "f", "format": {"type": "text"}}), Shape::Flat).unwrap();
        assert_eq!((free.input, free.parameters), (None, Some(object(json!({"type": "string"})))));
    }

    #[test]
    fn the_error_names_the_field() {
        let grammar =
            |grammar: Value| json!({"type": "custom", "custom": {"name": "f", "format": {"type": "grammar", "grammar": grammar}}});
        for (value, param) in [
            (json!({"type": "custom"}), "tools[0].custom"),
            (json!({"type": "custom", "custom": {}}), "tools[0].custom.name"),
            (json!({"type": "custom", "custom": {"name": "f", "format": {}}}), "tools[0].custom.format.type"),
            (json!({"type": "custom", "custom": {"name": "f", "format": {"type": "json"}}}), "tools[0].custom.format.type"),
            (json!({"type": "custom", "custom": {"name": "f", "format": {"type": "grammar"}}}), "tools[0].custom.format.grammar"),
            (grammar(json!({"syntax": "lark"})), "tools[0].custom.format.grammar.definition"),
            (grammar(json!({"syntax": "lark", "definition": " "})), "tools[0].custom.format.grammar.definition"),
            (grammar(json!({"syntax": "gbnf", "definition": "a"})), "tools[0].custom.format.grammar.syntax"),
        ] {
            assert_eq!(read(value.clone(), Shape::Nested).unwrap_err().param.as_deref(), Some(param), "{value}");
        }
    }
}

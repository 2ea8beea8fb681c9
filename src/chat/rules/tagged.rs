//! Rules for calls that write their arguments one by one between tags.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::{Value, json};

use crate::dialect::{Tagged, type_of};
use crate::parameters::{Parameter, Parameters};
use grammar::{GrammarError, Source};

/// The most arguments whose names the schema does not list.
const MAX_FURTHER: usize = 32;

/// The conversion of texts to rules.
pub struct Literals<'a> {
    /// Converts a text to Lark's syntax, with its control tokens as tokens.
    pub literal: &'a dyn Fn(&str) -> String,
    /// Whether the tag after a value is a control token, so that the value cannot hold it.
    pub closes_by_token: bool,
}

/// Adds the values that are written as JSON, as the named grammars to which [`rules`] refers.
pub fn with_values(parameters: &[Parameters], mut source: Source) -> Result<Source, GrammarError> {
    for (i, of_tool) in parameters.iter().enumerate() {
        for (j, parameter) in of_tool.listed.iter().enumerate() {
            for (k, schema) in parameter.others.iter().enumerate() {
                source = source.with_schema(&format!("value_{i}_{j}_{k}"), schema)?;
            }
        }
    }
    Ok(source)
}

/// The rule `arguments_I` of each tool, and the rules to which it refers.
pub fn rules(writer: &Literals, tags: &Tagged, parameters: &[Parameters]) -> Result<String, GrammarError> {
    let mut lark = String::new();
    for (i, of_tool) in parameters.iter().enumerate() {
        let optional = |j: usize, parameter: &Parameter| format!("argument_{i}_{j}{}", if parameter.required { "" } else { "?" });
        let mut parts: Vec<String> = of_tool.listed.iter().enumerate().map(|(j, parameter)| optional(j, parameter)).collect();
        if of_tool.open {
            parts.push(format!("further{{0,{MAX_FURTHER}}}"));
        }
        let _ = writeln!(lark, "arguments_{i}: \"\" {}", parts.join(" "));
        for (j, parameter) in of_tool.listed.iter().enumerate() {
            lark += &argument(writer, tags, parameter, &format!("{i}_{j}"))?;
            Source::default().with_room_for(lark.len())?;
        }
    }
    let literal = writer.literal;
    lark += &string(writer, tags, "free", "(?s:.*)", "");
    let further = [&literal(tags.before), " /[A-Za-z0-9_.-]{1,64}/ ", &literal(tags.text), " free"].concat();
    let _ = writeln!(lark, "further: {further}");
    Ok(lark)
}

/// The rule `argument_AT` for one argument with its tags.
fn argument(writer: &Literals, tags: &Tagged, parameter: &Parameter, at: &str) -> Result<String, GrammarError> {
    let (literal, mut lark) = (writer.literal, String::new());
    let head = |mid: &str| literal(&[tags.before, &parameter.name, mid].concat());
    let types = |schema: &Value| match schema.get("enum").and_then(Value::as_array) {
        Some(values) => values.iter().map(type_of).collect::<BTreeSet<_>>(),
        None => schema.get("type").and_then(Value::as_array).into_iter().flatten().filter_map(type_name).collect(),
    };
    let mut forms = Vec::new();
    let mut is_free = false;
    for (k, schema) in parameter.strings.iter().enumerate() {
        let values = schema.get("enum").and_then(Value::as_array);
        let form = match (values, constraints(tags, schema)?) {
            (Some(values), _) => {
                let values = values.iter().filter_map(Value::as_str).map(|value| literal(&[value, tags.after].concat()));
                format!("({})", values.collect::<Vec<_>>().join(" | "))
            }
            (None, None) => {
                is_free = true;
                "free".to_owned()
            }
            (None, Some((regex, more))) => {
                lark += &string(writer, tags, &format!("text_{at}_{k}"), &regex, &more);
                format!("text_{at}_{k}")
            }
        };
        forms.push(format!("{} {form}", head(tags.text)));
    }
    // If the tags do not tell strings from other values, free text covers every other value.
    if !is_free || tags.text != tags.json {
        for (k, schema) in parameter.others.iter().enumerate() {
            let tags_of_types: BTreeSet<String> = types(schema).into_iter().map(|kind| head(&tags.json_of(kind))).collect();
            let tags_of_types: Vec<String> = tags_of_types.into_iter().collect();
            forms.push(format!("({}) @value_{at}_{k} {}", tags_of_types.join(" | "), literal(tags.after)));
        }
        // If the tags do not tell types, templates write Python's constants.
        let constants = [(json!(true), "True"), (json!(false), "False"), (json!(null), "None")];
        for (_, word) in constants.iter().filter(|(value, _)| tags.text == tags.json && parameter.takes(value)) {
            forms.push(format!("{} {}", head(tags.json), literal(&[*word, tags.after].concat())));
        }
    }
    let _ = writeln!(lark, "argument_{at}: {}", forms.join(" | "));
    Ok(lark)
}

/// The name of a type in a tag.
fn type_name(name: &Value) -> Option<&'static str> {
    Some(match name.as_str()? {
        "integer" | "number" => "number",
        "boolean" => "boolean",
        "null" => "null",
        "array" => "array",
        _ => "object",
    })
}

/// The rule `name`: a string that matches `regex`, and also `more` unless `more` is empty, with the tag after it.
pub fn string(writer: &Literals, tags: &Tagged, name: &str, regex: &str, more: &str) -> String {
    let (literal, close, free) = (writer.literal, escaped(tags.close()), regex == "(?s:.*)");
    // Free text may lack the line break before its tag.
    let (end, line) = (literal(tags.end()), if free { "" } else { tags.line() });
    if writer.closes_by_token {
        let more = if more.is_empty() { String::new() } else { format!(" & /{more}{line}/") };
        let terminal = format!("{}_TEXT", name.to_uppercase());
        return format!("{name}: {terminal} {} {end}\n{terminal}: /{regex}{line}/{more}\n", literal(tags.close()));
    }
    // The text ends at the first closing tag, even if a longer text would match.
    let more = if more.is_empty() { String::new() } else { format!(" & /{more}{line}{close}/") };
    let first = if free { String::new() } else { format!(" & ~/(?s:.*){close}(?s:.+)/") };
    format!("{name}: {name}_text {end}\n{name}_text[lazy]: /{regex}{line}{close}/{more}{first}\n")
}

/// The regular expressions for a string's length and for its pattern, of which the latter may be empty. `None`: any string is allowed.
pub fn constraints(tags: &Tagged, schema: &Value) -> Result<Option<(String, String)>, GrammarError> {
    let length = |key: &str| schema.get(key).and_then(Value::as_u64);
    let (min, max) = (length("minLength"), length("maxLength"));
    let pattern = schema.get("pattern").and_then(Value::as_str);
    if pattern.is_none() && min.is_none() && max.is_none() {
        return Ok(None);
    }
    let regex = format!("(?s:.{{{},{}}})", min.unwrap_or(0), max.map_or(String::new(), |max| max.to_string()));
    let Some(pattern) = pattern else { return Ok(Some((regex, String::new()))) };
    let (begins, ends) = (pattern.starts_with('^'), pattern.ends_with('$') && !pattern.ends_with("\\$"));
    if (begins || ends) && pattern.contains('|') && !is_one_group(pattern) {
        let tag = tags.close();
        let text = format!("pattern: this model's calls, which end a value by {tag}, cannot follow alternatives beside `^` or `$`");
        return Err(GrammarError::Invalid(text));
    }
    let inner = pattern.strip_prefix('^').unwrap_or(pattern);
    let inner = if ends { inner.strip_suffix('$').unwrap_or(inner) } else { inner };
    let inner = inner.replace("\\/", "/").replace('/', "\\/");
    let any = |anchored: bool| if anchored { "" } else { "(?s:.*)" };
    Ok(Some((regex, format!("{}({inner}){}", any(begins), any(ends)))))
}

/// Whether a pattern is `^(?:…)$` with one group, which matches the same as the group's content.
fn is_one_group(pattern: &str) -> bool {
    let Some(inner) = pattern.strip_prefix("^(?:").and_then(|rest| rest.strip_suffix(")$")) else { return false };
    let (mut depth, mut in_class, mut escaped) = (0_i32, false, false);
    inner.chars().all(|c| {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class => depth += 1,
            ')' if !in_class => depth -= 1,
            _ => {}
        }
        depth >= 0
    }) && depth == 0
        && !escaped
}

/// Escapes a text for a regular expression.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\\' | '.' | '+' | '*' | '?' | '(' | ')' | '|' | '[' | ']' | '{' | '}' | '^' | '$' | '/' => out.extend(['\\', c]),
            _ => out.push(c),
        }
    }
    out
}

//! Rules for calls that write their arguments one by one.

use std::fmt::Write;

use serde_json::Value;

use crate::dialect::Tagged;
use crate::parameters::{Parameter, Parameters};
use grammar::{GrammarError, Source};

/// The most arguments of names that a schema does not list.
const MAX_FURTHER: usize = 32;

/// How texts become rules.
pub struct Literals<'a> {
    /// A text in Lark's syntax, with its control tokens as tokens.
    pub literal: &'a dyn Fn(&str) -> String,
    /// Whether the tag behind a value is a control token, so that the value cannot hold it.
    pub closes_by_token: bool,
}

/// The values that are JSON, as the named grammars to which [`rules`] refer.
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

/// The rule `arguments_I` of each tool, and what it refers to.
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
            let json = |k: usize| {
                [
                    &(writer.literal)(&[tags.before, &parameter.name, tags.json].concat()),
                    " ",
                    &format!("@value_{i}_{j}_{k} "),
                    &(writer.literal)(tags.after),
                ]
                .concat()
            };
            let mut forms: Vec<String> = (0..parameter.others.len()).map(json).collect();
            let texts: Vec<String> = parameter.strings.iter().map(|schema| text(writer, tags, schema)).collect::<Result<_, _>>()?;
            let head = (writer.literal)(&[tags.before, &parameter.name, tags.text].concat());
            // Free text is a rule of its own; a lazy one must not compete with JSON.
            if tags.text == tags.json && texts.iter().any(|rule| rule == "free") {
                forms.clear();
            }
            forms.extend(texts.into_iter().map(|rule| match rule.strip_prefix("lazy ") {
                None => format!("{head} {rule}"),
                Some(regex) => {
                    let name = format!("text_{i}_{j}");
                    let _ = writeln!(lark, "{name}[lazy]: {regex}");
                    format!("{head} {name} {}", (writer.literal)(tags.end()))
                }
            }));
            let _ = writeln!(lark, "argument_{i}_{j}: {}", forms.join(" | "));
        }
    }
    let close = writer.closes_by_token;
    let free = match close {
        true => format!("free: /(?s:.*)/ {} {}", (writer.literal)(tags.close()), (writer.literal)(tags.end())),
        false => format!("free: free_text {}\nfree_text[lazy]: /(?s:.*){}/", (writer.literal)(tags.end()), escaped(tags.close())),
    };
    let further = [&(writer.literal)(tags.before), " /[A-Za-z0-9_.-]{1,64}/ ", &(writer.literal)(tags.text), " free"].concat();
    let _ = writeln!(lark, "{free}\nfurther: {further}");
    Ok(lark)
}

/// A string up to the end of its tag: the rule `free`, literals, or `lazy` and a terminal.
fn text(writer: &Literals, tags: &Tagged, schema: &Value) -> Result<String, GrammarError> {
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        let values = values.iter().filter_map(Value::as_str).map(|value| (writer.literal)(&[value, tags.after].concat()));
        return Ok(format!("({})", values.collect::<Vec<_>>().join(" | ")));
    }
    let length = |key: &str| schema.get(key).and_then(Value::as_u64);
    let pattern = schema.get("pattern").and_then(Value::as_str);
    if pattern.is_none() && length("minLength").is_none() && length("maxLength").is_none() {
        return Ok("free".into());
    }
    let (line, close) = (tags.line(), escaped(tags.close()));
    let (min, max) = (length("minLength").unwrap_or(0), length("maxLength").map_or(String::new(), |max| max.to_string()));
    let mut terminal = format!("/(?s:.{{{min},{max}}}){line}{close}/ & ~/(?s:.*){close}(?s:.+)/");
    if let Some(pattern) = pattern {
        let anchored = pattern.starts_with('^') || pattern.ends_with('$');
        if anchored && pattern.contains('|') {
            return Err(GrammarError::Invalid("pattern: this model's calls cannot follow alternatives beside `^` or `$`".into()));
        }
        let start = if pattern.starts_with('^') { "" } else { "(?s:.*)" };
        let end = if pattern.ends_with('$') && !pattern.ends_with("\\$") { "" } else { "(?s:.*)" };
        let inner = pattern.strip_prefix('^').unwrap_or(pattern);
        let inner = if end.is_empty() { inner.strip_suffix('$').unwrap_or(inner) } else { inner };
        let inner = inner.replace("\\/", "/").replace('/', "\\/");
        let _ = write!(terminal, " & /{start}({inner}){end}{line}{close}/");
    }
    Ok(format!("lazy {terminal}"))
}

/// A text inside a regular expression.
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

//! The tools of a list that a model may be told of: those in a namespace stand for themselves, and hosted ones are left out.

use serde_json::Value;

use super::tool_shape::{Shape, joined, name};
use chat::{Declaration, Tool};
use http::error::ApiError;
use http::fields::Fields;
use http::offered::{Offer, offered};

/// How the types begin of tools of `/v1/responses` that OpenAI's servers run, or that its models were trained to call.
pub const HOSTED: [&str; 11] = [
    "apply_patch",
    "code_interpreter",
    "computer",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_search",
];

/// A namespace and what it says about its tools.
pub struct Namespace<'a> {
    name: &'a str,
    description: Option<&'a str>,
}

/// A tool, and where it stands.
pub struct Found<'a> {
    pub path: String,
    pub value: &'a Value,
    /// Only for the first tool of a namespace does it hold the description.
    pub namespace: Option<Namespace<'a>>,
}

/// The tools and namespaces of the list `field`.
pub fn offers<'a>(fields: &Fields<'a>, field: &str, shape: Shape) -> Result<Vec<Offer<'a>>, ApiError> {
    offered(fields, field, if shape == Shape::Flat { &HOSTED } else { &[] })
}

/// The tools of the list `field`.
pub fn found<'a>(fields: &Fields<'a>, field: &str, shape: Shape) -> Result<Vec<Found<'a>>, ApiError> {
    let mut all = Vec::new();
    for (path, value) in offers(fields, field, shape)? {
        match shape == Shape::Flat && value["type"] == "namespace" {
            true => all.extend(members(&path, value)?),
            false => all.push(Found { path, value, namespace: None }),
        }
    }
    Ok(all)
}

/// The tools of a namespace.
fn members<'a>(path: &str, value: &'a Value) -> Result<Vec<Found<'a>>, ApiError> {
    let namespace = Fields::at(value, path)?;
    let (name, description) = (name(&namespace)?, namespace.string("description")?);
    namespace.required("tools", namespace.array("tools")?)?;
    let member = |(i, (path, value)): (usize, Offer<'a>)| {
        let description = description.filter(|text| i == 0 && !text.is_empty());
        Found { path, value, namespace: Some(Namespace { name, description }) }
    };
    Ok(offered(&namespace, "tools", &[])?.into_iter().enumerate().map(member).collect())
}

impl Namespace<'_> {
    /// Gives a tool of this namespace its full name. The first one says what the namespace is: templates have no other place for it.
    pub fn adopt(&self, mut tool: Tool) -> Tool {
        tool.name = joined(Some(self.name), &tool.name);
        if let Declaration::Function(function) = &mut tool.declaration {
            function.insert("name".into(), tool.name.as_str().into());
            if let Some(about) = self.description {
                let own = function.get("description").and_then(Value::as_str).unwrap_or_default();
                let text = [about, own].join("\n\n");
                function.insert("description".into(), text.trim_end().into());
            }
        }
        tool
    }
}

/// What a tool is known by outside: its namespace and its name, and whether it takes a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Address {
    pub namespace: Option<String>,
    pub name: String,
    pub takes_text: bool,
}

/// The tool that the model knows by the name `full`. `tools`: as the response repeats them.
pub fn address(tools: &[Value], full: &str) -> Address {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let of = |tool: &Value, namespace: Option<String>| {
        let name = text(&tool["name"]).filter(|name| joined(namespace.as_deref(), name) == full)?;
        Some(Address { namespace, name, takes_text: tool["type"] == "custom" })
    };
    let found = tools.iter().find_map(|tool| match tool["type"].as_str() {
        Some("namespace") => tool["tools"].as_array()?.iter().find_map(|member| of(member, text(&tool["name"]))),
        _ => of(tool, None),
    });
    found.unwrap_or_else(|| Address { name: full.to_owned(), ..Address::default() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tools::tools;
    use super::*;
    use chat::ToolChoice;

    fn namespace() -> Value {
        let open = json!({"type": "function", "name": "open", "description": "Opens a gate."});
        let note = json!({"type": "custom", "name": "note"});
        json!({"type": "namespace", "name": "gates", "description": "All gates.", "tools": [open, note]})
    }

    #[test]
    fn a_namespace_is_a_part_of_its_tools_names() {
        let function = json!({"type": "function", "name": "open"});
        let choice = json!({"type": "function", "namespace": "gates", "name": "open"});
        let body = json!({"tools": [{"type": "web_search"}, function, namespace()], "tool_choice": choice});
        let read = tools(&Fields::root(&body).unwrap(), Shape::Flat).unwrap().unwrap();
        let names: Vec<&str> = read.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!((names, read.choice), (vec!["open", "gates.open", "gates.note"], ToolChoice::Named("gates.open".into())));
        let described = |at: usize| match &read.tools[at].declaration {
            Declaration::Function(function) => (function["name"].clone(), function.get("description").cloned()),
            whole => panic!("{whole:?}"),
        };
        assert_eq!(described(1), (json!("gates.open"), Some(json!("All gates.\n\nOpens a gate."))));
        assert_eq!(described(2), (json!("gates.note"), None));
    }

    #[test]
    fn a_call_is_addressed_as_its_tool_was_declared() {
        let tools = [json!({"type": "function", "name": "gates.close"}), namespace()];
        let of = |full: &str| {
            let Address { namespace, name, takes_text } = address(&tools, full);
            (namespace, name, takes_text)
        };
        assert_eq!(of("gates.open"), (Some("gates".into()), "open".into(), false));
        assert_eq!(of("gates.note"), (Some("gates".into()), "note".into(), true));
        assert_eq!(of("gates.close"), (None, "gates.close".into(), false));
        assert_eq!(of("unknown"), (None, "unknown".into(), false));
    }

    #[test]
    fn errors_name_what_is_wrong_in_a_namespace() {
        let function = |name: &str| json!({"type": "function", "name": name});
        for (tool, param) in [
            (json!({"type": "namespace", "tools": [function("f")]}), "tools[0].name"),
            (json!({"type": "namespace", "name": "n"}), "tools[0].tools"),
            (json!({"type": "namespace", "name": "n", "tools": [function("f"), {"type": "function"}]}), "tools[0].tools[1].name"),
            (json!({"type": "namespace", "name": "n", "tools": [{"type": "web_search"}]}), "tools[0].tools[0].type"),
            (json!({"type": "namespace", "name": "n", "tools": [function("f"), function("f")]}), "tools"),
        ] {
            let body = json!({"tools": [tool]});
            let error = tools(&Fields::root(&body).unwrap(), Shape::Flat).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{body}");
        }
    }
}

//! Selects the tools of a request that are offered to the model.

use serde_json::Value;

use super::error::{ApiError, quoted};
use super::fields::Fields;

/// The path of a tool in the body, and the tool.
pub type ClientTool<'a> = (String, &'a Value);

/// Returns the tools of the list `field` that can be offered to a model here. Tools whose type begins with a prefix in `hosted` are left
/// out: their vendor's servers run them, or only models trained for them can call them. Agents send such tools along with their own, and a
/// model can do without any tool.
///
/// # Errors
/// Refuses a list that has only hosted tools, because its client depends on them.
pub fn client_tools<'a>(fields: &Fields<'a>, field: &str, hosted: &[&str]) -> Result<Vec<ClientTool<'a>>, ApiError> {
    let list = fields.array(field)?.unwrap_or_default();
    let kind = |tool: &'a Value| tool["type"].as_str().filter(|kind| hosted.iter().any(|prefix| kind.starts_with(prefix)));
    let ours: Vec<ClientTool> = list
        .iter()
        .enumerate()
        .filter(|(_, tool)| kind(tool).is_none())
        .map(|(i, tool)| (format!("{}[{i}]", fields.path(field)), tool))
        .collect();
    match list.first().and_then(kind).filter(|_| ours.is_empty()) {
        Some(first) => {
            let path = format!("{}[0].type", fields.path(field));
            let message = format!("`{path}` is `{}`: this tool cannot be offered to a model here. Send functions as well", quoted(first));
            Err(ApiError::unsupported(&path, message))
        }
        None => Ok(ours),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hosted_tools_are_left_out_unless_there_are_no_others() {
        let paths = |tools: Value| {
            let body = json!({"tools": tools});
            let found = client_tools(&Fields::root(&body).unwrap(), "tools", &["web_search", "mcp"]);
            found.map(|found| found.into_iter().map(|(path, _)| path).collect::<Vec<_>>()).map_err(|error| error.param.unwrap())
        };
        let (search, ours) = (json!({"type": "web_search_2025_08_26"}), json!({"type": "function"}));
        assert_eq!(paths(json!([search, ours, {"type": "mcp"}])).unwrap(), ["tools[1]"]);
        assert_eq!(paths(json!([search, search])).unwrap_err(), "tools[0].type");
        assert_eq!(paths(json!([{"type": "wob_search"}])).unwrap(), ["tools[0]"], "the reader of tools refuses it");
        assert!(paths(json!([])).unwrap().is_empty());
    }
}

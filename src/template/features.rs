//! What a chat template can do, found out by rendering with it.

use serde_json::{Map, Value, json};

use super::{ChatTemplate, RenderInput};

/// What of a conversation a template shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// A system message's text.
    pub system: bool,
    /// The tools that may be called.
    pub tools: bool,
    /// The calls that the model made, and their results.
    pub tool_results: bool,
    /// `enable_thinking` changes the prompt.
    pub thinking_switch: bool,
}

impl ChatTemplate {
    /// Renders some conversations; a template that refuses one does not have its feature.
    pub fn features(&self) -> Features {
        let user = json!({ "role": "user", "content": "probe-user" });
        let system = json!({ "role": "system", "content": "probe-system" });
        let parameters =
            json!({ "type": "object", "properties": { "x": { "type": "string", "description": "probe" } }, "required": ["x"] });
        let tools = json!([{ "type": "function", "function": { "name": "probe_tool", "description": "probe", "parameters": parameters } }]);
        let with_tools = |messages: Value| RenderInput { messages, tools: Some(tools.clone()), ..RenderInput::default() };
        // templates want a call's arguments as an object or as its JSON
        let called = |arguments: Value| {
            let call = json!([{ "id": "call00001", "type": "function", "function": { "name": "probe_tool", "arguments": arguments } }]);
            let answer = json!({ "role": "assistant", "content": "", "tool_calls": call });
            let result = json!({ "role": "tool", "tool_call_id": "call00001", "name": "probe_tool", "content": "probe-result" });
            with_tools(json!([user, answer, result]))
        };
        let thinking = |enabled: bool| {
            let kwargs = Map::from_iter([("enable_thinking".to_owned(), Value::Bool(enabled))]);
            self.render(&RenderInput { messages: json!([user]), add_generation_prompt: true, kwargs, ..RenderInput::default() }).ok()
        };
        Features {
            system: self.shows(&RenderInput { messages: json!([system, user]), ..RenderInput::default() }, "probe-system"),
            tools: self.shows(&with_tools(json!([user])), "probe_tool"),
            tool_results: [json!({ "x": "1" }), json!("{\"x\": \"1\"}")].into_iter().any(|form| self.shows(&called(form), "probe-result")),
            thinking_switch: thinking(true) != thinking(false),
        }
    }

    fn shows(&self, input: &RenderInput, needle: &str) -> bool {
        self.render(input).is_ok_and(|text| text.contains(needle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_what_a_render_shows() {
        let of = |source: &str| {
            let Features { system, tools, tool_results, thinking_switch } = ChatTemplate::new(source, "", "").unwrap().features();
            [system, tools, tool_results, thinking_switch]
        };
        assert_eq!(of("{% for m in messages %}{{ m.content }}{% endfor %}"), [true, false, true, false]);
        assert_eq!(of("{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}"), [false; 4]);
        assert_eq!(
            of("{% if tools %}{{ tools | tojson }}{% endif %}{% if enable_thinking %}<think>{% endif %}"),
            [false, true, false, true]
        );
    }
}

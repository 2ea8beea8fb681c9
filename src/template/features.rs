//! Finds out what a chat template supports by rendering sample conversations.

use serde_json::{Map, Value, json};

use crate::chat_template::ChatTemplate;
use crate::input::RenderInput;

/// The parts of a conversation that a template puts into the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Whether the text of a system message appears.
    pub system: bool,
    /// Whether the list of tools appears.
    pub tools: bool,
    /// Whether the results of earlier tool calls appear.
    pub tool_results: bool,
    /// Whether `enable_thinking` changes the prompt.
    pub thinking_switch: bool,
}

impl ChatTemplate {
    /// Renders a sample conversation per feature. If the template refuses a sample, it does not have the feature.
    pub fn features(&self) -> Features {
        let user = json!({ "role": "user", "content": "probe-user" });
        let system = json!({ "role": "system", "content": "probe-system" });
        let parameters =
            json!({ "type": "object", "properties": { "x": { "type": "string", "description": "probe" } }, "required": ["x"] });
        let tools = json!([{ "type": "function", "function": { "name": "probe_tool", "description": "probe", "parameters": parameters } }]);
        let with_tools = |messages: Value| RenderInput { messages, tools: Some(tools.clone()), ..RenderInput::default() };
        // Templates expect the arguments of a call as an object or as JSON text.
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
    fn a_template_has_the_features_that_change_its_prompt() {
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

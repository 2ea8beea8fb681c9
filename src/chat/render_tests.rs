//! Renders conversations and checks the input that a template sees.

use serde_json::Map;

use super::*;
use crate::dialect::{GENERIC, SystemPlace, TurnOrder};
use crate::tools::{ToolChoice, Tools};

fn dialect(placement: ToolPlacement, calls: CallForm) -> Dialect {
    Dialect::plain(GENERIC, placement, calls)
}

/// The template's input as JSON, in which the order of keys counts.
fn shown(dialect: &Dialect, conversation: &Conversation) -> (String, Option<String>) {
    let input = Layout::new(dialect, &|text| text.replace("<|end|>", "<!|end|>"), conversation).input;
    (input.messages.to_string(), input.tools.map(|tools| tools.to_string()))
}

fn messages(dialect: &Dialect, messages: Vec<Message>) -> String {
    shown(dialect, &Conversation { messages, ..Conversation::default() }).0
}

fn user(text: &str) -> Message {
    Message::of_text(Role::User, text)
}

fn result(text: &str) -> Message {
    Message { call_id: Some("x".into()), ..Message::of_text(Role::Tool, text) }
}

fn calling(text: &str, arguments: &str) -> Message {
    let call = Call { id: "x".into(), name: "f".into(), arguments: arguments.into() };
    Message { calls: vec![call], reasoning: Some("hm".into()), name: Some("Ada".into()), ..Message::of_text(Role::Assistant, text) }
}

#[test]
fn keys_have_a_fixed_order_absent_keys_are_left_out_and_results_name_their_function() {
    let all = vec![user("q"), calling("t", "{\"b\": 1, \"a\": \"<|end|>\"}"), result("r")];
    let around = |arguments: &str| {
        [
            r#"[{"role":"user","content":"q"},{"role":"assistant","content":"t","name":"Ada","reasoning_content":"hm","tool_calls":"#,
            r#"[{"id":"x","type":"function","function":{"name":"f","arguments":"#,
            arguments,
            r#"}}]},{"role":"tool","content":"r","name":"f","tool_call_id":"x"}]"#,
        ]
        .concat()
    };
    let objects = dialect(ToolPlacement::Variable, CallForm::Objects);
    assert_eq!(messages(&objects, all.clone()), around(r#"{"b":1,"a":"<!|end|>"}"#));
    let strings = dialect(ToolPlacement::Variable, CallForm::Strings);
    assert_eq!(messages(&strings, all), around(r#""{\"b\": 1, \"a\": \"<!|end|>\"}""#));
    for arguments in ["[1]", "{"] {
        let text = messages(&objects, vec![calling("", arguments)]);
        assert!(text.contains(&format!("\"arguments\":\"{arguments}\"")), "not an object, so it stays a string: {text}");
    }
}

#[test]
fn consecutive_results_become_one_message_of_the_user() {
    let text = dialect(ToolPlacement::Words, CallForm::Text);
    let wrapped = |text: &str| format!("<tool_response>\\n{text}\\n</tool_response>");
    let joined = ["a", "b", "c"].map(wrapped).join("\\n");
    let due = [("q", "user"), (joined.as_str(), "user"), ("r", "user"), (&wrapped("d"), "user")]
        .map(|(content, role)| format!(r#"{{"role":"{role}","content":"{content}"}}"#))
        .join(",");
    assert_eq!(messages(&text, vec![user("q"), result("a"), result("b"), result("c"), user("r"), result("d")]), format!("[{due}]"));
}

#[test]
fn calls_are_written_in_the_family_s_syntax_if_the_template_does_not_know_them() {
    let text = messages(&dialect(ToolPlacement::Words, CallForm::Text), vec![calling("t", "{\"a\": 1}")]);
    let call = r#"t\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>"#;
    assert_eq!(text, format!(r#"[{{"role":"assistant","content":"{call}","name":"Ada","reasoning_content":"hm"}}]"#));
}

fn with_tools(declarations: Vec<Declaration>) -> Conversation {
    let tools = declarations
        .into_iter()
        .map(|declaration| Tool { name: "f".into(), parameters: None, strict: false, declaration, input: None })
        .collect();
    let tools = Tools { tools, choice: ToolChoice::Auto, parallel: true };
    Conversation { messages: vec![user("q")], tools: Some(tools), ..Conversation::default() }
}

fn fields(json: Value) -> Map<String, Value> {
    json.as_object().unwrap().clone()
}

#[test]
fn declarations_keep_the_client_s_keys_and_get_the_ones_that_templates_read() {
    let whole = json!({"function": {"strict": true, "name": "f", "description": null}, "extra": "<|end|>"});
    let function = json!({"parameters": {"type": "object"}, "name": "f", "description": "d"});
    let conversation = with_tools(vec![Declaration::Whole(fields(whole)), Declaration::Function(fields(function))]);
    let due = [
        r#"[{"function":{"strict":true,"name":"f","description":"","parameters":{"type":"object","properties":{}}},"#,
        r#""extra":"<!|end|>","type":"function"},"#,
        r#"{"function":{"parameters":{"type":"object"},"name":"f","description":"d"},"type":"function"}]"#,
    ]
    .concat();
    let (messages, tools) = shown(&dialect(ToolPlacement::Variable, CallForm::Objects), &conversation);
    assert_eq!((messages.as_str(), tools), (r#"[{"role":"user","content":"q"}]"#, Some(due.clone())));
    let (messages, tools) = shown(&dialect(ToolPlacement::SystemKey, CallForm::Objects), &conversation);
    let system = json!({"role": "system", "content": "", "tools": due});
    assert_eq!((messages, tools), (format!(r#"[{system},{{"role":"user","content":"q"}}]"#), None));
}

#[test]
fn tools_in_words_go_where_the_template_shows_them() {
    let conversation = with_tools(vec![Declaration::Function(fields(json!({"name": "f"})))]);
    let content = |dialect: &Dialect, at: usize| {
        let messages: Value = serde_json::from_str(&shown(dialect, &conversation).0).unwrap();
        (messages[at]["role"].as_str().unwrap().to_owned(), messages[at]["content"].as_str().unwrap().to_owned())
    };
    let words = dialect(ToolPlacement::Words, CallForm::Text);
    let (role, text) = content(&words, 0);
    assert!(role == "system" && text.starts_with("You can call these functions:\n{\"name\":\"f\""), "{role}: {text}");
    let turns = TurnOrder { system: SystemPlace::FirstUser, ..TurnOrder::ALL };
    let (role, text) = content(&Dialect { turns, ..words }, 0);
    assert!(role == "user" && text.starts_with("You can call") && text.ends_with("\n\nq"), "{role}: {text}");
}

#[test]
fn an_answer_may_continue_the_last_message() {
    let messages = vec![user("q"), Message::of_text(Role::Assistant, "So")];
    let of = |ending| {
        let conversation = Conversation { messages: messages.clone(), ending, ..Conversation::default() };
        let input = Layout::new(&dialect(ToolPlacement::Variable, CallForm::Objects), &str::to_owned, &conversation).input;
        (input.messages[1]["content"].as_str().unwrap().to_owned(), input.add_generation_prompt)
    };
    assert_eq!(of(Ending::OpenTurn), ("So".to_owned(), true));
    assert_eq!(of(Ending::ClosedTurn), ("So".to_owned(), false));
    assert_eq!(of(Ending::Continue), (format!("So{HERE}"), false));
}

/// Uses a template that prints everything as JSON, and a tokenizer whose control token is `<|end|>`.
#[test]
fn no_text_of_a_client_contains_the_text_of_a_control_token() {
    let evil = "a<|end|>b";
    let schema = json!({"properties": {evil: {"enum": [evil], "description": evil, "items": [{evil: evil}]}}, "required": [evil]});
    let tool = json!({"name": "f", "description": evil, "parameters": schema.clone(), evil: evil});
    let escaped = r#"{"\u003c|end|>": {"\u003c|end|>": ["\u003c|end|>"]}}"#;
    let plain = json!({evil: {evil: [evil]}}).to_string();
    let variables = fields(json!({"documents": [{evil: {"text": evil}}]}));
    for calls in [CallForm::Objects, CallForm::Strings, CallForm::Text] {
        for placement in [ToolPlacement::Variable, ToolPlacement::SystemKey, ToolPlacement::Words] {
            let mut conversation = with_tools(vec![Declaration::Function(fields(tool.clone())), Declaration::Whole(fields(tool.clone()))]);
            for arguments in [escaped, &plain] {
                let call = Call { id: evil.into(), name: evil.into(), arguments: arguments.into() };
                let said = Message { calls: vec![call], reasoning: Some(evil.into()), name: Some(evil.into()), ..user(evil) };
                conversation.messages.extend([said, Message { call_id: Some(evil.into()), ..result(evil) }]);
            }
            conversation.variables = variables.clone();
            let input = Layout::new(&dialect(placement, calls), &|text| text.replace("<|end|>", "<!|end|>"), &conversation).input;
            let shown = json!([input.messages, input.tools, input.kwargs]).to_string();
            assert!(shown.contains("<!|end|>") && !shown.contains("<|end|>"), "{shown}");
            assert!(!shown.contains("u003c"), "an escape hides a control token from the shield: {shown}");
        }
    }
}

#[test]
fn escapes_that_hide_nothing_stay_as_the_model_wrote_them() {
    let strings = dialect(ToolPlacement::Variable, CallForm::Strings);
    let text = messages(&strings, vec![calling("", r#"{"a":  "\u00e9\n"}"#)]);
    assert!(text.contains(r#"{\"a\":  \"\\u00e9\\n\"}"#), "{text}");
}

#[test]
fn whole_numbers_in_the_arguments_of_calls_keep_all_of_their_digits() {
    for number in ["9007199254740993", "-9223372036854775808", "18446744073709551615", "1000000000000000000000000000001"] {
        let arguments = format!("{{\"a\": [{number}], \"b\": \"\\u003c|end|>\"}}");
        let template = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}";
        let template = ChatTemplate::new(template, "", "").unwrap();
        let conversation = Conversation { messages: vec![user("q"), calling("", &arguments), result("r")], ..Conversation::default() };
        let printed = |calls: CallForm| {
            let shield = |text: &str| text.replace("<|end|>", "<!|end|>");
            template.render(&Layout::new(&dialect(ToolPlacement::Variable, calls), &shield, &conversation).input).unwrap()
        };
        assert_eq!(printed(CallForm::Objects), format!("{{\"a\": [{number}], \"b\": \"<!|end|>\"}}"));
        assert_eq!(printed(CallForm::Strings), format!("\"{{\\\"a\\\":[{number}],\\\"b\\\":\\\"<!|end|>\\\"}}\""));
        let shown = messages(&dialect(ToolPlacement::Words, CallForm::Text), vec![calling("", &arguments)]);
        assert!(shown.contains(number), "{shown}");
    }
}

//! Tests of whole requests.

use serde_json::{Value, json};

use super::request::{Messages, parse, parse_count};
use super::schemas::MESSAGES;
use super::thinking::Shown;
use chat::{Call, Conversation, Ending, Message, Role, ToolChoice};
use config::{Config, ConfigSources, Limits, Overrides};
use serving::Budget;

fn limits() -> Limits {
    let env = vec![("HOME".to_owned(), "/home/u".to_owned())];
    Config::load_from(&ConfigSources { env, ..Default::default() }, &Overrides::default()).unwrap().limits
}

/// A request with additional fields.
fn with(fields: Value) -> Value {
    let mut body = json!({"model": "m", "max_tokens": 2000, "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn read(fields: Value) -> Messages {
    parse(&with(fields), &limits(), false).unwrap()
}

/// Returns the field that the error names.
fn param(fields: Value) -> String {
    let mut body = with(fields.clone());
    let read = MESSAGES.admit(&mut body, limits().unknown_fields).and_then(|_| parse(&body, &limits(), false));
    read.err().and_then(|error| error.param).unwrap_or_else(|| panic!("accepted: {fields}"))
}

fn conversation(messages: Value) -> Conversation {
    read(json!({"messages": messages})).prompt.conversation
}

fn texts(messages: &[Message]) -> Vec<(Role, String)> {
    messages.iter().map(|message| (message.role, message.text())).collect()
}

fn due(texts: &[(Role, &str)]) -> Vec<(Role, String)> {
    texts.iter().map(|(role, text)| (*role, (*text).to_owned())).collect()
}

#[test]
fn the_billing_header_is_dropped_and_system_messages_stay_in_their_places() {
    let header = "x-anthropic-billing-header: cc_version=2.1; cch=12345;";
    let fields = json!({
        "system": [{"type": "text", "text": header}, {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "Now loudly."}, {"role": "ctx", "content": "b"},
            {"role": "msg", "content": [{"type": "text", "text": "c"}]}, {"role": "assistant", "content": "d"},
            {"role": "user", "content": "e"}]});
    let found = read(fields).prompt.conversation;
    let wanted = [
        (Role::System, "Be brief."),
        (Role::User, "a"),
        (Role::System, "Now loudly."),
        (Role::User, "b\nc"),
        (Role::Assistant, "d"),
        (Role::User, "e"),
    ];
    assert_eq!((texts(&found.messages), found.ending), (due(&wanted), Ending::OpenTurn));
    let one = read(json!({"system": format!("{header}\nBe brief.")})).prompt.conversation;
    assert_eq!(texts(&one.messages)[0], (Role::System, "Be brief.".to_owned()));
}

#[test]
fn no_system_message_stands_between_a_call_and_its_result() {
    let found = conversation(json!([
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "t"},
            {"type": "tool_use", "id": "1", "name": "f", "input": {"b": 1, "a": 2}}]},
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "and"},
            {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "r"}], "is_error": true}]}]));
    let call = Call { id: "1".into(), name: "f".into(), arguments: r#"{"b":1,"a":2}"#.into() };
    let answer = Message { reasoning: Some("hm".into()), calls: vec![call], ..Message::of_text(Role::Assistant, "t") };
    assert_eq!(found.messages[1], answer);
    assert_eq!(found.messages[2].call_id.as_deref(), Some("1"));
    let wanted = [(Role::Tool, "The tool failed:\nr"), (Role::System, "s"), (Role::User, "and")];
    assert_eq!(texts(&found.messages[2..]), due(&wanted));
}

#[test]
fn a_last_message_of_the_assistant_is_continued() {
    let found = conversation(json!([{"role": "user", "content": "u"}, {"role": "assistant", "content": "It is"}]));
    assert_eq!((found.ending, found.messages.len()), (Ending::Continue, 2));
}

#[test]
fn a_last_message_of_the_assistant_without_text_is_dropped() {
    for content in [json!(""), json!([]), json!([{"type": "thinking", "thinking": "hm", "signature": "s"}])] {
        let found = conversation(json!([{"role": "user", "content": "u"}, {"role": "assistant", "content": content}]));
        assert_eq!((found.ending, texts(&found.messages)), (Ending::OpenTurn, due(&[(Role::User, "u")])));
    }
}

#[test]
fn only_the_system_prompt_loses_the_billing_header() {
    let header = "x-anthropic-billing-header: cch=1;\nkept";
    let call = json!({"type": "tool_use", "id": "1", "name": "f", "input": {}});
    let result = json!({"type": "tool_result", "tool_use_id": "1", "content": header});
    let found = conversation(json!([{"role": "user", "content": header}, {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result, {"type": "text", "text": header}]}]));
    for (i, role) in [(0, Role::User), (2, Role::Tool), (3, Role::User)] {
        assert_eq!((found.messages[i].role, found.messages[i].text().as_str()), (role, header));
    }
}

#[test]
fn an_image_in_a_tool_s_result_becomes_a_text() {
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}});
    let pdf = json!({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="}});
    let call = json!({"type": "tool_use", "id": "1", "name": "f", "input": {}});
    let result = json!({"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "Here:"}, image, pdf]});
    let found = conversation(json!([{"role": "user", "content": "u"}, {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]}]));
    let due = "Here:\n[an image was left out: this model takes none]\n[a document was left out: this model takes only documents of text]";
    assert_eq!(found.messages[2].clone().without_pictures().unwrap().text(), due);
}

#[test]
fn sessions_of_one_user_share_the_prefix_cache() {
    let salt = |user: &str| read(json!({"metadata": {"user_id": user}})).options.cache_salt;
    assert_eq!(salt("user_1_account_2_session_3"), salt("user_1_account_2_session_4"));
    assert_eq!(salt(r#"{"device_id":"1","session_id":"3"}"#), salt(r#"{"session_id":"4","device_id":"1"}"#));
    assert_ne!(salt("user_1_account_2_session_3"), salt("user_2_account_2_session_3"));
    assert_ne!(salt(r#"{"device_id":"1","session_id":"3"}"#), salt(r#"{"device_id":"2","session_id":"3"}"#));
}

#[test]
fn a_choice_of_tools_is_read() {
    let tool = |name: &str| json!({"name": name, "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral", "ttl": "1h"}});
    let of = |choice: Value| read(json!({"tools": [tool("f"), tool("g")], "tool_choice": choice})).prompt.conversation.tools;
    let choice = |value| of(value).map(|tools| (tools.choice, tools.parallel));
    assert_eq!(choice(json!(null)), Some((ToolChoice::Auto, true)));
    assert_eq!(choice(json!({"type": "auto", "disable_parallel_tool_use": true})), Some((ToolChoice::Auto, false)));
    assert_eq!(choice(json!({"type": "any"})), Some((ToolChoice::Required, true)));
    assert_eq!(choice(json!({"type": "tool", "name": "g"})), Some((ToolChoice::Named("g".into()), true)));
    assert_eq!(choice(json!({"type": "none"})), None);
}

#[test]
fn thinking_and_effort_are_read() {
    let of = |fields: Value| {
        let prompt = read(fields).prompt;
        (prompt.thinking.map(|thinking| (thinking.shown, thinking.budget)), Value::Object(prompt.conversation.variables))
    };
    let switched = |is_on: bool, mode: &str| json!({"enable_thinking": is_on, "thinking": is_on, "thinking_mode": mode});
    let on = switched(true, "enabled");
    assert_eq!(of(json!({})), (None, json!({})));
    let enabled = json!({"thinking": {"type": "enabled", "budget_tokens": 1024}});
    assert_eq!(of(enabled), (Some((Shown::Whole, Some(1024))), on.clone()));
    assert_eq!(of(json!({"thinking": {"type": "adaptive", "display": "omitted"}})), (Some((Shown::Signed, None)), on));
    assert_eq!(of(json!({"thinking": {"type": "disabled"}})), (Some((Shown::No, None)), switched(false, "disabled")));
    assert_eq!(of(json!({"thinking": {"type": "between_tools"}})), of(json!({"thinking": {"type": "adaptive", "display": "updates"}})));
    let low = read(json!({"output_config": {"effort": "low", "task_budget": {"type": "tokens", "total": 9}}})).prompt.conversation;
    assert_eq!((low.effort.as_deref(), low.or_efforts.unwrap()[0].as_str()), (Some("low"), "medium"));
    let large = with(json!({"thinking": {"type": "enabled", "budget_tokens": 5000}}));
    assert_eq!(parse(&large, &limits(), true).unwrap().prompt.thinking.unwrap().budget, Some(1999));
}

#[test]
fn reasoning_comes_back_and_can_be_cleared() {
    let carried = json!({"type": "thinking", "thinking": "", "signature": "reasoning:aG0="});
    let turn = |thought: Value| json!({"role": "assistant", "content": [thought, {"type": "text", "text": "t"}]});
    let user = json!({"role": "user", "content": "u"});
    let whole = json!({"type": "thinking", "thinking": "so", "signature": "x"});
    let messages = json!([user, turn(whole), user, turn(carried), user]);
    let of = |management: Value| {
        let found = read(json!({"messages": messages, "context_management": management})).prompt.conversation.messages;
        [1, 3].map(|i: usize| found[i].reasoning.clone().unwrap_or_default())
    };
    assert_eq!(of(json!(null)), ["so", "hm"]);
    let edit = |keep: Value| json!({"edits": [{"type": "clear_thinking_20251015", "keep": keep}]});
    assert_eq!(of(edit(json!("all"))), ["so", "hm"]);
    assert_eq!(of(edit(json!({"type": "thinking_turns", "value": 1}))), ["", "hm"]);
}

#[test]
fn the_options_are_read() {
    let request = read(json!({"temperature": 0, "top_p": 0, "top_k": 5, "stop_sequences": ["a", "b"], "stream": true,
        "metadata": {"user_id": "u"}, "service_tier": "auto", "inference_geo": "eu", "mcp_servers": [], "container": null}));
    assert_eq!((request.max_tokens, request.options.budget, request.stream), (2000, Budget::Explicit(2000), true));
    let sampling = &request.options.sampling;
    assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p > 0.0 && sampling.top_p < 1e-9), (0.0, 5, true));
    assert_eq!(request.options.stop, ["a", "b"]);
    assert_ne!(request.options.cache_salt, read(json!({"metadata": {"user_id": "v"}})).options.cache_salt);
    assert_eq!(read(json!({})).options.cache_salt, 0);
    let count = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    assert!(parse_count(&count, &limits(), false).is_ok() && parse(&count, &limits(), false).is_err());
}

#[test]
fn an_error_names_the_message_and_the_block() {
    let content = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let assistant = |block: Value| json!({"messages": [{"role": "assistant", "content": [block]}, {"role": "user", "content": "u"}]});
    let f = json!({"name": "f", "input_schema": {}});
    let cases = [
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": "5"}), "max_tokens"),
        (json!({"model": 3}), "model"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": "hi"}), "messages"),
        (json!({"messages": ["hi"]}), "messages[0]"),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": "x", "contnet": "y"}]}), "messages[0].contnet"),
        (content(json!("")), "messages[0].content"),
        (content(json!([])), "messages[0].content"),
        (content(json!([{"type": "text"}])), "messages[0].content[0].text"),
        (content(json!([{"text": "x"}])), "messages[0].content[0].type"),
        (assistant(json!({"type": "image", "source": {"type": "url", "url": "x"}})), "messages[0].content[0].type"),
        (content(json!([{"type": "document", "source": {"type": "base64"}}])), "messages[0].content[0].source.type"),
        (content(json!([{"type": "tool_use", "id": "1", "name": "f", "input": {}}])), "messages[0].content[0].type"),
        (content(json!([{"type": "tool_result", "tool_use_id": "1"}])), "messages[0].content[0].tool_use_id"),
        (content(json!([{"type": "text", "text": "x", "cache_control": {"type": "x"}}])), "messages[0].content[0].cache_control.type"),
        (assistant(json!({"type": "tool_use", "id": "1", "name": "f", "input": "{}"})), "messages[0].content[0].input"),
        (assistant(json!({"type": "tool_use", "id": "1", "name": "f g", "input": {}})), "messages[0].content[0].name"),
        (assistant(json!({"type": "server_tool_use", "id": "1"})), "messages[0].content[0].type"),
        (assistant(json!({"type": "redacted_thinking"})), "messages[0].content[0].data"),
    ];
    for (fields, field) in cases {
        assert_eq!(param(fields.clone()), field, "{fields}");
    }
    let call = json!({"type": "tool_use", "id": "1", "name": "f", "input": {}});
    assert_eq!(param(json!({"messages": [{"role": "assistant", "content": [call]}]})), "messages[0].content");
    assert_eq!(
        param(json!({"messages": [{"role": "assistant", "content": [call, call]}, {"role": "user", "content": "u"}]})),
        "messages[0].content"
    );
    let reference = json!([{"type": "tool_reference", "tool_name": "g"}]);
    let result = json!({"type": "tool_result", "tool_use_id": "1", "content": reference});
    let messages = json!([{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]);
    assert_eq!(param(json!({"messages": messages, "tools": [f]})), "messages[1].content[0].content[0].tool_name");
}

#[test]
fn an_error_names_the_field() {
    let tool = |tool: Value| json!({"tools": [tool]});
    let f = json!({"name": "f", "input_schema": {}});
    let cases = [
        (json!({"system": 3}), "system"),
        (json!({"system": [{"type": "image"}]}), "system[0].type"),
        (tool(json!({"type": "web_search_20250305", "name": "web_search"})), "tools[0].type"),
        (tool(json!({"name": "f"})), "tools[0].input_schema"),
        (tool(json!({"name": "f", "input_schema": [], "x": 1})), "tools[0].input_schema"),
        (tool(json!({"name": "f", "input_shema": {"type": "object"}})), "tools[0].input_shema"),
        (json!({"tools": [f, f]}), "tools"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
        (json!({"tools": [f], "tool_choice": {"type": "required"}}), "tool_choice.type"),
        (json!({"tools": [f], "tool_choice": {"type": "tool", "name": "g"}}), "tool_choice.name"),
        (json!({"tools": [f], "tool_choice": "auto"}), "tool_choice"),
        (json!({"thinking": {"type": "enabled"}}), "thinking.budget_tokens"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 100}}), "thinking.budget_tokens"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 2000}}), "thinking.budget_tokens"),
        (json!({"thinking": {"type": "on"}}), "thinking.type"),
        (json!({"output_config": {"effort": "huge"}}), "output_config.effort"),
        (json!({"output_config": {"efort": "low"}}), "output_config.efort"),
        (json!({"output_config": {"format": {"type": "json_object"}}}), "output_config.format.type"),
        (json!({"output_config": {"format": {"type": "json_schema"}}}), "output_config.format.schema"),
        (json!({"temperature": 1.5}), "temperature"),
        (json!({"top_p": 2}), "top_p"),
        (json!({"top_k": -2}), "top_k"),
        (json!({"stop_sequences": "x"}), "stop_sequences"),
        (json!({"stop_sequences": [""]}), "stop_sequences"),
        (json!({"metadata": {"userid": "x"}}), "metadata.userid"),
        (json!({"service_tier": "flex"}), "service_tier"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"tempreature": 1}), "tempreature"),
        (json!({"mcp_servers": [{}]}), "mcp_servers"),
        (json!({"context_management": {"edits": [{"type": "clear_all"}]}}), "context_management.edits[0].type"),
        (json!({"compaction": {"type": "summarize"}}), "compaction"),
    ];
    for (fields, field) in cases {
        assert_eq!(param(fields.clone()), field, "{fields}");
    }
}

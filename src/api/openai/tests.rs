//! Tests of whole requests: which ones the conversion refuses, with the name of the field, and what it reads from the others.

use actix_web::http::StatusCode;
use serde_json::{Value, json};

use super::convert::{chat, completions, schemas};
use ::chat::{Ending, Role};
use config::Limits;
use http::error::ApiError;
use http::omitted_content;
use serving::{Budget, Prompt};

pub fn limits() -> Limits {
    Limits {
        max_queue: 512,
        max_queue_tokens: 0,
        max_queue_seconds: 0,
        request_timeout_seconds: 0,
        max_body_bytes: 1 << 20,
        max_bodies_bytes: 16 << 20,
        max_stop_sequences: 4,
        max_prompts: 4,
        strict_max_tokens: false,
        unknown_fields: config::UnknownFields::Refuse,
        request_templates: true,
        max_stored_responses: 8,
        head_timeout_seconds: 5,
        body_timeout_seconds: 30,
    }
}

/// A chat request with one additional field.
fn with(field: &str, value: Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    body[field] = value;
    body
}

fn chat_param(body: &Value) -> Option<String> {
    let mut body = body.clone();
    let read = schemas::CHATS.admit(&mut body, limits().unknown_fields).and_then(|_| chat::parse(&body, &limits()).map(drop));
    read.err().map(|error| {
        assert_eq!(error.kind.status(), StatusCode::BAD_REQUEST);
        error.param.expect("the error names the field")
    })
}

fn completion_error(body: Value) -> Option<ApiError> {
    completions::parse(&body, &limits()).err()
}

#[test]
fn errors_of_wrong_values_name_the_field() {
    let nested = |path: &str, messages: Value| (path.to_owned(), with("messages", messages));
    let mut cases: Vec<(String, Value)> = [
        ("temperature", json!(-1)),
        ("temperature", json!("0.5")),
        ("temperature", json!(2.01)),
        ("top_p", json!(-0.1)),
        ("top_p", json!(2)),
        ("top_k", json!(0.01)),
        ("top_k", json!(-2)),
        ("min_p", json!(1.5)),
        ("presence_penalty", json!(10)),
        ("frequency_penalty", json!(-10)),
        ("repetition_penalty", json!(0)),
        ("seed", json!(1.5)),
        ("stop", json!(["a", "b", "c", "d", "e"])),
        ("stop", json!(["a", 1])),
        ("stop", json!("x".repeat(1 << 20))),
        ("logit_bias", json!({"-1": 1})),
        ("logit_bias", json!({"01": 1})),
        ("logit_bias", json!({"1": 101})),
        ("logit_bias", json!([5])),
        ("max_tokens", json!(-2)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(9223372036854775808u64)),
        ("max_completion_tokens", json!(0)),
        ("min_tokens", json!(-1)),
        ("stop_token_ids", json!([-1])),
        ("stream", json!("yes")),
        ("stream_options", json!({"include_usage": true})),
        ("messages", json!([])),
        ("messages", json!(null)),
        ("model", json!(7)),
    ]
    .into_iter()
    .map(|(field, value)| (field.to_owned(), with(field, value)))
    .collect();
    cases.push(("chat_template_kwargs.messages".to_owned(), with("chat_template_kwargs", json!({"a": 1, "messages": []}))));
    cases.push(nested("messages[0]", json!(["hi"])));
    cases.push(nested("messages[0].role", json!([{"role": "usr", "content": "hi"}])));
    cases.push(nested("messages[0].content", json!([{"role": "user"}])));
    cases.push(nested(
        "messages[0].content[1].type",
        json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "video_url"}]}]),
    ));
    cases.push(nested(
        "messages[1].tool_calls[0].function",
        json!([{"role": "user", "content": ""}, {"role": "assistant", "tool_calls": [{}]}]),
    ));
    cases.push(nested("messages[0].content", json!([{"role": "user", "content": vec![json!({"type": "text", "text": "a"}); 100_000]}])));
    for (param, body) in cases {
        let text = body.to_string();
        assert_eq!(chat_param(&body).as_deref(), Some(param.as_str()), "{}", &text[..text.len().min(300)]);
    }
}

#[test]
fn a_null_field_counts_as_absent() {
    let mut body = with("temperature", Value::Null);
    for field in [
        "top_p",
        "seed",
        "stop",
        "logprobs",
        "n",
        "max_tokens",
        "tools",
        "response_format",
        "stream",
        "stream_options",
        "logit_bias",
        "user",
    ] {
        body[field] = Value::Null;
    }
    let request = chat::parse(&body, &limits()).unwrap();
    assert_eq!((request.options.sampling.temperature, request.options.budget), (1.0, Budget::Rest));
    assert_eq!(request.stream, None);
}

#[test]
fn the_fields_of_a_chat_request_are_read() {
    let body = json!({"model": "m", "max_tokens": 5, "max_completion_tokens": 7, "temperature": 1e-4, "top_k": -1, "seed": 7, "stop": "x",
        "logit_bias": {"3": -100}, "stream": true, "stream_options": {"include_usage": true},
        "messages": [{"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null}]});
    let request = chat::parse(&body, &limits()).unwrap();
    assert_eq!(request.options.budget, Budget::Explicit(7));
    assert_eq!((request.options.sampling.temperature, request.options.sampling.top_k, request.options.sampling.seed), (1e-4, 0, 7));
    assert_eq!(request.options.sampling.logit_bias, [(3, -100.0)]);
    assert!(request.stream.unwrap().include_usage);
    let Prompt::Chat(conversation) = request.prompt else { panic!("a chat request has messages") };
    let messages: Vec<_> = conversation.messages.iter().map(|message| (message.role, message.text())).collect();
    let due = [(Role::System, "be brief"), (Role::User, "a\nb"), (Role::Assistant, "")].map(|(role, text)| (role, text.to_owned()));
    assert_eq!((messages, conversation.ending), (due.into(), Ending::OpenTurn));
}

#[test]
fn errors_of_extensions_name_the_field() {
    for (param, value) in [
        ("tempreature", json!(1)),
        ("stream_options.include_usages", json!({"include_usages": true})),
        ("metadata", json!({"a": 1})),
        ("verbosity", json!("long")),
        ("allowed_token_ids", json!([-1])),
        ("bad_words", json!([" "])),
        ("chat_template", json!("x".repeat(70_000))),
        ("truncate_prompt_tokens", json!(0)),
        ("thinking_token_budget", json!(-2)),
    ] {
        let field = param.split('.').next().unwrap();
        assert_eq!(chat_param(&with(field, value)).as_deref(), Some(param));
    }
}

#[test]
fn functions_are_the_older_form_of_tools() {
    let body = json!({"model": "m", "functions": [{"name": "f", "parameters": {"type": "object"}}], "function_call": {"name": "f"},
        "messages": [{"role": "user", "content": "hi"},
            {"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "5"}]});
    let request = chat::parse(&body, &limits()).unwrap();
    let Prompt::Chat(conversation) = request.prompt else { panic!("a chat request has messages") };
    let tools = conversation.tools.unwrap();
    assert!(request.legacy && !tools.parallel && tools.choice == ::chat::ToolChoice::Named("f".into()));
    let [_, call, result] = &conversation.messages[..] else { panic!("{:?}", conversation.messages) };
    assert_eq!((result.role, result.call_id.as_ref()), (Role::Tool, Some(&call.calls[0].id)));
    for (field, value, param) in [
        ("function_call", json!({"name": "g"}), "function_call"),
        ("function_call", json!("any"), "function_call"),
        ("tools", json!([{"type": "function", "function": {"name": "f"}}]), "functions"),
        ("functions", json!([{"name": "f"}, {"name": "f"}]), "functions"),
    ] {
        let mut body = body.clone();
        body[field] = value;
        assert_eq!(chat_param(&body).as_deref(), Some(param), "{body}");
    }
}

#[test]
fn what_clients_send_by_default_is_accepted() {
    let mut body = with("top_p", json!(0));
    for (field, value) in [
        ("logprobs", json!(false)),
        ("top_logprobs", json!(0)),
        ("stream", json!(true)),
        ("stream_options", json!({"include_usage": true, "include_obfuscation": false, "continuous_usage_stats": true})),
        ("service_tier", json!("auto")),
        ("prediction", json!({"type": "content", "content": "x"})),
        ("verbosity", json!("medium")),
        ("prompt_cache_key", json!("k")),
        ("safety_identifier", json!("s")),
        ("metadata", json!({"a": "b"})),
    ] {
        body[field] = value;
    }
    body["messages"] = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": null, "refusal": "no", "audio": null,
        "annotations": [], "function_call": null, "tool_calls": []},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "never"}]}, {"role": "user", "content": "why?"}]);
    let Prompt::Chat(conversation) = chat::parse(&body, &limits()).unwrap().prompt else { panic!("a chat request has messages") };
    let texts: Vec<String> = conversation.messages.iter().map(::chat::Message::text).collect();
    assert_eq!(texts, ["hi", "no", "never", "why?"]);
}

/// Agents send pictures in tool results, and repeat the whole history with every request.
#[test]
fn a_picture_is_left_out_of_a_result_alone() {
    let picture = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}});
    let parts = json!([{"type": "text", "text": "a"}, picture, {"type": "file", "file": {"file_id": "f"}}]);
    for role in ["tool", "function"] {
        let messages = json!([{"role": role, "name": "f", "tool_call_id": "x", "content": parts}]);
        let Prompt::Chat(conversation) = chat::parse(&with("messages", messages), &limits()).unwrap().prompt else { panic!("a chat") };
        let shown = conversation.messages[0].clone().without_pictures().unwrap().text();
        assert_eq!(shown, ["a", omitted_content::IMAGE, omitted_content::FILE].join("\n"));
    }
    let audio = json!([{"role": "tool", "tool_call_id": "x", "content": [{"type": "input_audio", "input_audio": {}}]}]);
    let answer = json!([{"role": "assistant", "content": [picture]}]);
    for messages in [audio, answer] {
        assert_eq!(chat_param(&with("messages", messages)).as_deref(), Some("messages[0].content[0].type"));
    }
}

#[test]
fn some_of_the_tools_may_be_allowed() {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    let choice = |allowed: Value| {
        let mut body = with("tools", json!([tool("f"), tool("g"), tool("h")]));
        body["tool_choice"] = json!({"type": "allowed_tools", "allowed_tools": allowed});
        body
    };
    let body = choice(json!({"mode": "required", "tools": [tool("f"), {"type": "function", "name": "h"}]}));
    let Prompt::Chat(conversation) = chat::parse(&body, &limits()).unwrap().prompt else { panic!("a chat request has messages") };
    let tools = conversation.tools.unwrap();
    let callable: Vec<&str> = tools.callable().map(|tool| tool.name.as_str()).collect();
    assert!(tools.must_call() && tools.tools.len() == 3 && callable == ["f", "h"]);
    for (allowed, param) in [
        (json!({"mode": "any", "tools": [tool("f")]}), "tool_choice.allowed_tools.mode"),
        (json!({"mode": "auto", "tools": []}), "tool_choice.allowed_tools.tools"),
        (json!({"mode": "auto", "tools": [tool("x")]}), "tool_choice.allowed_tools.tools[0].function.name"),
    ] {
        assert_eq!(chat_param(&choice(allowed)).as_deref(), Some(param));
    }
}

#[test]
fn requests_without_a_seed_get_different_seeds() {
    let seed = || chat::parse(&with("n", json!(1)), &limits()).unwrap().options.sampling.seed;
    assert_ne!(seed(), seed());
}

#[test]
fn prompts_have_four_forms() {
    for (prompt, count) in [(json!("a"), 1), (json!(["a", "b"]), 2), (json!([1, 2, 3]), 1), (json!([[1], [2, 3]]), 2)] {
        let request = completions::parse(&json!({"model": "m", "prompt": prompt}), &limits()).unwrap();
        assert_eq!((request.prompts.len(), request.options.budget), (count, Budget::Default(16)));
    }
    for prompt in [
        json!(""),
        json!([]),
        json!([[]]),
        json!(["a", ""]),
        json!([-1]),
        json!([9223372036854775808u64]),
        json!([[1, "a"]]),
        json!({}),
        json!(vec!["a"; 5]),
    ] {
        let error = completion_error(json!({"model": "m", "prompt": prompt})).unwrap();
        assert_eq!(error.param.as_deref(), Some("prompt"), "{prompt}");
    }
    assert_eq!(completion_error(json!({"model": "m"})).unwrap().param.as_deref(), Some("prompt"));
    assert_eq!(completion_error(json!({"prompt": "a"})).unwrap().param.as_deref(), Some("model"));
}

#[test]
fn max_tokens_of_zero_needs_echo() {
    assert_eq!(completion_error(json!({"model": "m", "prompt": "a", "max_tokens": 0})).unwrap().param.as_deref(), Some("max_tokens"));
    assert!(completion_error(json!({"model": "m", "prompt": "a", "max_tokens": 0, "echo": true})).is_none());
    let error = completion_error(json!({"model": "m", "prompt": "a", "max_tokens": 2, "min_tokens": 3})).unwrap();
    assert_eq!(error.param.as_deref(), Some("min_tokens"));
}

use super::*;

fn draft(shown: Shown) -> MessageBuilder {
    MessageBuilder::new("msg_1".into(), "m".into(), shown, vec!["END".into()], 10)
}

fn text(text: &str) -> Piece {
    Piece::Text(text.to_owned().into())
}

fn end(reason: EndReason, stop: Option<StopCause>) -> End {
    End { reason, stop }
}

/// Returns the events of an answer as JSON, and its message.
fn taken(mut draft: MessageBuilder, pieces: Vec<Piece>, end: End) -> (Vec<Value>, Value) {
    let counts = Counts { prompt: 9, cached: 4, generated: 10, reasoning: 0, ..Counts::default() };
    let mut answer = Answer { reason: end.reason, stop: end.stop, ..Answer::default() };
    pieces.iter().cloned().for_each(|piece| answer.add_piece(piece));
    let message = serde_json::to_value(draft.message(answer, counts)).unwrap();
    let mut events: Vec<MessagesEvent> = pieces.into_iter().flat_map(|piece| draft.piece(piece)).collect();
    events.extend(draft.end(end, counts));
    (events.iter().map(|event| serde_json::to_value(event).unwrap()).collect(), message)
}

#[test]
fn the_events_of_an_answer_come_in_order() {
    let call = |name: &str| Piece::CallStart { call: 0, name: name.into() };
    let arguments = |text: &str| Piece::Arguments { call: 0, text: text.into() };
    let reasoning = |text: &str| Piece::Reasoning(text.into());
    let pieces = vec![reasoning("h"), reasoning("m"), text("a"), text(""), text("b"), call("f"), arguments("{\"x\""), arguments(": 1}")];
    let (mut events, mut message) = taken(draft(Shown::Whole), pieces, end(EndReason::Calls, None));
    let signature = events[3]["delta"]["signature"].take();
    assert_eq!(signature.as_str().unwrap().len(), 44, "a digest");
    for id in [events[9]["content_block"]["id"].take(), message["content"][2]["id"].take()] {
        assert!(id.as_str().unwrap().starts_with("toolu_"));
    }
    let delta = |index: u32, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let start = |index: u32, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let stop = |index: u32| json!({"type": "content_block_stop", "index": index});
    let usage = json!({"input_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4, "output_tokens": 10,
        "output_tokens_details": {"thinking_tokens": 0}});
    let due = [
        start(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
        delta(0, json!({"type": "thinking_delta", "thinking": "h"})),
        delta(0, json!({"type": "thinking_delta", "thinking": "m"})),
        delta(0, json!({"type": "signature_delta", "signature": null})),
        stop(0),
        start(1, json!({"type": "text", "text": ""})),
        delta(1, json!({"type": "text_delta", "text": "a"})),
        delta(1, json!({"type": "text_delta", "text": "b"})),
        stop(1),
        start(2, json!({"type": "tool_use", "id": null, "name": "f", "input": {}})),
        delta(2, json!({"type": "input_json_delta", "partial_json": "{\"x\""})),
        delta(2, json!({"type": "input_json_delta", "partial_json": ": 1}"})),
        stop(2),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": null}, "usage": usage}),
        json!({"type": "message_stop"}),
    ];
    assert_eq!(events, due);
    let content = json!([{"type": "thinking", "thinking": "hm", "signature": signature}, {"type": "text", "text": "ab"},
        {"type": "tool_use", "id": null, "name": "f", "input": {"x": 1}}]);
    assert_eq!((message["content"].take(), message["stop_reason"].take(), message["usage"].take()), (content, json!("tool_use"), usage));
}

#[test]
fn reasoning_is_shown_as_it_was_asked_for() {
    let pieces = || vec![Piece::Reasoning("hm".into()), text("a")];
    let of = |shown| taken(draft(shown), pieces(), end(EndReason::Stop, None)).1["content"].take();
    assert_eq!(of(Shown::No), json!([{"type": "text", "text": "a"}]));
    assert_eq!(of(Shown::Signed)[0], json!({"type": "thinking", "thinking": "", "signature": "reasoning:aG0="}));
    assert_eq!(of(Shown::Whole)[0]["thinking"], "hm");
}

#[test]
fn the_stop_reason_tells_how_the_answer_ended() {
    let of = |max_tokens, reason, stop| {
        let (_, message) = taken(MessageBuilder { max_tokens, ..draft(Shown::No) }, vec![text("a")], end(reason, stop));
        (message["stop_reason"].as_str().unwrap().to_owned(), message["stop_sequence"].as_str().map(str::to_owned))
    };
    let due = |reason: &str, text: Option<&str>| (reason.to_owned(), text.map(str::to_owned));
    assert_eq!(of(10, EndReason::Stop, None), due("end_turn", None));
    assert_eq!(of(10, EndReason::Stop, Some(StopCause::Text(0))), due("stop_sequence", Some("END")));
    assert_eq!(of(10, EndReason::Length, None), due("max_tokens", None));
    assert_eq!(of(11, EndReason::Length, None), due("model_context_window_exceeded", None));
    assert_eq!(of(10, EndReason::Calls, None), due("tool_use", None));
}

#[test]
fn a_call_that_was_cut_off_is_left_out_of_a_message() {
    let call = || Piece::CallStart { call: 0, name: "f".into() };
    let arguments = |text: &str| Piece::Arguments { call: 0, text: text.into() };
    let content = |pieces, reason| taken(draft(Shown::No), pieces, end(reason, None)).1["content"].as_array().unwrap().len();
    assert_eq!(content(vec![call(), arguments("{\"x\": 1")], EndReason::Length), 0);
    assert_eq!(content(vec![call()], EndReason::Calls), 1, "a call without arguments has an empty input");
}

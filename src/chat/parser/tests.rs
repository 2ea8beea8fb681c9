//! Parses every family's calls, cut at every position.

use proptest::prelude::*;

use super::*;
use crate::dialect::{Arguments, GENERIC, SYNTAXES, THINKING, filled};

/// Joins consecutive pieces of the same kind.
fn joined(pieces: impl IntoIterator<Item = Piece>) -> Vec<Piece> {
    let mut out: Vec<Piece> = Vec::new();
    for piece in pieces {
        match (out.last_mut(), piece) {
            (Some(Piece::Text(last)), Piece::Text(more)) => last.text.push_str(&more.text),
            (Some(Piece::Reasoning(last)), Piece::Reasoning(more)) => last.push_str(&more),
            (Some(Piece::Arguments { call, text }), Piece::Arguments { call: same, text: more }) if *call == same => text.push_str(&more),
            (_, piece) => out.push(piece),
        }
    }
    out
}

/// One token per character of a text.
fn tokens(text: &str, from: usize) -> Vec<TokenLogprob> {
    let token =
        |(i, c): (usize, char)| TokenLogprob { bytes: c.to_string().into(), offset: from + i, logprob: None, top: Vec::new(), id: 0 };
    text.chars().enumerate().map(token).collect()
}

/// Pushes the texts one after another. The tokens of each text piece must be the piece's own.
fn parse<'a>(parser: &Parser, texts: impl IntoIterator<Item = &'a str>, cut: bool) -> Vec<Piece> {
    let mut parser = parser.clone();
    let (mut pieces, mut written) = (Vec::new(), 0);
    for text in texts {
        pieces.extend(parser.push(Text { text: text.into(), tokens: tokens(text, written) }));
        written += text.chars().count();
    }
    pieces.extend(parser.finish(cut));
    for piece in &mut pieces {
        if let Piece::Text(Text { text, tokens }) = piece {
            let bytes: Vec<u8> = std::mem::take(tokens).into_iter().flat_map(|token| token.bytes).collect();
            assert_eq!(text.as_bytes(), bytes, "{text}");
        }
    }
    joined(pieces)
}

/// The pieces of a whole answer, which must be the same for every cut in two and for one character at a time.
fn everywhere(parser: &Parser, answer: &str) -> Vec<Piece> {
    let whole = parse(parser, [answer], false);
    for (at, _) in answer.char_indices() {
        assert_eq!(parse(parser, [&answer[..at], &answer[at..]], false), whole, "cut at {at}: {answer}");
    }
    let characters = answer.char_indices().map(|(at, c)| &answer[at..at + c.len_utf8()]);
    assert_eq!(parse(parser, characters, false), whole, "{answer}");
    whole
}

/// The functions of [`CALLS`]. Some families write values whose schema alone tells their types.
fn tools() -> Tools {
    let object = serde_json::json!({"type": "object", "properties": {"a": {"type": "object"}}});
    let list = serde_json::json!({"type": "array", "items": {"anyOf": [{"type": "integer"}, object]}});
    let schema = serde_json::json!({"properties": {"city": {"type": "string"}, "n": list}});
    let tool = Tool {
        name: CALLS[0].0.into(),
        parameters: Some(schema),
        strict: false,
        declaration: crate::tools::Declaration::Function(serde_json::Map::new()),
        input: None,
    };
    Tools { tools: vec![tool], choice: crate::tools::ToolChoice::Auto, parallel: true }
}

fn written(syntax: &Syntax, calls: &[(&str, &str)]) -> String {
    syntax.calls(calls.iter().copied())
}

fn expected(calls: &[(&str, &str)]) -> Vec<Piece> {
    calls.iter().enumerate().flat_map(|(i, (name, arguments))| call(i, name, arguments)).collect()
}

/// The pieces that a family's calls parse to. Arguments that were written one by one have no white space inside.
fn read(syntax: &Syntax, calls: &[(&str, &str)]) -> Vec<Piece> {
    let mut pieces = expected(calls);
    for piece in pieces.iter_mut().filter(|_| syntax.arguments != Arguments::Json) {
        if let Piece::Arguments { text, .. } = piece {
            let Value::Object(map) = serde_json::from_str(text).unwrap() else { panic!("{text}") };
            let members: Vec<String> = map.iter().map(|(key, value)| format!("{}: {value}", Value::from(key.as_str()))).collect();
            *text = format!("{{{}}}", members.join(", "));
        }
    }
    pieces
}

fn call(call: usize, name: &str, arguments: &str) -> [Piece; 2] {
    [Piece::CallStart { call, name: name.into() }, Piece::Arguments { call, text: arguments.into() }]
}

fn text(text: &str) -> Piece {
    Piece::Text(text.to_owned().into())
}

fn reasoning(text: &str) -> Piece {
    Piece::Reasoning(text.into())
}

const CALLS: [(&str, &str); 2] = [("get_weather", r#"{"city": "K}ö\"{ln", "n": [1, {"a": {}}]}"#), ("now-2.x", "{}")];

#[test]
fn the_calls_of_each_family_are_understood() {
    for syntax in SYNTAXES.iter().chain([GENERIC]) {
        let parser = Parser::new(Some(syntax), None, AnswerStart::Turn).with_tools(&tools());
        let calls = if syntax.repeats() { &CALLS[..] } else { &CALLS[..1] };
        for calls in [&calls[..1], calls] {
            assert_eq!(everywhere(&parser, &written(syntax, calls)), read(syntax, calls), "{}", syntax.name);
            let after_text = format!("I look it up.\n\n{}", written(syntax, calls));
            let due = match syntax.follows_text {
                true => [vec![text("I look it up.")], read(syntax, calls)].concat(),
                false => vec![text(&after_text)],
            };
            assert_eq!(everywhere(&parser, &after_text), due, "{}", syntax.name);
        }
        assert_eq!(everywhere(&parser, "No call.\n"), [text("No call.\n")], "{}", syntax.name);
    }
}

#[test]
fn a_tag_that_was_cut_is_never_text() {
    for syntax in SYNTAXES {
        let answer = written(syntax, &CALLS[..1]);
        let between = filled(syntax.between, 0, CALLS[0].0);
        let name = answer.find(CALLS[0].0).unwrap();
        let end_of_name = name + CALLS[0].0.len() + between.len();
        for (at, _) in answer.char_indices() {
            let pieces = parse(&Parser::new(Some(syntax), None, AnswerStart::Turn), [&answer[..at]], true);
            assert!(!pieces.iter().any(|piece| matches!(piece, Piece::Text(..))), "{}: {pieces:?}", syntax.name);
            // A name ends only when something else follows it.
            let end_of_name = end_of_name + usize::from(between.is_empty());
            assert_eq!(pieces.is_empty(), at < end_of_name, "{}: {pieces:?}", syntax.name);
        }
        let mut parser = Parser::new(Some(syntax), None, AnswerStart::Turn);
        assert_eq!(parser.push("Text ".to_owned().into()), if syntax.follows_text { vec![text("Text")] } else { vec![text("Text ")] });
    }
}

#[test]
fn what_only_looks_like_a_call_is_text() {
    let tagged = Parser::new(Some(GENERIC), None, AnswerStart::Turn);
    for answer in ["a <tool_call> b", "<tool_call>", "<tool_call>\n{\"name\": 3}", "x <", " \n\n a", "<tool_call>\n{\"name\": \"f\": 3}"] {
        assert_eq!(everywhere(&tagged, answer), [text(answer)]);
    }
    let reasoning_too = Parser::new(Some(GENERIC), Some(&THINKING[1]), AnswerStart::Turn);
    for answer in
        ["a \n\n<tool_call>\n{\"name\": \"f\": 3} b", "\n <tool_call>\n{\"name\": \"f\": 3} b", " \n<thin", "  {\"name\": \"f\", 3}"]
    {
        assert_eq!(everywhere(&tagged, answer), [text(answer)]);
        assert_eq!(everywhere(&reasoning_too, answer), [text(answer)]);
    }
}

#[test]
fn a_call_may_be_bare_json() {
    let parser = Parser::new(Some(GENERIC), None, AnswerStart::Turn).with_bare_calls(vec!["f".into()], Vec::new());
    let call = call(0, "f", "{\"a\": 1}");
    for answer in ["{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "```json\n{\n  \"name\": \"f\",\n  \"parameters\": {\"a\": 1}\n}\n```"] {
        assert_eq!(everywhere(&parser, answer), call, "{answer}");
    }
    for answer in
        ["{\"name\": \"g\", \"arguments\": {}}", "{\"name\": \"f\"}", "{\"a\": 1}", "```python\nx\n```", "{\"name\": \"f\", \"arg"]
    {
        assert_eq!(everywhere(&parser, answer), [text(answer)]);
    }
    assert_eq!(everywhere(&parser, &written(GENERIC, &CALLS[..1])), expected(&CALLS[..1]));
}

#[test]
fn a_family_whose_syntax_is_bare_json_keeps_its_further_calls() {
    let names = CALLS.map(|(name, _)| name.to_owned()).to_vec();
    for syntax in SYNTAXES.iter().filter(|syntax| syntax.repeats()) {
        let parser = Parser::new(Some(syntax), None, AnswerStart::Turn).with_bare_calls(names.clone(), Vec::new()).with_tools(&tools());
        assert_eq!(everywhere(&parser, &written(syntax, &CALLS)), read(syntax, &CALLS), "{}", syntax.name);
    }
    let llama = SYNTAXES.iter().find(|syntax| syntax.name == "llama3").unwrap();
    let mut parser = Parser::new(Some(llama), None, AnswerStart::Turn).with_bare_calls(names, Vec::new());
    assert_eq!(parser.push("{\"name\": \"now-2.x\", \"parameters\": {\"a".to_owned().into()), call(0, "now-2.x", "{\"a"));
}

#[test]
fn the_parser_knows_that_a_call_is_being_written() {
    for (text, calling) in
        [("<tool_call", false), ("So: <tool_call>", true), ("<tool_call>\n{\"na", true), ("{\"name\": \"f\"", true), ("{\"na", false)]
    {
        let mut parser = Parser::new(Some(GENERIC), None, AnswerStart::Turn).with_bare_calls(vec!["f".into()], Vec::new());
        parser.push(text.to_owned().into());
        assert_eq!(parser.is_calling(), calling, "{text}");
    }
}

#[test]
fn reasoning_is_separated_from_text() {
    for thinking in THINKING.iter().filter(|thinking| !thinking.open.is_empty()) {
        let Thinking { open, close, head, .. } = thinking;
        let answer = format!("{open}\nA <b> \n\nc.\n{close}\n\n{head}Hello.\n");
        let whole = [reasoning("A <b> \n\nc."), text("Hello.\n")];
        assert_eq!(everywhere(&Parser::new(None, Some(thinking), AnswerStart::Turn), &answer), whole);
        let opened = answer[open.len()..].to_owned();
        assert_eq!(everywhere(&Parser::new(None, Some(thinking), AnswerStart::opened(true)), &opened), whole);
        assert_eq!(everywhere(&Parser::new(None, Some(thinking), AnswerStart::Turn), "\nHello."), [text("\nHello.")]);
        assert_eq!(
            everywhere(&Parser::new(None, Some(thinking), AnswerStart::opened(true)), "Hm"),
            [reasoning("Hm")],
            "the reasoning has no end"
        );
        let call = written(GENERIC, &CALLS[..1]);
        let all = format!("{open}why{close}\n{head}So:\n{call}");
        let due = [vec![reasoning("why"), text("So:")], expected(&CALLS[..1])].concat();
        assert_eq!(everywhere(&Parser::new(Some(GENERIC), Some(thinking), AnswerStart::Turn), &all), due);
        let inside = format!("{open}why {call}{close}Well.");
        let due = [reasoning(&format!("why {call}")), text("Well.")];
        assert_eq!(
            everywhere(&Parser::new(Some(GENERIC), Some(thinking), AnswerStart::Turn), &inside),
            due,
            "a call inside reasoning is not a call"
        );
    }
}

/// Answers that begin with white space or hold nothing else.
const SPACED: [&str; 7] = [" \n    return a + b", " yes", "\n\n", "   ", "\t", "\r\n x \n", "\u{a0}\u{2003}é"];

#[test]
fn white_space_at_the_start_of_an_answer_stays_unless_reasoning_comes_before_it() {
    for thinking in THINKING {
        for entry in [AnswerStart::Turn, AnswerStart::Text] {
            for syntax in [None, Some(GENERIC)] {
                let plain = Parser::new(syntax, Some(thinking), entry);
                let bare = plain.clone().with_bare_calls(vec!["f".into()], Vec::new());
                for parser in [plain.clone(), bare, plain.with_format()] {
                    SPACED.iter().for_each(|answer| assert_eq!(everywhere(&parser, answer), [text(answer)], "{entry:?}"));
                }
            }
        }
    }
    let parser = Parser::new(Some(GENERIC), None, AnswerStart::Turn).with_bare_calls(vec!["f".into()], Vec::new());
    SPACED.iter().for_each(|answer| assert_eq!(everywhere(&parser, answer), [text(answer)]));
}

#[test]
fn only_what_separates_an_answer_from_its_reasoning_goes() {
    for thinking in THINKING.iter().filter(|thinking| !thinking.open.is_empty()) {
        let Thinking { open, close, head, tail, .. } = thinking;
        let of = |parser: Parser, answer: &str| {
            let mut pieces = everywhere(&parser, &format!("{open}why{close}{answer}"));
            assert_eq!(pieces.remove(0), reasoning("why"));
            pieces
        };
        let free = Parser::new(None, Some(thinking), AnswerStart::Turn);
        for (answer, due) in
            [("\n\nx", "x"), (" x", "x"), ("x", "x"), ("\n\n    x = 1\n", "    x = 1\n"), ("\r\n\tx", "\tx"), (" \n x", " x")]
        {
            assert_eq!(of(free.clone(), answer), [text(due)], "{answer:?}");
        }
        assert!(of(free.clone(), "\n\n  ").is_empty(), "white space alone only ends the reasoning");
        for (answer, due) in [("\n\n yes", " yes"), ("   ", "   "), ("\n   ", "   "), ("\n\n\n", "\n"), ("yes", "yes")] {
            assert_eq!(of(free.clone().with_format(), answer), [text(due)], "{answer:?}");
        }
        // The texts that a family writes around an answer show where the answer begins and ends.
        if !head.is_empty() || !tail.is_empty() {
            let answer = format!("\n{head} {}x \n{tail}", if head.is_empty() { "\n" } else { "" });
            let due = if head.is_empty() { "x \n" } else { " x \n" };
            assert_eq!(of(free.clone(), &answer), [text(due)]);
        }
    }
}

#[test]
fn a_model_may_reason_several_times_in_a_row() {
    for thinking in THINKING.iter().filter(|thinking| !thinking.open.is_empty()) {
        let Thinking { open, close, head, .. } = thinking;
        let parser = Parser::new(None, Some(thinking), AnswerStart::Turn);
        let answer = format!("{open}one{close}\n{open}{close}\n\n{open}\ntwo{close}\n{head}So.");
        assert_eq!(everywhere(&parser, &answer), [reasoning("one\n\ntwo"), text("So.")]);
        let answer = format!("{open}{close}{open}two{close}{head}So: {open}");
        assert_eq!(everywhere(&parser, &answer), [reasoning("two"), text(&format!("So: {open}"))], "a tag inside the text is text");
    }
}

#[test]
fn an_answer_may_begin_inside_reasoning_that_the_prompt_has_begun() {
    let parser = |begun| Parser::new(None, Some(&THINKING[1]), AnswerStart::Reasoning { begun });
    assert_eq!(everywhere(&parser(true), " and so.</think>\n\nx"), [reasoning(" and so."), text("x")]);
    assert_eq!(everywhere(&parser(false), " and so.</think>\n\nx"), [reasoning("and so."), text("x")]);
}

#[test]
fn a_token_without_text_at_the_end_of_an_answer_is_shown() {
    let token = |bytes: &str, offset| TokenLogprob { bytes: bytes.into(), offset, logprob: None, top: Vec::new(), id: 0 };
    for answer in ["", " x"] {
        let mut parser = Parser::new(None, Some(&THINKING[1]), AnswerStart::Turn);
        let mut pieces = parser.push(Text { text: answer.into(), tokens: tokens(answer, 0) });
        pieces.extend(parser.push(Text { text: String::new(), tokens: vec![token("<|pad|>", answer.len())] }));
        pieces.extend(parser.finish(false));
        let shown: Vec<TokenLogprob> =
            pieces.into_iter().flat_map(|piece| if let Piece::Text(text) = piece { text.tokens } else { panic!("{piece:?}") }).collect();
        assert_eq!(shown, [tokens(answer, 0), vec![token("<|pad|>", answer.len())]].concat());
    }
}

proptest! {
    #[test]
    fn the_cuts_do_not_matter(parts in prop::collection::vec(prop_oneof![
            Just("<tool_call>"), Just("\n{\"name\": \""), Just("f"), Just("\", \"arguments\": "), Just("{\"a\": \"}\"}"),
            Just("}\n</tool_call>"), Just("\n"), Just("<think>"), Just("</think>"), Just(" "), Just("é<"), Just("text")], 0..14),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6), thinks in any::<bool>(), opened in any::<bool>(),
            formatted in any::<bool>()) {
        let answer = parts.concat();
        let parser = Parser::new(Some(GENERIC), thinks.then_some(&THINKING[1]), AnswerStart::opened(opened));
        let parser = if formatted { parser.with_format() } else { parser };
        let mut places: Vec<usize> = cuts.iter().map(|cut| answer.floor_char_boundary(cut.index(answer.len() + 1))).collect();
        places.extend([0, answer.len()]);
        places.sort_unstable();
        let pieces = places.windows(2).map(|pair| &answer[pair[0]..pair[1]]);
        prop_assert_eq!(parse(&parser, pieces, false), parse(&parser, [answer.as_str()], false));
    }
}

#[test]
fn a_repeated_call_is_not_a_piece() {
    let answered = vec![("f".to_owned(), serde_json::json!({"a": 1}))];
    let parser = Parser::new(Some(GENERIC), None, AnswerStart::Turn).with_bare_calls(vec!["f".into()], answered);
    let push = |arguments: &str| {
        let mut parser = parser.clone();
        let pieces = parser.push(format!("{{\"name\": \"f\", \"arguments\": {arguments}}}").into());
        (pieces, parser.take_repeated())
    };
    assert_eq!(push("{\"a\": 2}"), (call(0, "f", "{\"a\": 2}").into(), None));
    assert_eq!(push("{ \"a\":1}"), (Vec::new(), Some(Repeated { name: "f".into(), arguments: "{ \"a\":1}".into() })));
}

#[test]
fn arguments_one_by_one_have_the_types_of_their_schema() {
    let schema = serde_json::json!({"properties": {"code": {"type": "string"}, "n": {"type": "integer"}, "on": {"type": "boolean"}}});
    let fields = serde_json::json!({"name": "run"}).as_object().unwrap().clone();
    let tool = Tool {
        name: "run".into(),
        parameters: Some(schema),
        strict: false,
        declaration: crate::tools::Declaration::Function(fields),
        input: None,
    };
    let tools = Tools { tools: vec![tool], choice: crate::tools::ToolChoice::Auto, parallel: true };
    let of = |name: &str| {
        let syntax = SYNTAXES.iter().find(|syntax| syntax.name == name).unwrap();
        Parser::new(Some(syntax), None, AnswerStart::Turn).with_tools(&tools)
    };
    let due = call(0, "run", r#"{"code": "7\n<b>", "n": 3, "on": true}"#);
    let lines = "<tool_call>\n<function=run>\n<parameter=code>\n7\n<b>\n</parameter>\n<parameter=n>\n3\n</parameter>\n\
        <parameter=on>True</parameter></function>\n</tool_call>";
    assert_eq!(everywhere(&of("function-tags"), lines), due);
    let keys = "<tool_call>run\n<arg_key>code</arg_key><arg_value>7\n<b></arg_value><arg_key>n</arg_key><arg_value>3</arg_value>\n\
        <arg_key>on</arg_key><arg_value>true</arg_value></tool_call>";
    assert_eq!(everywhere(&of("key-tags"), keys), due);
    // The model stopped without writing the end of its call.
    let open = "<tool_call>\n<function=run>\n<parameter=n>\n3\n</parameter>\n";
    assert_eq!(everywhere(&of("function-tags"), open), call(0, "run", r#"{"n": 3}"#));
}

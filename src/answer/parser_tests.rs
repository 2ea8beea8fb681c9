//! Every family's calls, cut at every place.

use proptest::prelude::*;

use super::parser::{Delta, Parser};
use super::syntax::{GENERIC, SYNTAXES, Syntax, THINKING, Thinking};

/// Deltas of the same kind in a row as one.
fn joined(deltas: impl IntoIterator<Item = Delta>) -> Vec<Delta> {
    let mut out: Vec<Delta> = Vec::new();
    for delta in deltas {
        match (out.last_mut(), delta) {
            (Some(Delta::Text(last)), Delta::Text(text)) | (Some(Delta::Reasoning(last)), Delta::Reasoning(text)) => last.push_str(&text),
            (Some(Delta::Arguments(i, last)), Delta::Arguments(j, text)) if *i == j => last.push_str(&text),
            (_, delta) => out.push(delta),
        }
    }
    out
}

fn parse<'a>(parser: &Parser, pieces: impl IntoIterator<Item = &'a str>, cut: bool) -> Vec<Delta> {
    let mut parser = parser.clone();
    let mut deltas: Vec<Delta> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    deltas.extend(parser.finish(cut));
    joined(deltas)
}

/// In one piece; every way to cut it in two, and one character at a time, must give the same.
fn everywhere(parser: &Parser, answer: &str) -> Vec<Delta> {
    let whole = parse(parser, [answer], false);
    for (at, _) in answer.char_indices() {
        assert_eq!(parse(parser, [&answer[..at], &answer[at..]], false), whole, "cut at {at}: {answer}");
    }
    let mut buffer = [0; 4];
    let mut one_by_one = parser.clone();
    let mut deltas: Vec<Delta> = answer.chars().flat_map(|c| one_by_one.push(c.encode_utf8(&mut buffer))).collect();
    deltas.extend(one_by_one.finish(false));
    assert_eq!(joined(deltas), whole, "{answer}");
    whole
}

fn written(syntax: &Syntax, calls: &[(&str, &str)]) -> String {
    let mut text = [syntax.trigger, syntax.open].concat();
    for (i, (name, arguments)) in calls.iter().enumerate() {
        text += if i > 0 { syntax.separator } else { "" };
        text += &[syntax.before, name, syntax.between, arguments, syntax.after].concat();
    }
    text + syntax.close
}

fn expected(calls: &[(&str, &str)]) -> Vec<Delta> {
    let deltas =
        |(i, (name, arguments)): (usize, &(&str, &str))| [Delta::Call(i, (*name).into()), Delta::Arguments(i, (*arguments).into())];
    calls.iter().enumerate().flat_map(deltas).collect()
}

fn text(text: &str) -> Delta {
    Delta::Text(text.into())
}

fn reasoning(text: &str) -> Delta {
    Delta::Reasoning(text.into())
}

const CALLS: [(&str, &str); 2] = [("get_weather", r#"{"city": "K}ö\"{ln", "n": [1, {"a": {}}]}"#), ("now-2.x", "{}")];

#[test]
fn each_family_is_understood() {
    for syntax in SYNTAXES.iter().chain([GENERIC]) {
        let parser = Parser::new(Some(syntax), None, false);
        let calls = if syntax.repeats() { &CALLS[..] } else { &CALLS[..1] };
        for calls in [&calls[..1], calls] {
            assert_eq!(everywhere(&parser, &written(syntax, calls)), expected(calls), "{}", syntax.name);
            let after_text = format!("I look it up.\n\n{}", written(syntax, calls));
            let due = match syntax.follows_text {
                true => [vec![text("I look it up.")], expected(calls)].concat(),
                false => vec![text(&after_text)],
            };
            assert_eq!(everywhere(&parser, &after_text), due, "{}", syntax.name);
        }
        assert_eq!(everywhere(&parser, "No call.\n"), [text("No call.\n")], "{}", syntax.name);
    }
}

#[test]
fn a_half_tag_never_leaks() {
    for syntax in SYNTAXES {
        let answer = written(syntax, &CALLS[..1]);
        let end_of_name = syntax.trigger.len() + syntax.open.len() + syntax.before.len() + CALLS[0].0.len() + syntax.between.len();
        for (at, _) in answer.char_indices() {
            let deltas = parse(&Parser::new(Some(syntax), None, false), [&answer[..at]], true);
            assert!(!deltas.iter().any(|delta| matches!(delta, Delta::Text(_))), "{}: {:?}", syntax.name, deltas);
            assert_eq!(deltas.is_empty(), at < end_of_name, "{}: {:?}", syntax.name, deltas);
        }
        let mut parser = Parser::new(Some(syntax), None, false);
        assert_eq!(parser.push("Text "), if syntax.follows_text { vec![text("Text")] } else { vec![text("Text ")] });
    }
}

#[test]
fn what_is_no_call_is_text() {
    let tagged = Parser::new(Some(GENERIC), None, false);
    for answer in ["a <tool_call> b", "<tool_call>", "<tool_call>\n{\"name\": 3}", "x <", " \n\n a", "<tool_call>\n{\"name\": \"f\": 3}"] {
        assert_eq!(everywhere(&tagged, answer), [text(answer)]);
    }
}

#[test]
fn a_call_may_be_json_alone() {
    let parser = Parser::new(Some(GENERIC), None, false).with_bare_calls(vec!["f".into()], Vec::new());
    let call = [Delta::Call(0, "f".into()), Delta::Arguments(0, "{\"a\":1}".into())];
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
fn reasoning_is_told_from_text() {
    for thinking in THINKING {
        let Thinking { open, close, head } = thinking;
        let answer = format!("{open}\nA <b> \n\nc.\n{close}\n\n{head}Hello.\n");
        let whole = [reasoning("A <b> \n\nc."), text("Hello.\n")];
        assert_eq!(everywhere(&Parser::new(None, Some(thinking), false), &answer), whole);
        let opened = answer[open.len()..].to_owned();
        assert_eq!(everywhere(&Parser::new(None, Some(thinking), true), &opened), whole);
        assert_eq!(everywhere(&Parser::new(None, Some(thinking), false), "\nHello."), [text("Hello.")]);
        assert_eq!(everywhere(&Parser::new(None, Some(thinking), true), "Hm"), [reasoning("Hm")], "it never came to its end");
        let call = written(GENERIC, &CALLS[..1]);
        let all = format!("{open}why{close}\n{head}So:\n{call}");
        let due = [vec![reasoning("why"), text("So:")], expected(&CALLS[..1])].concat();
        assert_eq!(everywhere(&Parser::new(Some(GENERIC), Some(thinking), false), &all), due);
        let inside = format!("{open}why {call}{close}Well.");
        let due = [reasoning(&format!("why {call}")), text("Well.")];
        assert_eq!(everywhere(&Parser::new(Some(GENERIC), Some(thinking), false), &inside), due, "what is thought is not called");
    }
}

proptest! {
    #[test]
    fn pieces_do_not_matter(parts in prop::collection::vec(prop_oneof![
            Just("<tool_call>"), Just("\n{\"name\": \""), Just("f"), Just("\", \"arguments\": "), Just("{\"a\": \"}\"}"), Just("}\n</tool_call>"),
            Just("\n"), Just("<think>"), Just("</think>"), Just(" "), Just("é<"), Just("text")], 0..14),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6), thinks in any::<bool>(), opened in any::<bool>()) {
        let answer = parts.concat();
        let parser = Parser::new(Some(GENERIC), thinks.then_some(&THINKING[1]), opened);
        let mut places: Vec<usize> = cuts.iter().map(|cut| answer.floor_char_boundary(cut.index(answer.len() + 1))).collect();
        places.extend([0, answer.len()]);
        places.sort_unstable();
        let pieces = places.windows(2).map(|pair| &answer[pair[0]..pair[1]]);
        prop_assert_eq!(parse(&parser, pieces, false), parse(&parser, [answer.as_str()], false));
    }
}

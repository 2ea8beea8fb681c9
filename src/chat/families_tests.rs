//! Whole conversations with each family's template: a call as the template writes it, its result, and an answer.

use std::sync::{Arc, LazyLock};

use serde_json::{Value, json};

use crate::answer_start::AnswerStart;
use crate::conversation::{Call, Conversation, Ending, Message, Role};
use crate::dialect::{Arguments, Dialect};
use crate::format::Format;
use crate::parser::Parser;
use crate::piece::Piece;
use crate::render::{Layout, render};
use crate::rules::Rules;
use crate::tools::{Declaration, Tool, ToolChoice, Tools};
use grammar::{Compiler, testing::compiler};
use logits::{Allowed, rng};
use template::ChatTemplate;
use tokenizer::Tokenizer;

static RIG: LazyLock<(Compiler, Arc<Tokenizer>)> = LazyLock::new(|| compiler(fixtures::vocabulary("smollm2").path()));

const QUESTION: &str = "What-is-asked";
const RESULTS: [&str; 2] = ["first-result", "second-result"];
const THOUGHT: &str = "Let me look it up.";
const ANSWER: &str = "It is 21 °C <b>there</b>.";

struct Family {
    name: String,
    template: ChatTemplate,
    dialect: Dialect,
}

fn families() -> Vec<Family> {
    let mut files: Vec<_> = std::fs::read_dir(fixtures::golden("templates")).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "jinja"));
    files.sort();
    let read = |path: &std::path::PathBuf| {
        let template = ChatTemplate::new(&std::fs::read_to_string(path).unwrap(), "<s>", "</s>").unwrap();
        let dialect = Dialect::of(&template, &RIG.1);
        Family { name: path.file_stem().unwrap().to_str().unwrap().to_owned(), template, dialect }
    };
    files.iter().map(read).collect()
}

fn tools(choice: ToolChoice) -> Tools {
    let spot = json!({"type": "object", "properties": {
        "lat": {"type": "number", "description": "Latitude"},
        "tags": {"type": "array", "items": {"type": "string"}, "description": "Tags"},
    }, "required": ["lat"], "description": "Where"});
    let weather = json!({
        "city": {"type": "string", "description": "City"},
        "days": {"type": "integer", "description": "Days"},
        "metric": {"type": "boolean", "description": "Units"},
        "spot": spot,
    });
    let tool = |name: &str, properties: Value, required: Value| {
        let parameters = json!({"type": "object", "properties": properties, "required": required});
        let function = json!({"name": name, "description": "Looks up.", "parameters": parameters});
        Tool {
            name: name.into(),
            parameters: Some(parameters),
            strict: false,
            declaration: Declaration::Function(function.as_object().unwrap().clone()),
            input: None,
        }
    };
    let look_up = tool("look_up", json!({"q": {"type": "string", "description": "Query"}}), json!(["q"]));
    Tools { tools: vec![tool("get_weather", weather, json!(["city"])), look_up], choice, parallel: true }
}

impl Family {
    /// Calls with nested values, quotation marks, line breaks and the family's own tags.
    fn calls(&self) -> Vec<(&'static str, Value)> {
        let tag = match self.dialect.syntax.arguments {
            Arguments::Notated(_) => "<item>",
            _ => self.dialect.syntax.trigger,
        };
        let spot = json!({"lat": 50.9, "tags": ["a", "b \"c\""]});
        let weather = json!({"city": "Köln 東京 🦙", "days": 3, "metric": true, "spot": spot});
        // Python's strings may end with an apostrophe, and templates do not escape them.
        let apostrophe = if self.dialect.syntax.arguments == Arguments::Python { "" } else { "it's" };
        let look_up = json!({"q": format!("say \"hi\"\n\tto {tag} {apostrophe}")});
        vec![("get_weather", weather), ("look_up", look_up)]
    }

    fn render(&self, messages: Vec<Message>, choice: ToolChoice) -> Result<String, String> {
        let conversation = Conversation { messages, tools: Some(tools(choice)), ending: Ending::OpenTurn, ..Conversation::default() };
        Layout::new(&self.dialect, &str::to_owned, &conversation).render(&self.template).map_err(|error| error.to_string())
    }

    /// The messages of a question, `calls` and their results. If the template takes one call per message, the second call is left out.
    fn turn(&self, round: usize) -> (Vec<Message>, Vec<(&'static str, Value)>) {
        let of = |calls: &[(&'static str, Value)]| {
            let id = |i: usize| format!("call_{round}_{i}");
            let made = |(i, (name, arguments)): (usize, &(&'static str, Value))| Call {
                id: id(i),
                name: (*name).into(),
                arguments: arguments.to_string(),
            };
            let mut messages = vec![Message {
                calls: calls.iter().enumerate().map(made).collect(),
                reasoning: self.dialect.reasons().map(|_| THOUGHT.to_owned()),
                ..Message::new(Role::Assistant)
            }];
            let result = |i: usize| Message { call_id: Some(id(i)), ..Message::of_text(Role::Tool, RESULTS[i]) };
            messages.extend((0..calls.len()).map(result));
            messages
        };
        let all = self.calls();
        let messages = [vec![Message::of_text(Role::User, QUESTION)], of(&all)].concat();
        let shown = self.render(messages, ToolChoice::Auto);
        let shows_all = shown.is_ok_and(|text| text.contains("look_up") && text.contains(RESULTS[1]));
        assert!(shows_all, "{}: a call is not shown", self.name);
        // These templates show one call per message.
        let single = !self.dialect.syntax.repeats() || !self.dialect.turns.several_calls;
        let calls = if single { all[..1].to_vec() } else { all };
        (of(&calls), calls)
    }

    /// The calls as the model writes them: the template's own text, beginning at the tag.
    fn written(&self, prompt: &str, calls: &[(&'static str, Value)]) -> String {
        let own: Vec<(&str, String)> = calls.iter().map(|(name, arguments)| (*name, arguments.to_string())).collect();
        let trigger = self.dialect.syntax.trigger;
        let last = prompt.rfind(RESULTS[0]).unwrap_or(prompt.len());
        let name = prompt[..last].rfind("look_up").filter(|_| calls.len() > 1).or_else(|| prompt[..last].rfind("get_weather")).unwrap();
        let first = prompt[..name].rfind("get_weather").filter(|_| calls.len() > 1).unwrap_or(name);
        // Some templates write the tag only before the first calls of a conversation.
        let from = prompt[..first].rfind(QUESTION).unwrap_or(0);
        match prompt[from..first].rfind(trigger).map(|at| at + from) {
            // gpt-oss's template names a call's function in the head of the message, while the model names it after the channel. Reka's
            // template escapes characters that the rules do not escape.
            Some(at) if self.dialect.syntax.name != "gpt-oss" && !prompt[at..].contains("\\u00") => prompt[at..].to_owned(),
            _ => self.dialect.syntax.calls(own.iter().map(|(name, arguments)| (*name, arguments.as_str()))),
        }
    }

    /// The pieces of an answer, which must not depend on how the answer is cut.
    fn parse(&self, answer: &str, opened: bool) -> Vec<Piece> {
        let syntax = self.dialect.syntax;
        let parser = Parser::new(Some(syntax), self.dialect.thinking, AnswerStart::opened(opened)).with_tools(&tools(ToolChoice::Auto));
        let parse = |texts: &[&str]| {
            let mut parser = parser.clone();
            let mut pieces: Vec<Piece> = texts.iter().flat_map(|text| parser.push((*text).to_owned().into())).collect();
            pieces.extend(parser.finish(false));
            joined(pieces)
        };
        let whole = parse(&[answer]);
        for seed in 0..6 {
            let (mut texts, mut rest, mut step) = (Vec::new(), answer, 0);
            while !rest.is_empty() {
                let longest = if seed == 0 { 1.0 } else { 12.0 };
                let at = rest.ceil_char_boundary(1 + (rng::uniform(seed, step) * longest) as usize);
                let (text, after) = rest.split_at(at.min(rest.len()));
                texts.push(text);
                (rest, step) = (after, step + 1);
            }
            assert_eq!(parse(&texts), whole, "{}: {answer}", self.name);
        }
        whole
    }
}

/// Joins consecutive pieces of the same kind.
fn joined(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut out: Vec<Piece> = Vec::new();
    for piece in pieces {
        match (out.last_mut(), piece) {
            (Some(Piece::Text(last)), Piece::Text(more)) => last.text.push_str(&more.text),
            (Some(Piece::Reasoning(last)), Piece::Reasoning(more)) => last.push_str(&more),
            (Some(Piece::Arguments { text, .. }), Piece::Arguments { text: more, .. }) => text.push_str(&more),
            (_, piece) => out.push(piece),
        }
    }
    out
}

fn calls_of(pieces: &[Piece]) -> Vec<(String, Value)> {
    let mut calls: Vec<(String, Value)> = Vec::new();
    for piece in pieces {
        match piece {
            Piece::CallStart { name, .. } => calls.push((name.clone(), Value::Null)),
            Piece::Arguments { text, .. } => {
                calls.last_mut().unwrap().1 = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            }
            _ => {}
        }
    }
    calls
}

/// Checks each family, and fails with the names of all families that fail.
fn each(families: Vec<Family>, check: impl Fn(&Family)) {
    let failed = |family: &Family| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(family))).is_err();
    let failed: Vec<String> = families.into_iter().filter(failed).map(|family| family.name).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn a_call_its_result_and_an_answer_go_through_each_template() {
    each(families(), |family| {
        let of = |text: &str| Message::of_text(Role::System, text);
        let (turn, calls) = family.turn(0);
        let mut messages = vec![of("Be brief."), Message::of_text(Role::User, QUESTION)];
        let asked = family.render(messages.clone(), ToolChoice::Auto).unwrap_or_else(|error| panic!("{}: {error}", family.name));
        assert!(asked.contains("get_weather") && asked.contains("look_up"), "{}: the tools are not shown: {asked}", family.name);
        messages.extend(turn);
        let shown = family.render(messages.clone(), ToolChoice::Auto).unwrap_or_else(|error| panic!("{}: {error}", family.name));
        for result in &RESULTS[..calls.len()] {
            assert!(shown.contains(result), "{}: {result} is not shown: {shown}", family.name);
        }
        let written = family.written(&shown, &calls);
        let due: Vec<(String, Value)> = calls.iter().map(|(name, arguments)| ((*name).to_owned(), arguments.clone())).collect();
        assert_eq!(calls_of(&family.parse(&written, false)), due, "{}: {written}", family.name);
        // Reasoning before the calls.
        if let Some(thinking) = family.dialect.reasons() {
            for opened in [false, true] {
                let open = if opened { "" } else { thinking.open };
                let pieces = family.parse(&format!("{open}{THOUGHT}{}{written}", thinking.close), opened);
                assert_eq!(pieces.first(), Some(&Piece::Reasoning(THOUGHT.into())), "{}", family.name);
                assert_eq!(calls_of(&pieces), due, "{}", family.name);
                let answer = format!("{open}{THOUGHT}{}{}{ANSWER}{}", thinking.close, thinking.head, thinking.tail);
                let due = [Piece::Reasoning(THOUGHT.into()), Piece::Text(ANSWER.to_owned().into())];
                assert_eq!(family.parse(&answer, opened), due, "{}", family.name);
            }
        }
        assert_eq!(family.parse(ANSWER, false), [Piece::Text(ANSWER.to_owned().into())], "{}", family.name);
        // A second round, after the first answer.
        messages.push(Message::of_text(Role::Assistant, ANSWER));
        messages.push(Message::of_text(Role::User, QUESTION));
        messages.extend(family.turn(1).0);
        let shown = family.render(messages, ToolChoice::Auto).unwrap_or_else(|error| panic!("{}: {error}", family.name));
        assert!(shown.contains(ANSWER), "{}: {shown}", family.name);
        assert_eq!(calls_of(&family.parse(&family.written(&shown, &calls), false)), due, "{}: {shown}", family.name);
    });
}

/// The rules of a required call admit what the template writes, and no answer may end before the call does.
#[test]
fn what_a_template_writes_follows_the_rules() {
    let (grammars, tokenizer) = &*RIG;
    each(families(), |family| {
        let tools = tools(ToolChoice::Required);
        let (turn, calls) = family.turn(0);
        let messages = [vec![Message::of_text(Role::User, QUESTION)], turn].concat();
        let shown = family.render(messages, ToolChoice::Required).unwrap();
        let written = family.written(&shown, &calls);
        let rules = Rules { dialect: &family.dialect, grammars, tools: Some(&tools), format: None, entry: AnswerStart::Turn };
        let mut place = rules.grammar().unwrap().unwrap().start();
        let mut taken = String::new();
        for c in written.chars() {
            if tokenizer.encode_within(&c.to_string()).into_iter().try_for_each(|id| place.accept(id)).is_err() {
                break;
            }
            taken.push(c);
        }
        let whole = calls_of(&family.parse(&taken, false)).len() == calls.len();
        assert!(whole, "{}: the rules take {taken:?} of {written:?}", family.name);
        let ended = match place.allowed() {
            Ok(Allowed::End) | Err(_) => true,
            Ok(Allowed::All) => false,
            Ok(Allowed::Mask(words)) => tokenizer.end_ids().iter().any(|id| words[*id as usize / 32] >> (id % 32) & 1 == 1),
        };
        assert!(ended, "{}: the rules want more after {taken:?}", family.name);
    });
}

/// An agent's session of 300 messages stays within the sandbox's bounds.
#[test]
fn a_long_conversation_renders() {
    each(families(), |family| {
        let round = |round| {
            let question = Message::of_text(Role::User, QUESTION);
            [vec![question], family.turn(round).0, vec![Message::of_text(Role::Assistant, ANSWER)]].concat()
        };
        let mut messages: Vec<Message> = (0..60).flat_map(round).collect();
        messages.push(Message::of_text(Role::User, QUESTION));
        family.render(messages, ToolChoice::Auto).unwrap_or_else(|error| panic!("{}: {error}", family.name));
    });
}

/// If a call or a format is required, an answer cannot end before it, whether or not the model reasons first.
#[test]
fn no_answer_ends_before_its_rule_is_met() {
    let (grammars, tokenizer) = &*RIG;
    let (required, named) = (tools(ToolChoice::Required), tools(ToolChoice::Named("look_up".into())));
    let choice = Format::Choice(vec!["yes".into(), "no".into()]);
    each(families(), |family| {
        let prompt = family.render(vec![Message::of_text(Role::User, QUESTION)], ToolChoice::Required).unwrap();
        let prompted = family.dialect.opens_reasoning(&prompt);
        for (tools, format) in [(Some(&required), None), (Some(&named), None), (None, Some(&Format::JsonObject)), (None, Some(&choice))] {
            let thoughts = if family.dialect.reasons().is_some() { &[false, true][..] } else { &[false][..] };
            for thinks in thoughts {
                let opened = prompted && *thinks;
                let rules = Rules { dialect: &family.dialect, grammars, tools, format, entry: AnswerStart::opened(opened) };
                let mut place = rules.grammar().unwrap().unwrap().start();
                let mut may_end = |text: &str| {
                    for id in tokenizer.encode_within(text) {
                        place.accept(id).unwrap_or_else(|error| panic!("{}: {text}: {error}", family.name));
                    }
                    match place.allowed().unwrap() {
                        Allowed::End | Allowed::All => true,
                        Allowed::Mask(words) => tokenizer.end_ids().iter().any(|id| words[*id as usize / 32] >> (id % 32) & 1 == 1),
                    }
                };
                assert!(!may_end(""), "{}", family.name);
                if let Some(thinking) = family.dialect.reasons().filter(|_| *thinks) {
                    let open = if opened { "" } else { thinking.open };
                    let space = if thinking.head.starts_with(' ') { "" } else { "\n" };
                    for text in [open, "Hm, no. ", "{\"name\": \"look_up\"} <", thinking.close, space] {
                        assert!(!may_end(text), "{}: {text}", family.name);
                    }
                }
                let head = family.dialect.thinking.map_or("", |thinking| thinking.head);
                match (tools, format) {
                    (Some(_), _) => {
                        let call = family.dialect.syntax.calls(std::iter::once(("look_up", "{\"q\": \"a\"}")));
                        let end = call.rfind("look_up").unwrap();
                        assert!(!may_end(&call[..end]), "{}", family.name);
                    }
                    (None, Some(Format::Choice(_))) => assert!(may_end(&format!("{head}no")), "{}", family.name),
                    _ => assert!(!may_end(&format!("{head}{{\"a\": ")) && may_end("1}"), "{}", family.name),
                }
            }
        }
    });
}

#[test]
fn levels_of_reasoning_reach_the_template() {
    let (_, tokenizer) = &*RIG;
    for (name, effort, shown) in [
        ("openai-gpt-oss-120b", "high", Ok("Reasoning: high")),
        ("openai-gpt-oss-120b", "low", Ok("Reasoning: low")),
        ("Kimi-K3", "low", Ok("thinking_effort=low")),
        ("Kimi-K3", "medium", Err("Unsupported thinking_effort=medium")),
        ("muse-glimmer", "low", Ok("Reasoning strength: low")),
        ("Qwen-Qwen3-0.6B", "none", Ok("<think>\n\n</think>")),
        ("GLM-4.7-Flash", "none", Ok("</think>")),
        ("MiniMax-M3", "none", Ok("Current thinking mode: disabled")),
        ("MiniMax-M3", crate::REASON, Ok("Current thinking mode: enabled")),
        ("openai-gpt-oss-120b", crate::REASON, Ok("Reasoning: medium")),
        ("Qwen-Qwen2.5-7B-Instruct", crate::REASON, Ok("assistant")),
        ("Qwen-Qwen2.5-7B-Instruct", "none", Ok("What-is-asked")),
        ("Qwen-Qwen2.5-7B-Instruct", "medium", Ok("What-is-asked")),
        ("Qwen-Qwen2.5-7B-Instruct", "low", Err("no levels of reasoning")),
        ("Qwen-Qwen3-0.6B", "medium", Ok("What-is-asked")),
        ("Qwen-Qwen3-0.6B", "high", Err("no levels of reasoning")),
    ] {
        let family = families().into_iter().find(|family| family.name == name).unwrap();
        let messages = vec![Message::of_text(Role::User, QUESTION)];
        let conversation = Conversation { messages, effort: Some(effort.into()), ..Conversation::default() };
        let text = render(&family.template, &family.dialect, tokenizer, &conversation);
        let text = text.map(|prompt| prompt.end().to_owned()).map_err(|error| error.to_string());
        match (text, shown) {
            (Ok(text), Ok(shown)) => assert!(text.contains(shown), "{name} {effort}: {text}"),
            (Err(error), Err(shown)) => assert!(error.contains(shown), "{name} {effort}: {error}"),
            (text, _) => panic!("{name} {effort}: {text:?}"),
        }
    }
}

#[test]
fn an_effort_that_is_advice_becomes_the_nearest_that_the_template_takes() {
    let (_, tokenizer) = &*RIG;
    for (name, effort, others, shown) in [
        ("Kimi-K3", "medium", crate::nearest_efforts("medium"), "thinking_effort=high"),
        ("Kimi-K3", "low", crate::nearest_efforts("low"), "thinking_effort=low"),
        ("MiniMax-M3", "medium", vec![crate::REASON.into()], "Current thinking mode: enabled"),
        ("MiniMax-M3", "none", Vec::new(), "Current thinking mode: disabled"),
        ("Qwen-Qwen2.5-7B-Instruct", "high", crate::nearest_efforts("high"), "What-is-asked"),
        ("Qwen-Qwen2.5-7B-Instruct", "none", Vec::new(), "What-is-asked"),
    ] {
        let family = families().into_iter().find(|family| family.name == name).unwrap();
        let messages = vec![Message::of_text(Role::User, QUESTION)];
        let conversation = Conversation { messages, effort: Some(effort.into()), or_efforts: Some(others), ..Conversation::default() };
        let text = render(&family.template, &family.dialect, tokenizer, &conversation).unwrap().end().to_owned();
        assert!(text.contains(shown), "{name} {effort}: {text}");
    }
    assert_eq!(crate::nearest_efforts("xhigh"), ["max", "high", "medium", "low", "minimal"]);
}

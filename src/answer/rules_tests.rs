//! Rules over a real vocabulary, followed by a writer that takes whatever a random number says.

use std::sync::Arc;

use serde_json::{Value, json};

use super::format::{Format, Structure};
use super::parser::{Delta, Parser};
use super::rules::Rules;
use super::style::{History, Style, Telling};
use super::syntax::{GENERIC, SYNTAXES, Syntax, THINKING};
use super::tools::{Choice, Tool, Tools};
use crate::grammar::{Compiler, tests::compiler};
use crate::logits::{Allowed, Constraint, rng};
use crate::tokenizer::Tokenizer;

struct Rig {
    tokenizer: Arc<Tokenizer>,
    grammars: Compiler,
}

impl Rig {
    fn new() -> Option<Self> {
        let (grammars, tokenizer) = compiler()?;
        Some(Self { tokenizer, grammars })
    }

    fn start(&self, style: &Style, tools: Option<&Tools>, structure: Option<&Structure>, opened: bool) -> Box<dyn Constraint> {
        let rules = Rules { style, grammars: &self.grammars, tools, structure, opened };
        rules.grammar().unwrap().expect("rules").start()
    }

    /// Writes a text that must be allowed.
    fn write(&self, place: &mut dyn Constraint, text: &str) {
        for id in self.tokenizer.encode_within(text) {
            match place.allowed().unwrap() {
                Allowed::Mask(words) => assert!(words[id as usize / 32] >> (id % 32) & 1 == 1, "{text}: {id} is forbidden"),
                Allowed::All => {}
                Allowed::End => panic!("{text}: the end"),
            }
            place.accept(id).unwrap();
        }
    }

    /// Writes without any sense until nothing more is allowed, or the text may end: None if it does not come to that.
    fn scribble(&self, place: &mut dyn Constraint, seed: u64) -> Option<String> {
        let mut ids = Vec::new();
        for step in 0..600 {
            let Allowed::Mask(words) = place.allowed().unwrap() else { return Some(self.tokenizer.decode(&ids, true)) };
            let allowed: Vec<u32> =
                (0..self.tokenizer.vocab_size() as u32).filter(|id| words[*id as usize / 32] >> (id % 32) & 1 == 1).collect();
            if allowed.iter().any(|id| self.tokenizer.end_ids().contains(id)) {
                return Some(self.tokenizer.decode(&ids, true));
            }
            let id = allowed[(rng::uniform(seed, step) * allowed.len() as f64) as usize];
            place.accept(id).unwrap();
            ids.push(id);
        }
        None
    }
}

fn style(syntax: &'static Syntax, thinking: bool) -> Style {
    let thinking = thinking.then_some(&THINKING[1]);
    Style { syntax, thinking, telling: Telling::Words, history: History::Written, system: true, tags: Vec::new() }
}

fn tools(choice: Choice) -> Tools {
    let parameters = json!({"type": "object", "properties": {"on": {"type": "boolean"}, "unit": {"enum": ["C", "F"]}}, "required": ["on", "unit"],
        "additionalProperties": false});
    let tool = |i: usize, name: &str| {
        let path = format!("tools[{i}].function.parameters");
        Tool { name: name.into(), parameters: Some(parameters.clone()), definition: json!({}), path }
    };
    Tools { tools: vec![tool(0, "first"), tool(1, "second")], choice, parallel: false }
}

fn check_call(syntax: &'static Syntax, text: &str, names: &[&str]) {
    let mut parser = Parser::new(Some(syntax), None, false);
    let mut deltas = parser.push(text);
    deltas.extend(parser.finish(false));
    let [Delta::Call(0, name), rest @ ..] = &deltas[..] else { panic!("{}: {text}: {deltas:?}", syntax.name) };
    assert!(names.contains(&name.as_str()), "{}: {text}", syntax.name);
    let arguments: String =
        rest.iter().map(|delta| if let Delta::Arguments(0, text) = delta { text.as_str() } else { panic!("{deltas:?}") }).collect();
    let value: Value = serde_json::from_str(&arguments).unwrap_or_else(|error| panic!("{}: {arguments}: {error}", syntax.name));
    assert!(value["on"].is_boolean() && ["C", "F"].iter().any(|unit| value["unit"] == *unit), "{arguments}");
}

#[test]
fn a_call_that_must_be_is_valid_in_each_family() {
    let Some(rig) = Rig::new() else { return };
    for syntax in SYNTAXES.iter().chain([GENERIC]) {
        for (choice, names) in [(Choice::Required, &["first", "second"][..]), (Choice::Named("second".into()), &["second"])] {
            let mut ended = 0;
            for seed in 0..4 {
                let mut place = rig.start(&style(syntax, false), Some(&tools(choice.clone())), None, false);
                let Some(text) = rig.scribble(&mut *place, seed) else { continue };
                check_call(syntax, &text, names);
                ended += 1;
            }
            assert!(ended > 1, "{}: {ended}", syntax.name);
        }
    }
}

#[test]
fn a_call_that_may_be_is_free_until_it_begins() {
    let Some(rig) = Rig::new() else { return };
    for syntax in SYNTAXES.iter().chain([GENERIC]) {
        let mut place = rig.start(&style(syntax, false), Some(&tools(Choice::Auto)), None, false);
        if syntax.follows_text {
            rig.write(&mut *place, "I look it up. { < [\n");
            assert_eq!(place.allowed().unwrap(), Allowed::All, "{}", syntax.name);
        }
        // Where a tag is no more than the beginning of JSON, it takes a function's name to make a call.
        let beginning = if syntax.follows_text { syntax.trigger.to_owned() } else { format!("{}second\"", syntax.trigger) };
        rig.write(&mut *place, &beginning);
        assert!(matches!(place.allowed().unwrap(), Allowed::Mask(_)), "{}", syntax.name);
        let Some(text) = rig.scribble(&mut *place, 3) else { continue };
        check_call(syntax, &format!("{beginning}{text}"), &["first", "second"]);
        let mut free = rig.start(&style(syntax, false), Some(&tools(Choice::Auto)), None, false);
        rig.write(&mut *free, "Just a text, and nothing behind it.");
        assert_eq!(free.allowed().unwrap(), Allowed::All);
        let mut json = rig.start(&style(syntax, false), Some(&tools(Choice::Auto)), None, false);
        rig.write(&mut *json, "{\"name\": \"Ada\", \"age\": 36}");
        assert_eq!(json.allowed().unwrap(), Allowed::All, "{}", syntax.name);
    }
}

#[test]
fn a_call_by_json_alone_follows_its_schema() {
    let Some(rig) = Rig::new() else { return };
    let tools = tools(Choice::Auto);
    for (text, thinking) in
        [("{\"name\": \"first\"", false), ("```json\n{\n  \"name\": \"second\",", false), ("{\"name\":\"first\",", true)]
    {
        let mut place = rig.start(&style(GENERIC, thinking), Some(&tools), None, thinking);
        if thinking {
            rig.write(&mut *place, "{\"name\": \"first\", \"x\": 1}</think>\n");
        }
        rig.write(&mut *place, text);
        assert!(matches!(place.allowed().unwrap(), Allowed::Mask(_)), "{text}");
        let Some(rest) = rig.scribble(&mut *place, 5) else { continue };
        let whole = format!("{text}{rest}");
        let mut parser = Parser::new(Some(GENERIC), None, false).with_bare_calls(vec!["first".into(), "second".into()], Vec::new());
        let deltas = [parser.push(&whole), parser.finish(false)].concat();
        let [Delta::Call(0, _), Delta::Arguments(0, arguments)] = &deltas[..] else { panic!("{whole}: {deltas:?}") };
        let value: Value = serde_json::from_str(arguments).unwrap();
        assert!(value["on"].is_boolean() && value.as_object().unwrap().len() == 2, "{arguments}");
    }
    for text in ["{\"name\": \"firstly\", \"age\": 3}", "Here: {\"name\": \"first\", \"x\": 1}"] {
        let mut place = rig.start(&style(GENERIC, false), Some(&tools), None, false);
        rig.write(&mut *place, text);
        assert_eq!(place.allowed().unwrap(), Allowed::All, "{text}");
    }
}

#[test]
fn a_format_holds_behind_reasoning() {
    let Some(rig) = Rig::new() else { return };
    let structure = Structure { format: Format::Choice(vec!["yes".into(), "no".into()]), field: "choice" };
    for opened in [false, true] {
        let mut place = rig.start(&style(GENERIC, true), None, Some(&structure), opened);
        if !opened {
            let mut direct = rig.start(&style(GENERIC, true), None, Some(&structure), false);
            rig.write(&mut *direct, "no");
            assert_eq!(direct.allowed().unwrap(), Allowed::End);
            rig.write(&mut *place, "<think>");
        }
        rig.write(&mut *place, "\nLet me see: yes, no, </thin");
        assert!(!matches!(place.allowed().unwrap(), Allowed::End));
        rig.write(&mut *place, "k>\n");
        assert_eq!(rig.scribble(&mut *place, 1).map(|text| ["yes", "no"].contains(&text.trim())), Some(true));
    }
}

#[test]
fn a_bad_schema_is_blamed_on_its_tool() {
    let Some(rig) = Rig::new() else { return };
    let mut tools = tools(Choice::Auto);
    tools.tools[1].parameters = Some(json!({"properties": {"a": {"pattern": "["}}}));
    let style = style(GENERIC, false);
    let rules = Rules { style: &style, grammars: &rig.grammars, tools: Some(&tools), structure: None, opened: false };
    let (field, error) = rules.grammar().unwrap_err();
    assert!(field == "tools" && error.to_string().starts_with("tools[1].function.parameters: #/properties/a"), "{error}");
}

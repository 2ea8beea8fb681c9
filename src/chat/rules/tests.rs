//! Rules over a real vocabulary, followed by a writer that picks random allowed tokens.

use serde_json::json;

use super::*;
use crate::dialect::{CallForm, GENERIC, SYNTAXES, THINKING, ToolPlacement};
use crate::parser::Parser;
use crate::piece::Piece;
use crate::tools::{Declaration, Tool};
use grammar::{Compiler, testing::compiler};
use logits::{Allowed, Constraint, rng};
use tokenizer::Tokenizer;

struct Rig {
    tokenizer: Arc<Tokenizer>,
    grammars: Compiler,
}

impl Rig {
    fn new() -> Self {
        let (grammars, tokenizer) = compiler(fixtures::vocabulary("smollm2").path());
        Self { tokenizer, grammars }
    }

    fn start(&self, dialect: &Dialect, tools: Option<&Tools>, format: Option<&Format>, opened: bool) -> Box<dyn Constraint> {
        let rules = Rules { dialect, grammars: &self.grammars, tools, format, entry: AnswerStart::opened(opened) };
        rules.grammar().unwrap().expect("rules").start()
    }

    /// Writes a text whose every token must be allowed.
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

    /// Writes random tokens until nothing more is allowed or the text may end. If nearly every token is allowed, the writer sometimes
    /// writes `hint`, which ends a free text. `None` if that takes too long.
    fn scribble_with(&self, place: &mut dyn Constraint, seed: u64, hint: &str) -> Option<String> {
        let mut ids = Vec::new();
        let hint: Vec<u32> = self.tokenizer.encode_within(hint);
        let mut hinted: Vec<u32> = Vec::new();
        for step in 0..400 {
            let Allowed::Mask(words) = place.allowed().unwrap() else { return Some(self.tokenizer.decode(&ids, true)) };
            let is_allowed = |id: u32| words[id as usize / 32] >> (id % 32) & 1 == 1;
            let count: u32 = words.iter().map(|word| word.count_ones()).sum();
            if self.tokenizer.end_ids().iter().any(|id| is_allowed(*id)) {
                return Some(self.tokenizer.decode(&ids, true));
            }
            let draw = rng::uniform(seed, step);
            if hinted.is_empty() && count > 5000 && draw < 0.3 {
                hinted = hint.iter().rev().copied().collect();
            }
            let id = hinted.pop().filter(|id| is_allowed(*id)).unwrap_or_else(|| {
                let allowed: Vec<u32> = (0..self.tokenizer.vocab_size() as u32).filter(|id| is_allowed(*id)).collect();
                allowed[(draw * allowed.len() as f64) as usize]
            });
            place.accept(id).unwrap();
            ids.push(id);
        }
        None
    }

    fn scribble(&self, place: &mut dyn Constraint, seed: u64) -> Option<String> {
        self.scribble_with(place, seed, "\"")
    }
}

/// The text that ends a free text in a family's calls.
fn hint(syntax: &Syntax) -> &'static str {
    match syntax.arguments {
        Arguments::Json | Arguments::Python => "\"",
        Arguments::Tagged(tags) => tags.after,
        Arguments::Notated(notation) => notation.mark,
    }
}

fn dialect(syntax: &'static Syntax, thinking: bool) -> Dialect {
    let thinking = thinking.then_some(&THINKING[1]);
    Dialect { thinking, ..Dialect::plain(syntax, ToolPlacement::Words, CallForm::Text) }
}

fn tools(choice: ToolChoice) -> Tools {
    let properties = json!({"on": {"type": "boolean"}, "unit": {"enum": ["C", "F"]}});
    let parameters = json!({"type": "object", "properties": properties, "required": ["on", "unit"], "additionalProperties": false});
    let tool = |name: &str| Tool {
        name: name.into(),
        parameters: Some(parameters.clone()),
        strict: false,
        declaration: Declaration::Function(Default::default()),
        input: None,
    };
    Tools { tools: vec![tool("first"), tool("second")], choice, parallel: false }
}

fn check_call(syntax: &'static Syntax, text: &str, names: &[&str]) {
    let mut parser = Parser::new(Some(syntax), None, AnswerStart::Turn).with_tools(&tools(ToolChoice::Auto));
    let mut pieces = parser.push(text.to_owned().into());
    pieces.extend(parser.finish(false));
    let [Piece::CallStart { call: 0, name }, rest @ ..] = &pieces[..] else { panic!("{}: {text}: {pieces:?}", syntax.name) };
    assert!(names.contains(&name.as_str()), "{}: {text}", syntax.name);
    let text_of = |piece| if let &Piece::Arguments { call: 0, ref text } = piece { text.as_str() } else { panic!("{pieces:?}") };
    let arguments: String = rest.iter().map(text_of).collect();
    let value: Value = serde_json::from_str(&arguments).unwrap_or_else(|error| panic!("{}: {arguments}: {error}", syntax.name));
    assert!(value["on"].is_boolean() && ["C", "F"].iter().any(|unit| value["unit"] == *unit), "{arguments}");
}

#[test]
fn a_required_call_is_valid_in_each_family() {
    let rig = Rig::new();
    for syntax in SYNTAXES.iter().chain([GENERIC]) {
        for (choice, names) in [(ToolChoice::Required, &["first", "second"][..]), (ToolChoice::Named("second".into()), &["second"])] {
            let mut ended = 0;
            for seed in 0..3 {
                let mut place = rig.start(&dialect(syntax, false), Some(&tools(choice.clone())), None, false);
                let Some(text) = rig.scribble(&mut *place, seed) else { continue };
                check_call(syntax, &text, names);
                ended += 1;
            }
            assert!(ended > 1, "{}: {ended}", syntax.name);
        }
    }
}

#[test]
fn the_text_before_an_optional_call_is_free() {
    let rig = Rig::new();
    for syntax in SYNTAXES.iter().chain([GENERIC]) {
        let mut place = rig.start(&dialect(syntax, false), Some(&tools(ToolChoice::Auto)), None, false);
        if syntax.follows_text {
            rig.write(&mut *place, "I look it up. { < [\n");
            assert_eq!(place.allowed().unwrap(), Allowed::All, "{}", syntax.name);
        }
        // If the tag is only the beginning of JSON, the call is recognised by its function's name.
        let beginning = if syntax.follows_text { syntax.trigger.to_owned() } else { format!("{}second\"", syntax.trigger) };
        rig.write(&mut *place, &beginning);
        assert!(matches!(place.allowed().unwrap(), Allowed::Mask(_)), "{}", syntax.name);
        let Some(text) = rig.scribble(&mut *place, 3) else { continue };
        check_call(syntax, &format!("{beginning}{text}"), &["first", "second"]);
        let mut free = rig.start(&dialect(syntax, false), Some(&tools(ToolChoice::Auto)), None, false);
        rig.write(&mut *free, "Just a text, and nothing behind it.");
        assert_eq!(free.allowed().unwrap(), Allowed::All);
        let mut json = rig.start(&dialect(syntax, false), Some(&tools(ToolChoice::Auto)), None, false);
        rig.write(&mut *json, "{\"name\": \"Ada\", \"age\": 36}");
        assert_eq!(json.allowed().unwrap(), Allowed::All, "{}", syntax.name);
    }
}

#[test]
fn a_bare_call_follows_its_schema() {
    let rig = Rig::new();
    let tools = tools(ToolChoice::Auto);
    for (text, thinking) in
        [("{\"name\": \"first\"", false), ("```json\n{\n  \"name\": \"second\",", false), ("{\"name\":\"first\",", true)]
    {
        let mut place = rig.start(&dialect(GENERIC, thinking), Some(&tools), None, thinking);
        if thinking {
            rig.write(&mut *place, "{\"name\": \"first\", \"x\": 1}</think>\n");
        }
        rig.write(&mut *place, text);
        assert!(matches!(place.allowed().unwrap(), Allowed::Mask(_)), "{text}");
        let Some(rest) = rig.scribble(&mut *place, 5) else { continue };
        let whole = format!("{text}{rest}");
        let mut parser =
            Parser::new(Some(GENERIC), None, AnswerStart::Turn).with_bare_calls(vec!["first".into(), "second".into()], Vec::new());
        let pieces = [parser.push(whole.clone().into()), parser.finish(false)].concat();
        let [Piece::CallStart { call: 0, .. }, Piece::Arguments { call: 0, text: arguments }] = &pieces[..] else {
            panic!("{whole}: {pieces:?}")
        };
        let value: Value = serde_json::from_str(arguments).unwrap();
        assert!(value["on"].is_boolean() && value.as_object().unwrap().len() == 2, "{arguments}");
    }
    for text in ["{\"name\": \"firstly\", \"age\": 3}", "Here: {\"name\": \"first\", \"x\": 1}"] {
        let mut place = rig.start(&dialect(GENERIC, false), Some(&tools), None, false);
        rig.write(&mut *place, text);
        assert_eq!(place.allowed().unwrap(), Allowed::All, "{text}");
    }
}

#[test]
fn a_format_holds_after_reasoning() {
    let rig = Rig::new();
    let format = Format::Choice(vec!["yes".into(), "no".into()]);
    for opened in [false, true] {
        let mut place = rig.start(&dialect(GENERIC, true), None, Some(&format), opened);
        if !opened {
            let mut direct = rig.start(&dialect(GENERIC, true), None, Some(&format), false);
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

/// Whether a text matches a format.
type Fits<'a> = &'a dyn Fn(&str) -> bool;

/// An answer's text matches its format, including white space.
#[test]
fn a_format_may_begin_with_white_space() {
    let rig = Rig::new();
    let choice = |texts: &[&str]| Format::Choice(texts.iter().map(|&text| text.into()).collect());
    let is_one = |texts: &'static [&'static str]| move |text: &str| texts.contains(&text);
    let formats: [(Format, Fits); 5] = [
        (choice(&[" yes", " no"]), &is_one(&[" yes", " no"])),
        (choice(&["\n\n\nyes", "\n", "  "]), &is_one(&["\n\n\nyes", "\n", "  "])),
        (Format::Regex("[ ]{3}".into()), &|text| text == "   "),
        (Format::Lark("start: /[ \\t\\n]{2}/ \"x\"".into()), &|text| text.trim() == "x" && text.len() == 3),
        (Format::JsonObject, &|text| text.starts_with('{')),
    ];
    for thinking in THINKING {
        let dialect = Dialect { thinking: Some(thinking), ..dialect(GENERIC, true) };
        let opens: &[Option<bool>] = if thinking.open.is_empty() { &[None] } else { &[None, Some(false), Some(true)] };
        for (((format, fits), reasons), seed) in formats
            .iter()
            .flat_map(|format| opens.iter().map(move |reasons| (format, reasons)))
            .flat_map(|all| (0..4).map(move |seed| (all, seed)))
        {
            let opened = *reasons == Some(true);
            let mut place = rig.start(&dialect, None, Some(format), opened);
            let thought = [if opened { "" } else { thinking.open }, "Hm.", thinking.close];
            let written = if reasons.is_some() { &thought[..] } else { &[] };
            written.iter().for_each(|part| rig.write(&mut *place, part));
            let Some(answer) = rig.scribble(&mut *place, seed) else { continue };
            let mut parser = Parser::new(None, Some(thinking), AnswerStart::opened(opened)).with_format();
            let pieces = [parser.push((written.concat() + &answer).into()), parser.finish(false)].concat();
            let text: String =
                pieces.iter().filter_map(|piece| if let Piece::Text(text) = piece { Some(text.text.as_str()) } else { None }).collect();
            assert!(fits(&text), "{}: {format:?}: {answer:?} became {text:?}", thinking.open);
        }
    }
}

/// An answer that continues a text does not reason first, and has no tag before its text.
#[test]
fn a_format_holds_for_a_text_that_is_continued() {
    let rig = Rig::new();
    for thinking in THINKING {
        let dialect = Dialect { thinking: Some(thinking), ..dialect(GENERIC, true) };
        let format = Format::Choice(vec![" yes".into()]);
        let rules = Rules { dialect: &dialect, grammars: &rig.grammars, tools: None, format: Some(&format), entry: AnswerStart::Text };
        let mut place = rules.grammar().unwrap().unwrap().start();
        assert_eq!(rig.scribble(&mut *place, 1).as_deref(), Some(" yes"), "{}", thinking.open);
    }
}

/// Writes 40 random tokens that the rules allow, and then `close`.
fn think(rig: &Rig, place: &mut dyn Constraint, close: &str, seed: u64) {
    for step in 0..40 {
        let allowed = place.allowed().unwrap();
        let Allowed::Mask(words) = allowed else { panic!("nothing is forbidden in a thought: {allowed:?}") };
        for id in rig.tokenizer.end_ids() {
            assert_eq!(words[*id as usize / 32] >> (id % 32) & 1, 0, "the answer may end in a thought");
        }
        let id = (rng::uniform(seed, step) * rig.tokenizer.vocab_size() as f64) as u32;
        if words[id as usize / 32] >> (id % 32) & 1 == 1 && !rig.tokenizer.token_bytes(id, true).unwrap_or_default().contains(&b'<') {
            place.accept(id).unwrap();
        }
    }
    rig.write(place, close);
}

#[test]
fn an_answer_cannot_end_in_a_thought_before_its_rules_are_met() {
    let rig = Rig::new();
    let format = Format::Choice(vec!["yes".into(), "no".into()]);
    let (required, named) = (tools(ToolChoice::Required), tools(ToolChoice::Named("second".into())));
    for (tools, format) in [(Some(&required), None), (Some(&named), None), (None, Some(&format)), (None, Some(&Format::JsonObject))] {
        for (opened, thinking) in [false, true]
            .into_iter()
            .flat_map(|opened| THINKING[1..].iter().filter(|thinking| !thinking.open.is_empty()).map(move |thinking| (opened, thinking)))
        {
            let dialect = Dialect { thinking: Some(thinking), ..dialect(GENERIC, true) };
            let mut place = rig.start(&dialect, tools, format, opened);
            if !opened {
                rig.write(&mut *place, thinking.open);
            }
            think(&rig, &mut *place, thinking.close, 7);
            let Some(text) = rig.scribble(&mut *place, 3) else { continue };
            let text = text.trim_start().strip_prefix(thinking.head.trim_start()).unwrap_or(&text).to_owned();
            match (tools, format) {
                (Some(_), _) => check_call(GENERIC, text.trim_start(), &["first", "second"]),
                (None, Some(Format::Choice(_))) => assert!(["yes", "no"].contains(&text.trim()), "{text}"),
                _ => assert!(serde_json::from_str::<Value>(&text).unwrap().is_object(), "{text}"),
            }
        }
    }
    // An optional call may be left out, so the model may end at any time.
    let mut place = rig.start(&dialect(GENERIC, true), Some(&tools(ToolChoice::Auto)), None, true);
    rig.write(&mut *place, "Hm.");
    assert_eq!(place.allowed().unwrap(), Allowed::All);
}

/// Strings, numbers, lists and optional arguments that are written one by one follow their schemas.
#[test]
fn arguments_one_by_one_follow_their_schemas() {
    let rig = Rig::new();
    let properties = json!({
        "note": {"type": "string"},
        "code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]$"},
        "short": {"type": "string", "minLength": 1, "maxLength": 3},
        "count": {"type": "integer"},
        "list": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        "unit": {"anyOf": [{"enum": ["C", "F"]}, {"type": "null"}]},
    });
    let mut tools = tools(ToolChoice::Named("first".into()));
    tools.tools[0].parameters =
        Some(json!({"type": "object", "properties": properties, "required": ["code", "short", "count", "list", "unit"]}));
    let mut ended = 0;
    for syntax in SYNTAXES.iter().filter(|syntax| syntax.arguments != Arguments::Json) {
        for seed in 0..3 {
            let mut place = rig.start(&dialect(syntax, false), Some(&tools), None, false);
            let Some(text) = rig.scribble_with(&mut *place, seed, hint(syntax)) else { continue };
            let mut parser = Parser::new(Some(syntax), None, AnswerStart::Turn).with_tools(&tools);
            let pieces = [parser.push(text.clone().into()), parser.finish(false)].concat();
            let arguments =
                pieces.iter().filter_map(|piece| if let Piece::Arguments { text, .. } = piece { Some(text.as_str()) } else { None });
            let arguments: String = arguments.collect();
            let value: Value = serde_json::from_str(&arguments).unwrap_or_else(|error| panic!("{text}: {arguments}: {error}"));
            let code = value["code"].as_str().unwrap_or_else(|| panic!("{text}: {arguments}"));
            assert!(code.len() == 3 && code.as_bytes()[2].is_ascii_digit(), "{arguments}");
            assert!((1..=3).contains(&value["short"].as_str().unwrap().chars().count()), "{text}: {arguments}");
            assert!(value["count"].is_number() && value["list"].as_array().unwrap().len() <= 2, "{arguments}");
            assert!(value["unit"].is_null() || ["C", "F"].iter().any(|unit| value["unit"] == *unit), "{arguments}");
            let names = ["note", "code", "short", "count", "list", "unit"];
            assert!(value.as_object().unwrap().keys().all(|key| names.contains(&key.as_str())), "{arguments}");
            ended += 1;
        }
    }
    assert!(ended > SYNTAXES.len() / 2, "{ended}");
}

#[test]
fn no_argument_is_invented() {
    let rig = Rig::new();
    let mut open = tools(ToolChoice::Named("first".into()));
    open.tools[0].parameters = Some(json!({"type": "object", "properties": {"on": {"type": "boolean"}}}));
    let allows = |tools: &Tools, text: &str| {
        let mut place = rig.start(&dialect(GENERIC, false), Some(tools), None, false);
        rig.tokenizer.encode_within(text).into_iter().try_for_each(|id| place.accept(id)).is_ok()
    };
    let call = |key: &str| format!("<tool_call>\n{{\"name\": \"first\", \"arguments\": {{\"{key}\": true");
    assert!(allows(&open, &call("on")) && !allows(&open, &call("off")));
    open.tools[0].parameters.as_mut().unwrap()["additionalProperties"] = true.into();
    assert!(allows(&open, &call("off")));
}

#[test]
fn an_invalid_schema_is_blamed_on_its_tool() {
    let rig = Rig::new();
    let mut tools = tools(ToolChoice::Auto);
    tools.tools[1].parameters = Some(json!({"properties": {"a": {"pattern": "["}}}));
    let dialect = dialect(GENERIC, false);
    let rules = Rules { dialect: &dialect, grammars: &rig.grammars, tools: Some(&tools), format: None, entry: AnswerStart::Turn };
    let RuleError { subject, error } = rules.grammar().unwrap_err();
    assert!(subject == Subject::ToolParameters(1) && error.to_string().starts_with("#/properties/a"), "{error}");
}

/// The schemas that rules follow if the second tool's schema is `schema`.
fn followed(rig: &Rig, syntax: &'static Syntax, schema: Value, strict: bool) -> Result<Vec<Value>, Subject> {
    let mut tools = tools(ToolChoice::Auto);
    (tools.tools[1].parameters, tools.tools[1].strict) = (Some(schema), strict);
    let dialect = dialect(syntax, false);
    let rules = Rules { dialect: &dialect, grammars: &rig.grammars, tools: Some(&tools), format: None, entry: AnswerStart::Turn };
    let found = rules.followed().map_err(|error| error.subject)?;
    assert_eq!(found.tools.is_some(), !found.loosened.is_empty());
    assert!(found.loosened.iter().all(|(name, _)| name == "second"), "{:?}", found.loosened);
    Ok(found.tools.unwrap_or(tools).tools.iter().map(Tool::schema).collect())
}

#[test]
fn a_schema_that_cannot_be_followed_is_loosened_unless_it_is_strict() {
    let rig = Rig::new();
    let first = tools(ToolChoice::Auto).tools[0].schema();
    let of = |mut schema: Value| {
        schema["type"] = "object".into();
        schema
    };
    let one = |member: Value| of(json!({"properties": {"a": member}}));
    let nothing = json!({"properties": {"a": {"type": "strin"}}});
    for (given, due) in [
        (one(json!({"type": "array", "uniqueItems": true})), one(json!({"type": "array"}))),
        (one(json!({"not": {}})), one(json!({}))),
        (one(json!({"type": "string", "pattern": "["})), one(json!({"type": "string"}))),
        (of(json!({"dependencies": {"a": ["b"]}})), of(json!({}))),
        (of(nothing), of(json!({}))),
    ] {
        assert_eq!(followed(&rig, GENERIC, given.clone(), false), Ok(vec![first.clone(), due]), "{given}");
        assert_eq!(followed(&rig, GENERIC, given.clone(), true), Err(Subject::ToolParameters(1)), "{given}");
    }
}

#[test]
fn every_family_follows_what_it_can_of_a_schema() {
    let rig = Rig::new();
    let either = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"allOf": [{"minimum": 3}, {"type": "integer"}]}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}], "propertyNames": {"maxLength": 3}});
    for syntax in SYNTAXES.iter().chain([GENERIC]) {
        let found = followed(&rig, syntax, either.clone(), false).unwrap();
        assert_eq!(found[1]["properties"]["a"], json!({"type": "string"}), "{}: {}", syntax.name, found[1]);
    }
}

#[test]
fn references_to_each_level_of_a_schema_have_a_bound() {
    let rig = Rig::new();
    let bottom = json!({"enum": ["x".repeat(20_000)]});
    let nested = (0..60).fold(bottom, |inner, _| json!({"type": "object", "properties": {"a": inner}, "additionalProperties": false}));
    let refs = (0..60).map(|i| (format!("r{i}"), json!({"$ref": format!("#/$defs/n{}", "/properties/a".repeat(i))})));
    let refs: serde_json::Map<String, Value> = refs.collect();
    let schema = json!({"type": "object", "properties": refs, "$defs": {"n": nested}, "additionalProperties": false});
    for syntax in SYNTAXES.iter().filter(|syntax| syntax.arguments != Arguments::Json) {
        let start = Instant::now();
        let found = followed(&rig, syntax, schema.clone(), true);
        println!("{}: {} after {} ms", syntax.name, found.is_ok(), start.elapsed().as_millis());
        assert!(matches!(found, Ok(_) | Err(Subject::ToolParameters(1) | Subject::Tools)), "{}: {found:?}", syntax.name);
        assert!(found.is_err() || !matches!(syntax.arguments, Arguments::Notated(_)), "{}: its rules repeat each level", syntax.name);
        assert!(start.elapsed() < Duration::from_secs(30), "{}", syntax.name);
    }
}

#[test]
fn the_tool_at_fault_is_named_among_many() {
    let rig = Rig::new();
    let mut tools = tools(ToolChoice::Required);
    let second = tools.tools[1].clone();
    tools.tools.extend((2..120).map(|i| Tool { name: format!("more{i}"), ..second.clone() }));
    tools.tools[77].parameters = Some(json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "["}}}));
    tools.tools[77].strict = true;
    for syntax in [GENERIC].into_iter().chain(SYNTAXES.iter().find(|syntax| syntax.tagged().is_some())) {
        let dialect = dialect(syntax, false);
        let rules = Rules { dialect: &dialect, grammars: &rig.grammars, tools: Some(&tools), format: None, entry: AnswerStart::Turn };
        let start = Instant::now();
        let RuleError { subject, error } = rules.followed().err().expect(syntax.name);
        println!("{}: {error} after {} ms", syntax.name, start.elapsed().as_millis());
        assert!(matches!(subject, Subject::ToolParameters(77)), "{}: {subject:?}: {error}", syntax.name);
    }
}

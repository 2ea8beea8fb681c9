//! Grammars over a real vocabulary, followed by a writer that picks random allowed tokens.

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};

use super::*;
use logits::{Allowed, rng};
use tokenizer::Tokenizer;

/// A compiler over a real vocabulary.
fn compiler() -> (Compiler, Arc<Tokenizer>) {
    crate::testing::compiler(fixtures::vocabulary("smollm2").path())
}

/// Writes a text of random allowed tokens. `None` if the text does not end.
fn write(compiler: &Compiler, tokenizer: &Tokenizer, source: &Source, seed: u64) -> Result<Option<String>, GrammarError> {
    let mut position = compiler.compile(source)?.start();
    let mut ids = Vec::new();
    for step in 0..400 {
        let Allowed::Mask(words) = position.allowed().unwrap() else { return Ok(Some(tokenizer.decode(&ids, true))) };
        let allowed: Vec<u32> = (0..tokenizer.vocab_size() as u32).filter(|id| words[*id as usize / 32] >> (id % 32) & 1 == 1).collect();
        if allowed.iter().any(|id| tokenizer.end_ids().contains(id)) {
            return Ok(Some(tokenizer.decode(&ids, true)));
        }
        let id = allowed[(rng::uniform(seed, step) * allowed.len() as f64) as usize];
        position.accept(id).unwrap();
        ids.push(id);
    }
    Ok(None)
}

#[test]
fn a_text_that_follows_a_schema_is_json_that_satisfies_it() {
    let (compiler, tokenizer) = compiler();
    let schema = json!({"type": "object", "required": ["a", "b"], "additionalProperties": false,
        "properties": {"a": {"enum": ["x", "yy", 3]}, "b": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4}}});
    let source = Source::new("start: @answer").with_schema("answer", &schema).unwrap();
    let mut ended = 0;
    for seed in 0..20 {
        let Some(text) = write(&compiler, &tokenizer, &source, seed).unwrap() else { continue };
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert!(["x", "yy"].iter().any(|x| value["a"] == *x) || value["a"] == 3, "{text}");
        assert!((2..=4).contains(&value["b"].as_array().unwrap().len()), "{text}");
        ended += 1;
    }
    assert!(ended > 10, "{ended}");
    assert_eq!(compiler.num_kept(), 1, "the same grammar is compiled once");
}

#[test]
fn regular_expressions_lark_grammars_and_literals_are_followed() {
    let (compiler, tokenizer) = compiler();
    let cases = [
        Source::new("start: @answer").with_regex("answer", "[a-c]{3}/[0-9]{2}").unwrap(),
        Source::new("start: @answer").with_lark("answer", "start: word \"/\" num\nword: /[abc]{3}/\nnum: /[0-9]{2}/").unwrap(),
        Source::new(format!("start: {} | {}", lark_string("abc/12"), lark_string("cba/21"))),
    ];
    for source in cases {
        for seed in 0..5 {
            let text = write(&compiler, &tokenizer, &source, seed).unwrap().expect("an end");
            let bytes = text.as_bytes();
            assert!(bytes.len() == 6 && bytes[..3].iter().all(|b| b"abc".contains(b)) && bytes[3] == b'/', "{text}");
            assert!(bytes[4..].iter().all(u8::is_ascii_digit), "{text}");
        }
    }
}

#[test]
fn unsupported_and_oversized_grammars_are_refused_with_the_place_in_the_schema() {
    let (compiler, _) = compiler();
    let schema = |schema: Value| Source::new("start: @answer").with_schema("answer", &schema).and_then(|source| compiler.compile(&source));
    let refused = |value: Value, what: &str| {
        let start = Instant::now();
        let error = schema(value.clone()).err().unwrap_or_else(|| panic!("{what}: the schema was accepted")).to_string();
        println!("{:>6} ms  {error}", start.elapsed().as_millis());
        assert!(error.contains(what), "{what}: {error}");
    };
    refused(json!({"type": "object", "properties": {"a": {"not": {"type": "string"}}}}), "#/properties/a/not");
    refused(json!({"anyOf": [{"type": "array", "items": {"pattern": "(?<=x)*"}}]}), "#/anyOf/0/items");
    refused(json!({"pattern": "["}), "#");
    refused(json!({"type": "array", "items": {"pattern": "a\\"}}), "lone backslash");
    refused(json!({"patternProperties": {"a\\": {}}}), "lone backslash");
    refused(json!({"$ref": "http://169.254.169.254/x"}), "#");
    refused(json!(false), "false");
    refused(json!({"type": "integer", "minimum": 3, "maximum": 1}), "#");
    refused(json!({"type": "object", "properties": {"a": {"type": "strin"}}}), "#/properties/a");
    refused(json!({"pattern": format!("{}{}", "(".repeat(5000), ")".repeat(5000))}), "#");
    for regex in ["\\", "a\\", "a\\\\\\"] {
        assert!(Source::new("start: @answer").with_regex("answer", regex).is_err(), "{regex}: its last backslash escapes nothing");
    }
    for regex in ["[", "(?<=x)*", "(?=a)b", "a\\\\["] {
        let source = Source::new("start: @answer").with_regex("answer", regex).unwrap();
        println!("{}", compiler.compile(&source).expect_err(regex));
    }
    let chain = |len: usize| {
        let defs = (0..len).map(|i| (format!("d{i}"), json!({"$ref": format!("#/$defs/d{}", (i + 1) % len)})));
        json!({"$ref": "#/$defs/d0", "$defs": Value::Object(defs.collect())})
    };
    for len in [250, 1000, 1900, 60_000] {
        let start = Instant::now();
        let result = schema(chain(len)).map(drop);
        println!("a chain of {len}: {:?} after {} ms", result, start.elapsed().as_millis());
        assert!(len < 2000 || result.is_err());
    }
    for value in [json!({"$ref": "#"}), json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})] {
        println!("{value}: {:?}", schema(value.clone()).map(drop));
    }
    let wide =
        json!({"type": "object", "properties": Value::Object((0..1999).map(|i| (format!("p{i}"), json!({"type": "string"}))).collect())});
    let start = Instant::now();
    println!("1,999 properties: {:?} after {} ms", schema(wide).map(drop), start.elapsed().as_millis());
    let start = Instant::now();
    let source = Source::new("start: @answer").with_regex("answer", "(x{1,1000}){1,1000}").unwrap();
    println!("(x{{1,1000}}){{1,1000}}: {:?} after {} ms", compiler.compile(&source).map(drop), start.elapsed().as_millis());
    let any_of = |i: usize| json!({"anyOf": (0..4).map(|k| json!({"properties": {format!("p{i}"): {"const": k}}})).collect::<Vec<_>>()});
    let start = Instant::now();
    let product = json!({"allOf": (0..7).map(any_of).collect::<Vec<_>>()});
    println!("4^7 alternatives: {:?} after {} ms", schema(product).map(drop), start.elapsed().as_millis());
}

/// Whether a grammar lets a text through, and lets it end there.
fn takes(compiler: &Compiler, tokenizer: &Tokenizer, source: &Source, text: &str) -> bool {
    let mut position = compiler.compile(source).unwrap().start();
    let allows = |allowed: &Allowed, id: u32| match allowed {
        Allowed::Mask(words) => words[id as usize / 32] >> (id % 32) & 1 == 1,
        Allowed::All => true,
        Allowed::End => tokenizer.end_ids().contains(&id),
    };
    for id in tokenizer.encode(text, false) {
        if !allows(&position.allowed().unwrap(), id) || position.accept(id).is_err() {
            return false;
        }
    }
    let allowed = position.allowed().unwrap();
    tokenizer.end_ids().iter().any(|id| allows(&allowed, *id))
}

#[test]
fn a_dot_inside_a_json_string_is_any_character_in_its_one_form() {
    let (compiler, tokenizer) = compiler();
    let source = Source::new("start: @text").with_quoted_regex("text", "(?s:.)").unwrap();
    for c in ('\0'..='\u{ff}').chain(['\u{2028}', '\u{ffff}', '\u{1f600}', '\u{10ffff}']).filter(|c| *c != '\u{7f}') {
        let json = Value::from(c.to_string()).to_string();
        assert!(takes(&compiler, &tokenizer, &source, &json[1..json.len() - 1]), "{json}");
    }
    for other in ["\n", "\"", "\\", "\\u000a", "\\u0020", "\\x", "ab", ""] {
        assert!(!takes(&compiler, &tokenizer, &source, other), "{other:?}");
    }
}

#[test]
fn a_text_that_becomes_too_long_is_refused_with_its_name() {
    let (compiler, _) = compiler();
    for (name, source) in [
        ("dots", Source::default().with_quoted_regex("dots", &".".repeat(300_000))),
        ("words", Source::default().with_quoted_regex("words", &r"\w".repeat(10_000))),
        ("terminals", Source::default().with_quoted_lark("terminals", &format!("start: {}", r"/\w/ ".repeat(10_000)))),
    ] {
        let (part, error) = compiler.compile(&source.unwrap()).expect_err(name).split();
        assert_eq!(part.as_deref(), Some(name));
        assert!(error.to_string().contains("more than 1048576 bytes"), "{error}");
    }
}

#[test]
fn all_grammars_of_a_source_have_a_bound() {
    let text = "x".repeat((1 << 20) - 100);
    let mut source = Source::default();
    for name in ["a", "b", "c", "d"] {
        source = source.with_regex(name, &text).unwrap();
    }
    let error = source.clone().with_schema("e", &json!({"enum": ["x".repeat(1000)]})).unwrap_err();
    assert!(error.to_string().contains("more than 4194304 bytes together"), "{error}");
    assert!(source.with_regex("e", &text.repeat(2)).unwrap_err().to_string().contains("expected at most 1048576"));
}

#[test]
fn at_most_64_compiled_grammars_are_kept() {
    let (compiler, _) = compiler();
    for i in 0..80 {
        compiler.compile(&Source::new(format!("start: \"{i}\""))).unwrap();
    }
    assert_eq!(compiler.num_kept(), 64);
}

#[test]
fn a_grammar_that_is_expensive_to_follow_fails_with_the_reason() {
    let (compiler, tokenizer) = compiler();
    let cases = [
        ("start: e\ne: e e | e e e | /[a-z ]/ | ", "too long to follow"),
        ("start: (((/[a-z]/{0,50}){0,50}){0,50}){0,50}", "follow"),
        ("start: /.*[a-f].{24}x/", "too many"),
    ];
    for (lark, reason) in cases {
        let start = Instant::now();
        let mut position = compiler.compile(&Source::new(lark)).unwrap().start();
        let letters: Vec<u32> = ('a'..='p').map(|letter| tokenizer.encode(&letter.to_string(), false)[0]).collect();
        let mut step = |step| position.allowed().and_then(|_| position.accept(letters[(rng::uniform(1, step) * 16.0) as usize])).err();
        let error = (0..1000).find_map(&mut step).expect(lark);
        println!("{lark}: {error} after {} ms", start.elapsed().as_millis());
        assert!(error.contains(reason), "{error}");
        assert!(start.elapsed().as_secs() < 60, "{lark}: {:?}", start.elapsed());
        assert!(position.allowed().is_err(), "the error is permanent");
    }
}

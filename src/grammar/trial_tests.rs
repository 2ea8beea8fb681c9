//! Checks how the answers of the process that compiles on trial are read.

use serde_json::json;

use super::*;
use crate::vocab::Vocabulary;

#[test]
fn a_source_and_an_outline_survive_the_way_to_the_child() {
    let source = Source::new("start: @a @b").with_schema("a", &json!({"type": "object"})).unwrap().with_lark("b", "start: \"x\"").unwrap();
    let source = source.with_gbnf("c", "root ::= [a-c]").unwrap().with_quoted_regex("d", "a|\n").unwrap();
    assert_eq!(Source::of_text(&source.text()).unwrap().text(), source.text());
    assert!(!source.text().contains('\n'), "one line");
    for malformed in ["null", "[]", "[1]", r#"["x", ["a", "other", "1"]]"#, r#"["x", []]"#, r#"["x", ["a", "gbnf", {}]]"#] {
        assert!(Source::of_text(malformed).is_none(), "{malformed}");
    }
    let (compiler, tokenizer) = crate::testing::compiler(fixtures::vocabulary("smollm2").path());
    let outline = Vocabulary::of(&tokenizer, compiler.vocab_size()).outline();
    let read = Vocabulary::of_outline(&outline).unwrap();
    assert_eq!(read.outline(), outline);
    let trie = read.environment();
    let end = tokenizer.end_ids()[0];
    assert_eq!(trie.tok_trie().token(end)[1..], *tokenizer.token_text(end).unwrap().as_bytes());
    for malformed in [json!(null), json!({"size": 2, "ends": [], "words": [[2, 1]]}), json!({"size": 2, "ends": [], "words": [[1, 256]]})] {
        assert!(Vocabulary::of_outline(&malformed).is_none(), "{malformed}");
    }
}

#[test]
fn tests_compile_without_trials() {
    assert_eq!(run(&"null".into(), "[\"start: 1\"]"), Ok(None));
}

#[test]
fn an_answer_says_what_was_found_and_of_which_part() {
    let invalid = |text: &str| GrammarError::Invalid(text.into());
    let part = |error: GrammarError| error.of_part("a");
    let time = GrammarError::Expensive("more than 1 s".into());
    for (answer, code, due) in [
        ("part \"\"\ncompiled 7\n", Some(0), Ok(TrialResult { bytes: 7, finished: None })),
        (
            "part \"a\"\npart \"\"\nfinished [\"start: x\"]\ncompiled 7\n",
            Some(0),
            Ok(TrialResult { bytes: 7, finished: Some(Source::new("start: x")) }),
        ),
        ("part \"a\"\nrefused \"no\"\n", Some(0), Err(part(invalid("no")))),
        ("part \"a\"\npart \"\"\nrefused \"no\"\nrefused \"no: here\"\n", Some(0), Err(invalid("no: here"))),
        ("part \"a\"\n", Some(OUT_OF_TIME), Err(part(time.clone()))),
        ("part \"a\"\npart \"\"\n", Some(OUT_OF_TIME), Err(time)),
        ("", Some(OUT_OF_MEMORY), Err(GrammarError::Expensive("more than 64 MiB of memory".into()))),
        ("part \"\"\ncompiled 7\n", None, Err(GrammarError::Expensive("more stack, or more than 64 MiB of memory,".into()))),
        ("", Some(1), Err(invalid("the grammar cannot be compiled: the compiler ended unexpectedly"))),
    ] {
        assert_eq!(read(answer, code), due, "{answer} {code:?}");
    }
}

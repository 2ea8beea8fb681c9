use serde_json::json;

use super::*;

#[test]
fn a_source_and_an_outline_survive_the_way_to_the_child() {
    let source = Source::new("start: @a @b").with_schema("a", &json!({"type": "object"})).unwrap().with_lark("b", "start: \"x\"").unwrap();
    let parts = source.parts();
    assert_eq!(Source::of_parts(&parts).unwrap().parts(), parts);
    for malformed in [json!(null), json!([]), json!([1]), json!(["x", ["a", "other", 1]]), json!(["x", []])] {
        assert!(Source::of_parts(&malformed).is_none(), "{malformed}");
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
    assert_eq!(run(&json!(null), &Source::new("start: \"a\"")), Ok(None));
}

#[test]
fn the_use_of_this_process_is_known() {
    assert!(processor_time() > Duration::ZERO);
    assert!(memory() > 1 << 20);
}

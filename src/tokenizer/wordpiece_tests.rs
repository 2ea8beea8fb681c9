//! Compares WordPiece with Hugging Face's library (`tests/golden/make_wordpiece.py`).

use std::sync::LazyLock;

use gguf::{GgufBuilder, GgufFile};
use proptest::prelude::*;
use serde_json::Value;

use crate::bert_chars::{is_accent, is_dropped, is_ideograph, is_punctuation};
use crate::bert_text::{self, BertText};
use crate::tests::least_time;
use crate::vocab::TokenType;
use crate::{Pair, Tokenizer, TokenizerError};

static GOLDEN: LazyLock<Value> = LazyLock::new(|| serde_json::from_str(&fixtures::packed_text("tokenizers/wordpiece.json.gz")).unwrap());

fn golden(name: &str) -> &'static Value {
    &GOLDEN["vocabularies"][name]
}

fn list<T: serde::de::DeserializeOwned>(value: &Value) -> Vec<T> {
    serde_json::from_value(value.clone()).unwrap()
}

/// The vocabulary as converters write it to GGUF files: tokens that begin a word have the mark `▁`, and the others have none.
fn converted(name: &str) -> GgufBuilder {
    let tokenizer = &golden(name)["tokenizer"];
    let mut tokens: Vec<(&str, u64)> =
        tokenizer["model"]["vocab"].as_object().unwrap().iter().map(|(t, id)| (&**t, id.as_u64().unwrap())).collect();
    tokens.sort_unstable_by_key(|(_, id)| *id);
    let special: Vec<&str> = tokenizer["added_tokens"].as_array().unwrap().iter().map(|token| token["content"].as_str().unwrap()).collect();
    let marked = |token: &str| match token.strip_prefix("##") {
        _ if special.contains(&token) => token.to_owned(),
        Some(rest) => rest.to_owned(),
        None => format!("▁{token}"),
    };
    let id = |text: &str| tokens.iter().find(|(token, _)| *token == text).unwrap().1 as u32;
    GgufBuilder::new()
        .kv("general.architecture", "bert")
        .kv("tokenizer.ggml.model", "bert")
        .kv("tokenizer.ggml.pre", "default")
        .kv("tokenizer.ggml.tokens", tokens.iter().map(|(token, _)| marked(token)).collect::<Vec<_>>())
        .kv("tokenizer.ggml.token_type", tokens.iter().map(|(token, _)| if special.contains(token) { 3i32 } else { 1 }).collect::<Vec<_>>())
        .kv("tokenizer.ggml.unknown_token_id", id("[UNK]"))
        .kv("tokenizer.ggml.seperator_token_id", id("[SEP]"))
        .kv("tokenizer.ggml.padding_token_id", id("[PAD]"))
        .kv("tokenizer.ggml.cls_token_id", id("[CLS]"))
        .kv("tokenizer.ggml.mask_token_id", id("[MASK]"))
}

fn load(builder: &GgufBuilder) -> Result<Tokenizer, TokenizerError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    builder.write(file.path()).unwrap();
    Tokenizer::from_gguf(&GgufFile::open(file.path()).unwrap())
}

fn from_json(name: &str) -> Tokenizer {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    std::fs::write(&path, golden(name)["tokenizer"].to_string()).unwrap();
    Tokenizer::from_json(&path).unwrap()
}

#[test]
fn every_character_is_of_the_sets_that_the_library_puts_it_in() {
    type Set = fn(char) -> bool;
    let sets: [(&str, Set); 5] = [
        ("dropped", is_dropped),
        ("ideographs", is_ideograph),
        ("accents", is_accent),
        ("punctuation", is_punctuation),
        ("spaces", char::is_whitespace),
    ];
    for (name, holds) in sets {
        let bounds: Vec<u32> = list(&GOLDEN["characters"][name]);
        let differ = ('\0'..=char::MAX).filter(|&c| holds(c) != (bounds.partition_point(|&bound| bound <= u32::from(c)) % 2 == 1));
        let differ: Vec<String> = differ.map(|c| format!("{:x}", u32::from(c))).collect();
        assert!(differ.is_empty(), "{name}: {differ:?}");
    }
}

#[test]
fn texts_of_all_scripts_give_the_words_and_ids_of_the_library() {
    for name in ["uncased", "cased"] {
        let rules = BertText::cased(name == "cased");
        let (gguf, json) = (load(&converted(name)).unwrap(), from_json(name));
        let mut bad = Vec::new();
        for case in golden(name)["cases"].as_array().unwrap() {
            let (text, ids) = (case["text"].as_str().unwrap(), list::<u32>(&case["ids"]));
            let mut words = Vec::new();
            bert_text::words(&rules.normalise(text), |word| words.push(word.to_owned()));
            let decoded = [true, false].map(|special| gguf.decode(&ids, special));
            let right = [&gguf, &json].map(|tokenizer| tokenizer.encode_prompt(text, 9999).unwrap() == ids);
            if words != list::<String>(&case["words"]) || right != [true; 2] || decoded[..] != list::<String>(&case["decoded"]) {
                bad.push(format!("{name} {text:?} {right:?}\n  {words:?}\n  {}\n  {decoded:?}\n  {}", case["words"], case["decoded"]));
            }
        }
        assert!(bad.is_empty(), "{} differ\n{}", bad.len(), bad[..bad.len().min(5)].join("\n"));
    }
}

#[test]
fn pairs_are_those_of_the_library() {
    for name in ["uncased", "cased"] {
        for tokenizer in [load(&converted(name)).unwrap(), from_json(name)] {
            for case in golden(name)["pairs"].as_array().unwrap() {
                let texts: Vec<String> = list(&case["texts"]);
                let ids: Vec<u32> = list(&case["ids"]);
                let second = list::<u32>(&case["types"]).iter().position(|&kind| kind == 1).unwrap();
                assert_eq!(tokenizer.encode_pair(&texts[0], &texts[1], ids.len()), Some(Pair { ids: ids.clone(), second }), "{texts:?}");
                assert_eq!(tokenizer.encode_pair(&texts[0], &texts[1], ids.len() - 1), None);
            }
        }
    }
}

#[test]
fn what_stands_between_the_texts_of_a_pair_is_as_the_file_says() {
    let between = |builder: GgufBuilder| load(&builder).unwrap().encode_pair("x", "x", 9).unwrap().ids.len() - 4;
    let flags = |eos: bool, separator: bool| {
        between(converted("uncased").kv("tokenizer.ggml.add_eos_token", eos).kv("tokenizer.ggml.add_sep_token", separator))
    };
    assert_eq!((between(converted("uncased")), flags(true, false), flags(true, true)), (1, 1, 2));
    let shielded = load(&converted("uncased")).unwrap().encode_pair("[SEP]", "[CLS]", 99).unwrap();
    assert_eq!(shielded.ids.iter().filter(|&&id| id == 4).count(), 2, "control tokens in the texts stay text");
}

#[test]
fn a_file_that_does_not_say_whether_case_counts_is_judged_by_its_words() {
    let encoded = |builder: GgufBuilder| load(&builder).unwrap().encode("The CAFÉ", false);
    let lowercase = |name: &str, on: bool| converted(name).kv("tokenizer.ggml.normalizer.lowercase", on);
    assert_eq!(encoded(converted("uncased")), encoded(lowercase("uncased", true)));
    assert_ne!(encoded(converted("uncased")), encoded(lowercase("uncased", false)));
    assert_eq!(encoded(converted("cased")), encoded(lowercase("cased", false)));
    let strip = |on: bool| encoded(lowercase("uncased", true).kv("tokenizer.ggml.normalizer.strip_accents", on));
    assert!(strip(true) == encoded(converted("uncased")) && strip(false) != strip(true));
}

#[test]
fn special_tokens_are_known_without_types_and_ids() {
    let whole = load(&converted("uncased")).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    converted("uncased").write(file.path()).unwrap();
    let full = GgufFile::open(file.path()).unwrap();
    let bare = GgufBuilder::new()
        .kv("general.architecture", "bert")
        .kv("tokenizer.ggml.model", "bert")
        .kv("tokenizer.ggml.tokens", full.get_strs("tokenizer.ggml.tokens").unwrap().to_vec());
    let bare = load(&bare).unwrap();
    for text in ["the gate [SEP] \u{e000}日𐍈", "[CLS]"] {
        assert_eq!(bare.encode_prompt(text, 99), whole.encode_prompt(text, 99), "{text}");
    }
    assert!(bare.is_control(bare.bos().unwrap()) && bare.is_control(bare.eos().unwrap()));
}

proptest! {
    #[test]
    fn wild_texts_are_encoded_and_decoded(text in "\\PC*|.*|(\\p{M}|\\p{L}| |\\[SEP\\])*", most in 0usize..40) {
        static BOTH: LazyLock<[Tokenizer; 2]> = LazyLock::new(|| ["uncased", "cased"].map(|name| load(&converted(name)).unwrap()));
        for tokenizer in BOTH.iter() {
            let ids = tokenizer.encode(&text, false);
            let is_unknown = |id: u32| tokenizer.token_text(id) == Some("[UNK]");
            prop_assert!(ids.iter().all(|&id| tokenizer.types[id as usize] != TokenType::Control || is_unknown(id)));
            let longer = tokenizer.encode_prompt(&text, most);
            prop_assert_eq!(longer.is_some(), tokenizer.encode(&text, true).len() <= most);
            let again = tokenizer.encode(&tokenizer.decode(&ids, false), false);
            let known: Vec<u32> = ids.iter().copied().filter(|&id| !tokenizer.is_control(id)).collect();
            prop_assert_eq!(again, known, "a decoded text has the same words");
        }
    }
}

#[test]
fn long_texts_take_at_most_a_second_per_megabyte() {
    let tokenizer = load(&converted("uncased")).unwrap();
    for unit in ["a", "x", "é", "e\u{301}", "\u{301}", "日", "한", " ", "\0", ".", "x.", "[SEP]", "unbelievable ", "ΐ"] {
        let text = unit.repeat((1 << 20) / unit.len());
        let (ids, taken) = least_time(1, || tokenizer.encode(&text, true));
        eprintln!("{unit:?}: {} ids, {taken:?}", ids.len());
        assert!(taken.as_secs() < 1, "{unit:?}: {taken:?}");
        assert!(tokenizer.encode_prompt(&text, 4096).is_none_or(|ids| ids.len() < 4099));
    }
}

#[test]
fn malformed_vocabularies_are_refused_by_key() {
    for (key, builder) in [
        ("tokenizer.ggml.seperator_token_id", converted("uncased").kv("tokenizer.ggml.seperator_token_id", 1u32 << 20)),
        ("tokenizer.ggml.mask_token_id", converted("uncased").kv("tokenizer.ggml.mask_token_id", "x")),
        ("tokenizer.ggml.normalizer.lowercase", converted("uncased").kv("tokenizer.ggml.normalizer.lowercase", 1u32)),
        ("tokenizer.ggml.add_sep_token", converted("uncased").kv("tokenizer.ggml.add_sep_token", 1u32)),
        ("tokenizer.ggml.token_type", converted("uncased").kv("tokenizer.ggml.token_type", vec![1i32; 3])),
    ] {
        let error = load(&builder).err().unwrap_or_else(|| panic!("{key} passed")).to_string();
        assert!(error.contains(key), "{key}: {error}");
    }
}

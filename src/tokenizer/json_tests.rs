//! Compares `tokenizer.json` files and SentencePiece's unigram models with the ids of their own libraries
//! (`tests/golden/make_tokenizers.py`).

use std::path::Path;

use serde_json::Value;

use super::*;
use gguf::{GgufBuilder, GgufFile};

fn golden(name: &str) -> Value {
    let path = format!("{}/../../tests/golden/tokenizers/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn from_json(tokenizer: &Value, config: Option<&str>) -> Result<Tokenizer, TokenizerError> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    if let Some(config) = config {
        std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
    }
    Tokenizer::from_json(&dir.path().join("tokenizer.json"))
}

#[test]
fn tokenizer_json_files_give_the_ids_of_hugging_face() {
    let mut bad = Vec::new();
    for name in ["llama3", "qwen2", "deepseek-v3", "gpt-4o", "llama2", "gemma", "unigram"] {
        let golden = golden(name);
        let tokenizer = from_json(&golden["tokenizer"], None).unwrap();
        for case in golden["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            for (got, want) in
                [(tokenizer.encode(text, true), &case["ids"]), (tokenizer.encode_with_bos_eos(text, true), &case["with_ends"])]
            {
                if got != ids(want) {
                    bad.push(format!("{name} {text:?}\n  got  {got:?}\n  want {want}"));
                }
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn tokenizer_config_json_sets_bos_and_eos() {
    let golden = golden("qwen2");
    let config = r#"{"bos_token": null, "eos_token": {"content": "<|end|>"}}"#;
    let tokenizer = from_json(&golden["tokenizer"], Some(config)).unwrap();
    let end = tokenizer.encode("<|end|>", true)[0];
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (None, Some(end)));
    assert!(tokenizer.end_ids().contains(&end));
}

#[test]
fn unsupported_and_malformed_parts_are_refused_by_name() {
    let error_with = |path: &str, value: Value| {
        let mut tokenizer = golden("llama3")["tokenizer"].clone();
        *tokenizer.pointer_mut(path).unwrap() = value;
        from_json(&tokenizer, None).err().unwrap_or_else(|| panic!("{path} passed")).to_string()
    };
    let cases = [
        ("/normalizer", serde_json::json!({"type": "Lowercase"}), "normalizer: `Lowercase`"),
        ("/pre_tokenizer", serde_json::json!({"type": "BertPreTokenizer"}), "pre_tokenizer: `BertPreTokenizer`"),
        ("/pre_tokenizer/pretokenizers/0/pattern", serde_json::json!({"Regex": "(?<=x)y"}), "the pattern `(?<=x)y`"),
        ("/pre_tokenizer/pretokenizers/0/pattern", serde_json::json!({"Regex": "(a+)+b"}), "the pattern `(a+)+b`"),
        ("/pre_tokenizer/pretokenizers/0/pattern", serde_json::json!({"Regex": r"(\p{N"}), r"the pattern `(\p{N` ends too soon"),
        ("/pre_tokenizer/pretokenizers/0/pattern", serde_json::json!({"Regex": "(a{2"}), "the pattern `(a{2` ends too soon"),
        ("/pre_tokenizer/pretokenizers/0/behavior", serde_json::json!("Removed"), "Removed"),
        ("/post_processor", serde_json::json!({"type": "BertProcessing"}), "post_processor: `BertProcessing`"),
        ("/model/type", serde_json::json!("WordPiece"), "model.type: `WordPiece`"),
        ("/model/end_of_word_suffix", serde_json::json!("</w>"), "model.end_of_word_suffix"),
        ("/model/merges/0", serde_json::json!(["no such", "pair"]), "model.merges: entry 0"),
        ("/model/merges/0", serde_json::json!("one"), "model.merges: entry 0"),
        ("/model/vocab", serde_json::json!({"a": u32::MAX}), "the id 4294967295 of `a`"),
        ("/added_tokens/0/lstrip", serde_json::json!(true), "lstrip"),
        ("/model", serde_json::json!(1), "tokenizer.json"),
    ];
    for (path, value, what) in cases {
        let error = error_with(path, value);
        assert!(error.contains(what), "{what:?} is not in {error:?}");
    }
}

#[test]
fn an_unknown_token_beyond_the_vocabulary_is_refused() {
    let vocabulary = |unknown: Value| {
        let model = serde_json::json!({"type": "Unigram", "unk_id": unknown, "vocab": [["<unk>", 0.0], ["a", -1.0]]});
        from_json(&serde_json::json!({"model": model, "added_tokens": [{"id": 2, "content": "<e>", "special": true}]}), None)
    };
    for known in [0.into(), 1.into(), 2.into(), Value::Null] {
        vocabulary(known).unwrap().encode("ab<e>", true);
    }
    for (unknown, expected) in [(3.into(), "model.unk_id is 3, but the vocabulary has 3 tokens"), (u32::MAX.into(), "is 4294967295")] {
        let error = vocabulary(unknown).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(vocabulary((-1).into()).is_err());
}

fn gguf(dir: &Path, builder: &GgufBuilder) -> GgufFile {
    let path = dir.join("model.gguf");
    builder.write(&path).unwrap();
    GgufFile::open(&path).unwrap()
}

#[test]
fn a_tokenizer_json_in_the_same_directory_replaces_a_missing_vocabulary() {
    let dir = tempfile::tempdir().unwrap();
    let bare = gguf(dir.path(), &GgufBuilder::new().kv("general.architecture", "llama"));
    let error = Tokenizer::open(&bare).err().unwrap().to_string();
    assert!(error.contains("tokenizer.ggml.model is missing") && error.contains("tokenizer.json"), "{error}");
    std::fs::write(dir.path().join("tokenizer.json"), golden("llama3")["tokenizer"].to_string()).unwrap();
    let tokenizer = Tokenizer::open(&bare).unwrap();
    assert_eq!(tokenizer.decode(&tokenizer.encode("water", false), false), "water");
}

fn blob(bytes: Vec<u8>) -> gguf::Value {
    gguf::Value::Array(gguf::Array::U8(bytes))
}

#[test]
fn unigram_models_in_gguf_files_give_the_ids_of_sentencepiece() {
    let golden = golden("sentencepiece");
    let list = |key: &str| golden[key].as_array().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let builder = GgufBuilder::new()
        .kv("general.architecture", "t5")
        .kv("tokenizer.ggml.model", "t5")
        .kv("tokenizer.ggml.tokens", list("tokens").iter().map(|t| t.as_str().unwrap().to_owned()).collect::<Vec<_>>())
        .kv("tokenizer.ggml.scores", list("scores").iter().map(|s| s.as_f64().unwrap() as f32).collect::<Vec<_>>())
        .kv("tokenizer.ggml.token_type", list("types").iter().map(|t| t.as_i64().unwrap() as i32).collect::<Vec<_>>())
        .kv("tokenizer.ggml.precompiled_charsmap", blob(list("charsmap").iter().map(|b| b.as_u64().unwrap() as u8).collect()))
        .kv("tokenizer.ggml.unknown_token_id", golden["unknown"].as_u64().unwrap() as u32)
        .kv("tokenizer.ggml.add_space_prefix", true)
        .kv("tokenizer.ggml.remove_extra_whitespaces", true)
        .kv("tokenizer.ggml.add_eos_token", false);
    let tokenizer = Tokenizer::from_gguf(&gguf(dir.path(), &builder)).unwrap();
    for case in list("cases") {
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, false), ids(&case["ids"]), "{text:?}");
    }
    let bytes = list("charsmap").iter().map(|byte| byte.as_u64().unwrap());
    for array in [gguf::Array::I32(bytes.clone().map(|byte| byte as i32).collect()), gguf::Array::U64(bytes.clone().collect())] {
        let wider = builder.clone().kv("tokenizer.ggml.precompiled_charsmap", gguf::Value::Array(array));
        let wider = Tokenizer::from_gguf(&gguf(dir.path(), &wider)).unwrap();
        for case in list("cases") {
            let text = case["text"].as_str().unwrap();
            assert_eq!(wider.encode(text, false), ids(&case["ids"]), "{text:?}");
        }
    }
    let wide = builder.clone().kv("tokenizer.ggml.precompiled_charsmap", vec![256i32]);
    let error = Tokenizer::from_gguf(&gguf(dir.path(), &wide)).err().unwrap().to_string();
    assert!(error.ends_with("precompiled_charsmap is an array with 256 at index 0, which a byte cannot hold, expected an array of bytes"));
    let cut = builder.kv("tokenizer.ggml.precompiled_charsmap", blob(vec![9u8, 0, 0, 0, 1]));
    assert!(Tokenizer::from_gguf(&gguf(dir.path(), &cut)).err().unwrap().to_string().contains("precompiled_charsmap"));
}

#[test]
fn encoding_stops_soon_after_the_permitted_number_of_tokens() {
    for name in ["llama3", "llama2", "unigram"] {
        let tokenizer = from_json(&golden(name)["tokenizer"], None).unwrap();
        let start = std::time::Instant::now();
        for text in ["a".repeat(32 << 20), "water ".repeat(5 << 20), "<|end|>".repeat(4 << 20)] {
            assert!(tokenizer.encode_prompt(&text, 4096).is_none() && tokenizer.encode_rendered(&text, 4096).is_none(), "{name}");
        }
        eprintln!("{name}: {:?}", start.elapsed());
        assert!(start.elapsed() < std::time::Duration::from_secs(10), "{name}: {:?}", start.elapsed());
        let ids = tokenizer.encode_prompt("water runs", 4096).unwrap();
        assert_eq!(tokenizer.encode_prompt("water runs", ids.len()), Some(ids.clone()));
        assert_eq!(tokenizer.encode_prompt("water runs", 1), None);
    }
}

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

const VOCABULARIES: [&str; 8] = ["gpt-2", "llama-bpe", "llama-spm", "qwen2", "phi-3", "deepseek-llm", "falcon", "starcoder"];

fn shared() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/data"))
}

/// A real vocabulary, unpacked once; None where it is not here.
fn vocabulary(name: &str) -> Option<Tokenizer> {
    let packed = shared().join(format!("vocab/ggml-vocab-{name}.gguf.xz"));
    if !packed.exists() {
        eprintln!("skipped: {} is not here", packed.display());
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vocab.gguf");
    let unpack = "import lzma,sys; open(sys.argv[2],'wb').write(lzma.open(sys.argv[1]).read())";
    let unpacked = Command::new("python3").args(["-c", unpack]).arg(&packed).arg(&path).status();
    if !unpacked.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no python3 with lzma to unpack {}", packed.display());
        return None;
    }
    Some(open(&path))
}

fn open(path: &Path) -> Tokenizer {
    let file = GgufFile::open(path).unwrap();
    let start = Instant::now();
    let tokenizer = Tokenizer::from_gguf(&file).unwrap();
    eprintln!("{}: {} tokens, {:?}, {} KiB", path.display(), tokenizer.vocab_size(), start.elapsed(), tokenizer.bytes_held() >> 10);
    tokenizer
}

/// One vocabulary that many tests share.
fn qwen2() -> Option<&'static Tokenizer> {
    static QWEN2: OnceLock<Option<Tokenizer>> = OnceLock::new();
    QWEN2.get_or_init(|| vocabulary("qwen2")).as_ref()
}

fn llama_spm() -> Option<&'static Tokenizer> {
    static LLAMA: OnceLock<Option<Tokenizer>> = OnceLock::new();
    LLAMA.get_or_init(|| vocabulary("llama-spm")).as_ref()
}

#[test]
fn real_vocabularies_give_the_expected_ids() {
    let mut bad = Vec::new();
    for name in VOCABULARIES {
        let Some(tokenizer) = vocabulary(name) else { continue };
        let file = |suffix: &str| std::fs::read_to_string(shared().join(format!("vocab/ggml-vocab-{name}.gguf.{suffix}"))).unwrap();
        let (texts, ids) = (file("inp"), file("out"));
        let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
        let mut passed = 0;
        for (text, line) in texts.iter().zip(ids.lines()) {
            let want: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
            let got = tokenizer.encode(text, false);
            if got == want {
                passed += 1;
            } else {
                bad.push(format!("{name} {text:?}\n  got  {got:?}\n  want {want:?}"));
            }
        }
        eprintln!("{name}: {passed} of {}", ids.lines().count());
        assert_eq!(ids.lines().count(), texts.len() - usize::from(texts.last() == Some(&"")));
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// A directory of real models, named as the reference files are: `PENSTOCK_TEST_MODELS/smollm2-135m-instruct-q4_1.gguf` and so on.
fn real_models() -> Vec<(Tokenizer, serde_json::Value)> {
    let Ok(dir) = std::env::var("PENSTOCK_TEST_MODELS") else {
        eprintln!("skipped: PENSTOCK_TEST_MODELS is not set");
        return Vec::new();
    };
    let names = ["smollm2-135m-instruct-q4_1", "qwen2.5-coder-0.5b-instruct-q4_k_m", "gemma-3-270m-q4_k_m"];
    let paths = names.map(|name| (Path::new(&dir).join(format!("{name}.gguf")), shared().join(format!("reference/{name}.json"))));
    let here = paths.into_iter().filter(|(model, reference)| model.exists() && reference.exists());
    here.map(|(model, reference)| (open(&model), serde_json::from_str(&std::fs::read_to_string(reference).unwrap()).unwrap())).collect()
}

#[test]
fn real_models_give_the_reference_ids() {
    for (tokenizer, reference) in real_models() {
        let prompts = reference.as_array().unwrap();
        for prompt in prompts {
            let want: Vec<u32> = serde_json::from_value(prompt["ids"].clone()).unwrap();
            let text = prompt["text"].as_str().unwrap();
            assert_eq!(tokenizer.encode_rendered(text), want, "{text:?}");
            assert_eq!(tokenizer.encode_with_bos_eos(text, true), want, "{text:?}");
        }
        eprintln!("{} prompts, ends {:?}", prompts.len(), tokenizer.end_ids());
    }
}

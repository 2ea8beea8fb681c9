//! Lists the pre-tokenizers by their GGUF names. The patterns are those of each model's own `tokenizer.json`.

pub(super) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const UFAKZEKA: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const JAIS2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
    r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
);
const QWEN35: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const DEEPSEEK_V3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"##,
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const SPARK: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"##,
    r"|[\r\n]|\s+(?!\S)|\s+"
);
const YOUTU: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const BAILING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const MINICPM5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const CJK: &str = "[一-龥぀-ゟ゠-ヿ]+";
const LINES: &str = r"[^\n]+|[\n]+";
/// Letters that have a case, as listed by DeepSeek's first models. The list is incomplete and follows an old version of Unicode.
const CASED: &str = concat!(
    r"\s?[",
    r"A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF\u0370-\u0373\u0376\u0377",
    r"\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481\u048A-\u052F\u0531-\u0556\u10A0-\u10C5",
    r"\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D",
    r"\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4",
    r"\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC\u1FF2-\u1FF4\u1FF6-\u1FFC\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D",
    r"\u2124\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139\u213C-\u213F\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4",
    r"\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D\uA680-\uA69B\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-\uFB06",
    r"\uFB13-\uFB17\uFF21-\uFF3A\uFF41-\uFF5A𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃",
    "]+"
);

/// Properties that the name of a pre-tokenizer implies besides its patterns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Habits {
    /// Whether a word that is a token is encoded as that token, regardless of the merges.
    pub(super) ignore_merges: bool,
    /// Whether the model was trained with a BOS before each text. Older files do not say so.
    pub(super) adds_bos: bool,
    /// Whether a separator is put between the texts of a pair.
    pub(super) separates: bool,
}

/// The patterns of the pre-tokenizer `name`. None if the name is unknown.
pub(super) fn patterns(name: &str) -> Option<&'static [&'static str]> {
    Some(match name {
        "default" => &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9]{3}"],
        "gpt-2" | "phi-2" | "jina-v1-en" | "jina-v2-code" | "jina-v2-es" | "jina-v2-de" | "jina-es" | "jina-de" | "roberta-bpe" | "mpt"
        | "olmo" | "jais" | "trillion" | "exaone4" | "granite-docling" | "gigachat" | "a.x-4.0" | "mellum" | "modern-bert" => &[GPT2],
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" | "mellum2" => &[r"\p{N}", GPT2],
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "lfm2" | "midm-2.0" | "jina-v5-nano" | "dbrx"
        | "smaug-bpe" | "chatglm-bpe" | "glm4" => &[LLAMA3],
        "qwen2" | "deepseek-r1-qwen" | "stablelm2" | "hunyuan" | "megrez" | "kormo" | "f2llmv2" | "solar-open" | "grok-2" => &[QWEN2],
        "ufakzeka" => &[UFAKZEKA],
        "jais-2" => &[JAIS2],
        "qwen35" => &[QWEN35],
        "tekken" => &[TEKKEN],
        "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" | "granite-embed-multi-97m" => &[GPT4O],
        "deepseek-llm" => &[r"[\r\n]", CASED, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-퟿]+", r"\p{N}+"],
        "deepseek-coder" => &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => &[r"\p{N}{1,3}", CJK, DEEPSEEK_V3],
        "spark2_5" => &[r"\p{N}{1,3}", CJK, SPARK, r"\p{N}"],
        "youtu" => &[r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+", YOUTU],
        "falcon" => &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9]{3}"],
        "bailingmoe" | "bailingmoe2" | "llada-moe" => &[BAILING],
        "seed-coder" => &[SEED_CODER],
        "minicpm5" => &[r"\p{N}{1,3}", MINICPM5],
        "poro-chat" | "bloom" | "gpt3-finnish" => &[BLOOM],
        "viking" => &[BLOOM, r"\p{N}"],
        "laguna" => &[LINES, QWEN2],
        "gemma4" | "sarvam-moe" | "granite-embed-multi-311m" => &[LINES],
        "whitespace" => &[r"\S+"],
        _ => return None,
    })
}

/// Names with distinct patterns or habits, for writing files. Among names with equal ones, the usual name comes first.
const WRITTEN: &[&str] = &[
    "gpt-2",
    "smollm",
    "starcoder",
    "command-r",
    "llama-bpe",
    "dbrx",
    "qwen2",
    "stablelm2",
    "tekken",
    "gpt-4o",
    "llama4",
    "granite-embed-multi-97m",
    "qwen35",
    "falcon",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
    "bailingmoe",
    "seed-coder",
    "minicpm5",
    "youtu",
    "bloom",
    "viking",
    "jais-2",
    "ufakzeka",
    "spark2_5",
    "laguna",
];

/// The names of pre-tokenizers with exactly these patterns, the usual one first.
pub(super) fn names_of(wanted: &[String], ignore_merges: bool) -> Vec<&'static str> {
    let fits = |name: &&str| patterns(name).is_some_and(|patterns| patterns == wanted) && habits(name).ignore_merges == ignore_merges;
    WRITTEN.iter().copied().filter(fits).collect()
}

/// Whether BPE with this pre-tokenizer merges characters instead of bytes.
pub(super) fn over_chars(name: &str) -> bool {
    matches!(name, "sarvam-moe" | "granite-embed-multi-311m" | "whitespace")
}

pub(super) fn habits(name: &str) -> Habits {
    match name {
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2" | "jina-v5-nano" | "tekken" => {
            Habits { ignore_merges: true, adds_bos: true, separates: false }
        }
        "youtu" | "minicpm5" | "granite-embed-multi-97m" => Habits { ignore_merges: true, ..Habits::default() },
        "jina-v1-en" | "jina-v2-code" | "roberta-bpe" => Habits { separates: true, ..Habits::default() },
        _ => Habits::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::Scanner;

    fn scanner(name: &str) -> Scanner {
        Scanner::new(patterns(name).unwrap()).unwrap()
    }

    fn cut<'a>(scanner: &Scanner, text: &'a str) -> Vec<&'a str> {
        let mut out = Vec::new();
        scanner.words(text, &mut |word| out.push(word));
        out
    }

    fn words<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
        cut(&scanner(name), text)
    }

    #[test]
    fn cuts_as_the_patterns_say() {
        assert_eq!(words("gpt-2", "I've  two\n\n cats'  "), ["I", "'ve", " ", " two", "\n\n", " cats", "'", "  "]);
        assert_eq!(words("smollm", "a 12"), ["a", " ", "1", "2"]);
        assert_eq!(words("llama-bpe", "x=12345 \n\n  y'LL"), ["x", "=", "123", "45", " \n\n", " ", " y", "'LL"]);
        assert_eq!(words("qwen2", " (hi)\r\n9"), [" (", "hi", ")\r\n", "9"]);
        assert_eq!(words("falcon", "`a` 12345"), ["`", "a", "`", " ", "123", "45"]);
        assert!(patterns("no such").is_none());
    }

    /// The golden words come from another implementation (`tests/golden/make_pretokenizers.py`).
    #[test]
    fn words_are_those_of_the_reference() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/pretokenizers.json");
        let golden: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let texts: Vec<&str> = golden["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
        let mut bad = Vec::new();
        for case in golden["cases"].as_array().unwrap() {
            let names: Vec<&str> = case["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
            for name in &names {
                assert_eq!(serde_json::json!(patterns(name).unwrap()), case["patterns"], "{name}");
            }
            let scanner = scanner(names[0]);
            for (text, lengths) in texts.iter().zip(case["lengths"].as_array().unwrap()) {
                let words = cut(&scanner, text);
                assert_eq!(words.concat(), *text);
                let got: Vec<usize> = words.iter().map(|word| word.len()).collect();
                if serde_json::json!(got) != *lengths {
                    bad.push(format!("{} {text:?}\n  got  {got:?}\n  want {lengths}", names[0]));
                }
            }
        }
        let shown: Vec<&str> = bad.iter().take(20).map(String::as_str).collect();
        assert!(bad.is_empty(), "{} differ\n{}", bad.len(), shown.join("\n"));
    }
}

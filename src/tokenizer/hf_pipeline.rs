//! Reads the parts of a `tokenizer.json` around the model: normalizers, pre-tokenizers, and tokens added before and after a text. Refuses
//! steps that are not supported.

use serde_json::Value;

use crate::bert_text::BertText;
use crate::pretokenize::GPT2;
use crate::space::SPACE_SIGN;
use crate::vocab::Form;

#[derive(Default)]
pub(super) struct Pipeline {
    /// Whether bytes are merged instead of characters.
    pub(super) byte_level: bool,
    pub(super) patterns: Vec<String>,
    pub(super) form: Option<Form>,
    pub(super) charsmap: Vec<u8>,
    pub(super) add_space_prefix: bool,
    pub(super) squeeze_spaces: bool,
    pub(super) bert_text: Option<BertText>,
    /// Whether texts are cut into words as BERT does.
    pub(super) bert_words: bool,
    /// The token added before a text.
    pub(super) start: Option<String>,
    /// The token added after a text.
    pub(super) end: Option<String>,
    /// The tokens between the texts of a pair.
    pub(super) between: Vec<String>,
    /// Whether spaces are already replaced by `▁` when pre-tokenizers see the text.
    spaces_are_signs: bool,
}

impl Pipeline {
    /// Reads the parts `normalizer`, `pre_tokenizer`, `post_processor` and `decoder`.
    pub(super) fn read([normalizer, pre_tokenizer, post_processor, decoder]: [&Value; 4]) -> Result<Self, String> {
        let mut pipeline = Self::default();
        for step in steps(normalizer, "normalizers") {
            pipeline.normalizer(step).map_err(|what| format!("normalizer: {what}"))?;
        }
        for step in steps(pre_tokenizer, "pretokenizers") {
            pipeline.pre_tokenizer(step).map_err(|what| format!("pre_tokenizer: {what}"))?;
        }
        for step in steps(post_processor, "processors") {
            pipeline.post_processor(step).map_err(|what| format!("post_processor: {what}"))?;
        }
        pipeline.byte_level |= steps(decoder, "decoders").iter().any(|step| kind(step) == "ByteLevel");
        Ok(pipeline)
    }

    fn normalizer(&mut self, step: &Value) -> Result<(), String> {
        let sign = SPACE_SIGN.to_string();
        match kind(step) {
            "NFC" => self.form = Some(Form::Nfc),
            "NFKC" => self.form = Some(Form::Nfkc),
            "Prepend" if step["prepend"] == sign.as_str() => self.add_space_prefix = true,
            "Replace" if step["pattern"]["String"] == " " && step["content"] == sign.as_str() => self.spaces_are_signs = true,
            "Replace" if step["pattern"]["Regex"] == " {2,}" && (step["content"] == " " || step["content"] == sign.as_str()) => {
                self.squeeze_spaces = true;
            }
            "Precompiled" => {
                let text = step["precompiled_charsmap"].as_str().unwrap_or_default();
                self.charsmap =
                    base64(text).filter(|map| crate::charsmap::CharsMap::is_whole(map)).ok_or("precompiled_charsmap is malformed")?;
            }
            "BertNormalizer" => {
                let flag = |key: &str| step[key].as_bool();
                let lowercase = flag("lowercase").unwrap_or(true);
                self.bert_text = Some(BertText {
                    clean: flag("clean_text").unwrap_or(true),
                    isolate_ideographs: flag("handle_chinese_chars").unwrap_or(true),
                    strip_accents: flag("strip_accents").unwrap_or(lowercase),
                    lowercase,
                });
            }
            other => return Err(format!("`{other}` with these settings is not supported")),
        }
        Ok(())
    }

    fn pre_tokenizer(&mut self, step: &Value) -> Result<(), String> {
        match kind(step) {
            "ByteLevel" if step["add_prefix_space"] == true => return Err("ByteLevel with add_prefix_space is not supported".into()),
            "ByteLevel" => {
                self.byte_level = true;
                if step["use_regex"] != false {
                    self.patterns.push(GPT2.into());
                }
            }
            "Split" => self.split(step)?,
            "BertPreTokenizer" => self.bert_words = true,
            "Digits" => self.patterns.push(if step["individual_digits"] == true { r"\p{N}" } else { r"\p{N}+" }.into()),
            "Punctuation" if matches!(step["behavior"].as_str(), Some("Isolated") | None) => {
                self.patterns.push(r"[\p{P}!-/:-@\[-`{-~]".into());
            }
            // Falcon's punctuation, written as in its GGUF pattern
            "Punctuation" if step["behavior"] == "Contiguous" => self.patterns.push(r"[\p{P}\$\+<=>\^~\|`]+".into()),
            "Metaspace" if step["replacement"].as_str().is_none_or(|sign| sign == SPACE_SIGN.to_string()) => {
                let never = step["prepend_scheme"] == "never" || step["prepend_scheme"].is_null() && step["add_prefix_space"] == false;
                self.spaces_are_signs = true;
                self.add_space_prefix = !never;
            }
            other => return Err(format!("`{other}` with these settings is not supported")),
        }
        Ok(())
    }

    fn split(&mut self, step: &Value) -> Result<(), String> {
        let (text, regex) = (step["pattern"]["String"].as_str(), step["pattern"]["Regex"].as_str());
        if text == Some(" ") && self.spaces_are_signs {
            // No space is left for this pattern to match.
            return Ok(());
        }
        let pattern = match (text, regex) {
            (Some(text), _) => text.chars().map(|c| if c.is_alphanumeric() { c.to_string() } else { format!("[\\{c}]") }).collect(),
            (_, Some("[0-9][0-9][0-9]")) => "[0-9]{3}".to_owned(),
            (_, Some(regex)) => regex.to_owned(),
            _ => return Err("Split without a pattern".into()),
        };
        let isolated = step["behavior"] == "Isolated" && step["invert"] != true;
        // Such a pattern matches the whole text, so nothing is left to remove.
        let kept = step["behavior"] == "Removed" && step["invert"] == true && pattern.ends_with(r"|\s+");
        if !isolated && !kept {
            return Err(format!("Split with the behaviour {} is not supported", step["behavior"]));
        }
        self.patterns.push(pattern);
        Ok(())
    }

    fn post_processor(&mut self, step: &Value) -> Result<(), String> {
        match kind(step) {
            "ByteLevel" => Ok(()),
            "TemplateProcessing" => {
                let pieces = step["single"].as_array().map(Vec::as_slice).unwrap_or_default();
                let text = pieces.iter().position(|piece| piece.get("Sequence").is_some()).ok_or("`single` holds no sequence")?;
                if text > 1 || pieces.len() - text > 2 {
                    return Err("more than one token before or after a text is not supported".into());
                }
                let token = |piece: &Value| piece["SpecialToken"]["id"].as_str().map(str::to_owned);
                self.start = pieces[..text].first().and_then(token);
                self.end = pieces[text + 1..].first().and_then(token);
                let pair = step["pair"].as_array().map(Vec::as_slice).unwrap_or_default();
                let after_first = pair.iter().skip_while(|piece| piece.get("Sequence").is_none()).skip(1);
                self.between = after_first.map_while(token).collect();
                Ok(())
            }
            "BertProcessing" | "RobertaProcessing" => {
                let token = |key: &str| step[key][0].as_str().map(str::to_owned).ok_or(format!("`{}` has no `{key}`", kind(step)));
                let (start, end) = (token("cls")?, token("sep")?);
                self.between = vec![end.clone(); if kind(step) == "BertProcessing" { 1 } else { 2 }];
                (self.start, self.end) = (Some(start), Some(end));
                Ok(())
            }
            other => Err(format!("`{other}` is not supported")),
        }
    }
}

fn kind(step: &Value) -> &str {
    step["type"].as_str().unwrap_or("(none)")
}

/// The steps of a sequence, or the part itself if it is a single step. Null gives no steps.
fn steps<'a>(part: &'a Value, list: &str) -> Vec<&'a Value> {
    match (part, part[list].as_array()) {
        (Value::Null, _) => Vec::new(),
        (_, Some(inner)) if kind(part) == "Sequence" => inner.iter().flat_map(|step| steps(step, list)).collect(),
        _ => vec![part],
    }
}

/// Decodes base64 with padding (RFC 4648).
fn base64(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => Some(c - b'A'),
        b'a'..=b'z' => Some(c - b'a' + 26),
        b'0'..=b'9' => Some(c - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    for four in text.as_bytes().chunks(4) {
        let digits: Vec<u8> = four.iter().map_while(|c| digit(*c)).collect();
        let word = digits.iter().fold(0u32, |word, digit| word << 6 | u32::from(*digit)) << (6 * (4 - digits.len()));
        if four.len() != 4 || digits.len() < 2 || four[digits.len()..].iter().any(|c| *c != b'=') {
            return None;
        }
        out.extend_from_slice(&word.to_be_bytes()[1..digits.len()]);
    }
    Some(out)
}

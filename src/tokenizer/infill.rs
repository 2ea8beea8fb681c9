//! Builds prompts for filling in the middle: a prompt of prefix and suffix, after which the model writes the text between them. This is the
//! PSM order of Bavarian et al., "Efficient training of language models to fill in the middle", 2022.

use crate::vocab::{TokenType, VocabData};

/// The texts of the three tokens, one row per family of models.
const TEXTS: [[&str; 3]; 7] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
    ["<PRE>", "<SUF>", "<MID>"],
];
/// Other tokens that end a piece of code: padding, the next file, and the next repository.
const ENDS: [&str; 7] = ["<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<|file_sep|>", "<file_sep>", "<|repo_name|>", "<repo_name>"];

/// The tokens before the name of a repository and before that of a file, one row per family of models.
const FILES: [[&str; 2]; 2] = [["<|repo_name|>", "<|file_sep|>"], ["<repo_name>", "<file_sep>"]];

/// A text with a gap, and its surroundings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gap<'a> {
    /// Other files of the same work: the name and the text of each.
    pub files: &'a [(String, String)],
    pub prefix: &'a str,
    pub suffix: &'a str,
    /// The text with which the gap begins.
    pub begun: &'a str,
}

/// The tokens of a vocabulary for filling in the middle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Infill {
    pub(crate) prefix: u32,
    pub(crate) suffix: u32,
    pub(crate) middle: u32,
    /// The tokens before the name of a repository and before that of a file.
    pub(crate) files: Option<[u32; 2]>,
    ends: Vec<u32>,
}

impl Infill {
    /// Takes the ids in the file's metadata, or finds the tokens by their texts.
    pub(super) fn find(data: &VocabData) -> Option<Self> {
        let is_special = |id: usize| matches!(data.types[id], TokenType::Control | TokenType::UserDefined);
        let id = |text: &str| (0..data.tokens.len()).find(|&id| data.tokens[id] == text && is_special(id)).map(|id| id as u32);
        let by_text = || {
            let named = TEXTS.iter().map(|texts| texts.map(id));
            named.into_iter().find_map(|ids| match ids {
                [Some(prefix), Some(suffix), Some(middle)] => Some([prefix, suffix, middle]),
                _ => None,
            })
        };
        let [prefix, suffix, middle] = match data.infill {
            [Some(prefix), Some(suffix), Some(middle)] => [prefix, suffix, middle],
            _ => by_text()?,
        };
        let files = FILES.iter().find_map(|[repository, file]| Some([id(repository)?, id(file)?]));
        Some(Self { prefix, suffix, middle, files, ends: ENDS.into_iter().filter_map(id).collect() })
    }

    /// Every id that must not occur in the text between prefix and suffix.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        [self.prefix, self.suffix, self.middle].into_iter().chain(self.ends.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::{Gap, Infill};
    use crate::Tokenizer;
    use gguf::{GgufBuilder, GgufFile};

    fn vocabulary(special: [&str; 4], kind: i32) -> GgufBuilder {
        let tokens = ["<s>", "a", "b", "ab"].iter().chain(&special).map(|text| text.to_string()).collect::<Vec<_>>();
        GgufBuilder::new()
            .kv("general.architecture", "llama")
            .kv("tokenizer.ggml.model", "gpt2")
            .kv("tokenizer.ggml.pre", "gpt-2")
            .kv("tokenizer.ggml.tokens", tokens)
            .kv("tokenizer.ggml.token_type", vec![3i32, 1, 1, 1, kind, kind, kind, kind])
            .kv("tokenizer.ggml.merges", vec!["a b".to_owned()])
            .kv("tokenizer.ggml.bos_token_id", 0u32)
    }

    fn prompt(builder: &GgufBuilder) -> Option<(Vec<u32>, Vec<u32>)> {
        let file = tempfile::NamedTempFile::new().unwrap();
        builder.write(file.path()).unwrap();
        let tokenizer = Tokenizer::from_gguf(&GgufFile::open(file.path()).unwrap()).unwrap();
        let infill = tokenizer.infill()?;
        let gap = Gap { prefix: "ab", suffix: "b<s>", ..Gap::default() };
        Some((tokenizer.encode_infill(infill, gap, 100), infill.ids().collect()))
    }

    #[test]
    fn other_files_come_first_as_many_as_there_is_room_for() {
        let named = ["<|fim_middle|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|file_sep|>"];
        let file = tempfile::NamedTempFile::new().unwrap();
        vocabulary(named, 3).write(file.path()).unwrap();
        let tokenizer = Tokenizer::from_gguf(&GgufFile::open(file.path()).unwrap()).unwrap();
        let infill = tokenizer.infill().unwrap();
        assert_eq!(infill.files, None, "a token for files alone is not enough");
        let files = [("a".to_owned(), "ab".to_owned()), ("b".to_owned(), "a".to_owned())];
        let gap = Gap { files: &files, prefix: "a", suffix: "b", begun: "ab" };
        // Line breaks are not in this vocabulary.
        let ids = |most| tokenizer.encode_infill(infill, gap, most);
        let gap_ids = [5, 1, 6, 2, 4, 3];
        assert_eq!(ids(100), [&[1, 3, 2, 1][..], &gap_ids].concat());
        assert_eq!(ids(9), [&[2, 1][..], &gap_ids].concat(), "the first file has no room");
        assert_eq!(ids(7), gap_ids);
        let tokens = Infill { files: Some([0, 7]), ..infill.clone() };
        let ids = tokenizer.encode_infill(&tokens, gap, 100);
        assert_eq!((ids[0], ids.iter().filter(|&&id| id == 7).count()), (0, 3), "one per file, and one before the gap");
    }

    #[test]
    fn special_tokens_are_found_by_their_texts_if_all_three_exist() {
        let named = ["<|fim_middle|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_pad|>"];
        let expected = (vec![5, 3, 6, 2, 0, 4], vec![5, 6, 4, 7]);
        assert_eq!(prompt(&vocabulary(named, 3)), Some(expected.clone()));
        assert_eq!(prompt(&vocabulary(named, 4)), Some(expected), "user-defined tokens count too");
        assert_eq!(prompt(&vocabulary(named, 1)), None, "ordinary text does not");
        assert_eq!(prompt(&vocabulary(["<|fim_middle|>", "<|fim_prefix|>", "x", "y"], 3)), None, "all three or none");
    }

    #[test]
    fn ids_named_by_the_file_take_precedence_over_texts() {
        let file = vocabulary(["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "other"], 3);
        assert_eq!(prompt(&file).unwrap().0, [4, 3, 5, 2, 0, 6]);
        let keyed = |[prefix, suffix, middle]: [&str; 3]| {
            let file = vocabulary(["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "other"], 3).kv(prefix, 7u32).kv(suffix, 5u32);
            prompt(&file.kv(middle, 6u32).kv("tokenizer.ggml.add_bos_token", true)).unwrap().0
        };
        let new = ["fim_pre", "fim_suf", "fim_mid"].map(|name| format!("tokenizer.ggml.{name}_token_id"));
        let old = ["prefix", "suffix", "middle"].map(|name| format!("tokenizer.ggml.{name}_token_id"));
        for keys in [new, old] {
            assert_eq!(keyed(keys.each_ref().map(String::as_str)), [0, 7, 3, 5, 2, 0, 6]);
        }
    }
}

//! Computes scores for SentencePiece's BPE from the merges of a `tokenizer.json`.

use std::collections::{HashMap, HashSet};

use crate::table::NORMAL;

/// One score per token. The earlier a token is merged, the higher its score. SentencePiece's BPE merges the adjacent pair whose result has
/// the highest score, and the library of `tokenizer.json` merges the pair with the first rank. Both agree if every split of a token into
/// two tokens is a merge, and if all merges of a token are consecutive.
///
/// # Errors
/// If the two would not agree.
pub fn scores(tokens: &[String], types: &[i32], merges: &[(String, String)]) -> Result<Vec<f32>, String> {
    let ids: HashMap<&str, usize> =
        tokens.iter().enumerate().filter(|(id, _)| types[*id] == NORMAL).map(|(id, token)| (token.as_str(), id)).collect();
    let pairs: HashSet<(&str, &str)> = merges.iter().map(|(left, right)| (left.as_str(), right.as_str())).collect();
    let mut scores = vec![0.0; tokens.len()];
    let (mut order, mut last, mut seen) = (0u32, String::new(), HashSet::new());
    for (left, right) in merges {
        let whole = format!("{left}{right}");
        if whole == last {
            continue;
        }
        // Tokens that are matched in the text before any merging need no score.
        if let Some(&id) = ids.get(whole.as_str()) {
            if !seen.insert(id) {
                return Err(format!("the merges of `{}` are not consecutive: add tokenizer.model", whole.escape_debug()));
            }
            order += 1;
            scores[id] = -(order as f32);
        }
        last = whole;
    }
    for token in ids.keys() {
        let mut cuts = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
        let is_token = |(left, right): &(&str, &str)| ids.contains_key(left) && ids.contains_key(right);
        if let Some((left, right)) = cuts.find(|cut| is_token(cut) && !pairs.contains(cut)) {
            return Err(format!("`{left}` and `{right}` are tokens, but no merge makes one of them: add tokenizer.model"));
        }
    }
    Ok(scores)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(tokens: &[&str], merges: &[(&str, &str)]) -> Result<Vec<f32>, String> {
        let tokens: Vec<String> = tokens.iter().map(|token| token.to_string()).collect();
        let merges: Vec<_> = merges.iter().map(|(left, right)| (left.to_string(), right.to_string())).collect();
        scores(&tokens, &vec![NORMAL; tokens.len()], &merges)
    }

    #[test]
    fn earlier_merges_have_higher_scores() {
        assert_eq!(
            of(&["a", "b", "bc", "ab", "abc", "c"], &[("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc")]),
            Ok(vec![0.0, 0.0, -2.0, -1.0, -3.0, 0.0])
        );
    }

    #[test]
    fn merges_that_scores_cannot_express_are_refused() {
        assert!(of(&["a", "b", "ab", "c", "bc", "abc"], &[("a", "b"), ("b", "c"), ("ab", "c")]).unwrap_err().contains("no merge"));
        let split = [("a", "b"), ("ab", "c"), ("b", "c"), ("a", "bc")];
        assert!(of(&["a", "b", "c", "ab", "bc", "abc"], &split).unwrap_err().contains("are not consecutive"));
    }
}

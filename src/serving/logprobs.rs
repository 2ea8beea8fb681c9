//! Converts the engine's log-probabilities for clients: ids become bytes and positions in the text.

use chat::{TokenLogprob, TopToken};
use logits::Logprobs;
use tokenizer::Tokenizer;

fn bytes(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    tokenizer.token_bytes(id, true).unwrap_or_default().to_vec()
}

/// A generated token. `offset`: position in the text [characters].
pub(super) fn token_logprob(tokenizer: &Tokenizer, id: u32, offset: usize, logprobs: &Logprobs) -> TokenLogprob {
    let top = logprobs.top.iter().map(|&(id, logprob)| TopToken { id, bytes: bytes(tokenizer, id), logprob }).collect();
    TokenLogprob { bytes: bytes(tokenizer, id), offset, logprob: Some(logprobs.chosen), top, id }
}

/// The tokens of an echoed prompt. `logprobs` starts with the second token.
pub(super) fn prompt_tokens(tokenizer: &Tokenizer, prompt: &[u32], echo: &str, logprobs: &[Logprobs]) -> Vec<TokenLogprob> {
    let pieces: Vec<Vec<u8>> = prompt.iter().map(|&id| bytes(tokenizer, id)).collect();
    let offsets = offsets(&pieces, echo);
    let id = prompt.first().copied().unwrap_or_default();
    let first = TokenLogprob { bytes: Vec::new(), offset: 0, logprob: None, top: Vec::new(), id };
    let scored = prompt.iter().skip(1).zip(logprobs).map(|(&id, logprobs)| token_logprob(tokenizer, id, 0, logprobs));
    let tokens = std::iter::once(first).chain(scored).zip(pieces).zip(offsets);
    tokens.map(|((token, bytes), offset)| TokenLogprob { bytes, offset, ..token }).collect()
}

/// The number of characters of `text` before each piece. Pieces that precede the text (an added BOS, the space that SentencePiece begins
/// with) have offset 0.
fn offsets(pieces: &[Vec<u8>], text: &str) -> Vec<usize> {
    // A character that is split over several pieces counts for the piece with its first byte.
    let begins = |byte: &&u8| **byte & 0xc0 != 0x80;
    let lengths: Vec<usize> = pieces.iter().map(|piece| piece.iter().filter(begins).count()).collect();
    let most = text.chars().count();
    let mut at = 0;
    let surplus = lengths.iter().sum::<usize>().saturating_sub(most);
    let mut offset = |length: &usize| {
        let before = at;
        at += length;
        before.saturating_sub(surplus).min(most)
    };
    lengths.iter().map(&mut offset).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets_of(pieces: &[&[u8]], text: &str) -> Vec<usize> {
        offsets(&pieces.iter().map(|piece| piece.to_vec()).collect::<Vec<_>>(), text)
    }

    #[test]
    fn offsets_count_characters_of_the_text() {
        assert_eq!(offsets_of(&[b"The", b" cat", "é".as_bytes(), b"!"], "The caté!"), [0, 3, 7, 8]);
        assert_eq!(offsets_of(&[b"a", &[0xe2, 0x82], &[0xac], b"b"], "a€b"), [0, 1, 2, 2], "two tokens share a character");
        assert_eq!(offsets_of(&[b"<s>", b" Hello", b" you"], "Hello you"), [0, 0, 5], "a BOS and a space that the client did not write");
    }
}

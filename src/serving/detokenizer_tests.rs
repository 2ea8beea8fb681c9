//! The detokenizer: cuts of the bytes change nothing, and no part of a stop text is returned.

use proptest::prelude::*;

use super::*;

/// Decodes everything at once. Cuts the text before the stop text that is complete first, or the longest one if several end together.
fn naive(bytes: &[u8], stops: &[String]) -> (String, bool) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    for end in 1..=text.len() {
        let complete = stops.iter().filter(|stop| text.as_bytes()[..end].ends_with(stop.as_bytes()));
        if let Some(length) = complete.map(String::len).max() {
            return (text[..end - length].to_owned(), true);
        }
    }
    (text, false)
}

/// Pushes `bytes` in pieces of the given lengths. Returns the text and whether a stop text ended it.
fn streamed(bytes: &[u8], cuts: &[usize], stops: &[String]) -> (String, bool) {
    let mut detokenizer = Detokenizer::new(stops);
    let (whole, _) = naive(bytes, stops);
    let (mut out, mut rest, mut cuts) = (String::new(), bytes, cuts.iter().cycle());
    while !rest.is_empty() {
        let (piece, tail) = rest.split_at((*cuts.next().unwrap()).clamp(1, rest.len()));
        rest = tail;
        match detokenizer.push(piece) {
            Decoded::Text(text) => out += &text,
            Decoded::Stopped(text) => return (out + &text, true),
        }
        assert!(whole.starts_with(&out), "{out:?} was returned, but the text is {whole:?}");
    }
    match detokenizer.finish() {
        Decoded::Text(text) => (out + &text, false),
        Decoded::Stopped(text) => (out + &text, true),
    }
}

/// Whole characters, parts of characters, and a byte that is never UTF-8.
const BYTES: [u8; 11] = [b'a', 0xc3, 0xa9, 0xe2, 0x82, 0xac, 0xf0, 0x9f, 0x98, 0x80, 0xff];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    // The alphabet is tiny, so that stop texts overlap themselves and each other.
    #[test]
    fn the_texts_equal_the_whole(
        text in "[abé]{0,24}",
        cuts in prop::collection::vec(1usize..5, 1..6),
        stops in prop::collection::vec("[abé]{1,4}", 0..4),
    ) {
        prop_assert_eq!(streamed(text.as_bytes(), &cuts, &stops), naive(text.as_bytes(), &stops));
    }

    #[test]
    fn any_bytes_equal_lossy_utf8(
        bytes in prop::collection::vec(prop::sample::select(BYTES.to_vec()), 0..24),
        cuts in prop::collection::vec(1usize..4, 1..4),
        stops in prop::collection::vec("[a€é\u{fffd}]{1,3}", 0..3),
    ) {
        prop_assert_eq!(streamed(&bytes, &cuts, &stops), naive(&bytes, &stops));
    }
}

#[test]
fn a_part_of_a_stop_text_is_never_returned() {
    let mut detokenizer = Detokenizer::new(&["</end>".into()]);
    assert_eq!(detokenizer.push(b"hello </"), Decoded::Text("hello ".into()));
    assert_eq!(detokenizer.push(b"en"), Decoded::Text(String::new()));
    assert_eq!(detokenizer.push(b"ough </end"), Decoded::Text("</enough ".into()));
    assert_eq!(detokenizer.push(b"> more"), Decoded::Stopped(String::new()));
}

#[test]
fn a_character_is_never_split() {
    let mut detokenizer = Detokenizer::new(&[]);
    assert_eq!(detokenizer.push(&[0xf0, 0x9f]), Decoded::Text(String::new()));
    assert_eq!(detokenizer.push(&[0x98, 0x80, 0xe2]), Decoded::Text("😀".into()));
    assert_eq!(detokenizer.finish(), Decoded::Text("\u{fffd}".into()));
}

#[test]
fn an_unstoppable_token_hides_stop_texts_that_begin_in_it() {
    let mut detokenizer = Detokenizer::new(&["ab".into()]);
    assert_eq!(detokenizer.push_unstoppable(b"ab a"), "ab a");
    assert_eq!(detokenizer.push(b"b ab"), Decoded::Stopped("b ".into()));
}

#[test]
fn the_stop_text_that_ended_the_output_is_known() {
    let mut detokenizer = Detokenizer::new(&["".into(), "xyz".into(), "b".into(), "ab".into()]);
    assert_eq!((detokenizer.push(b"xy a"), detokenizer.found()), (Decoded::Text("xy ".into()), None));
    assert_eq!((detokenizer.push(b"b"), detokenizer.found()), (Decoded::Stopped(String::new()), Some(3)), "the longest one");
}

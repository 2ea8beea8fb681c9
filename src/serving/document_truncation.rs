//! Cuts documents so that they can be ranked.

use std::borrow::Cow;

use super::embedding::ValidText;
use super::error::{ContextLimit, RequestError};
use super::model::Model;
use super::request::check_most;
use super::text::bounded;

/// The most tokens of a pair. The end of a longer document is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Truncation {
    /// The most tokens of a document.
    pub document: Option<usize>,
    /// The most tokens of a prompt, which holds the query and the document. The context limits this, too.
    pub prompt: Option<usize>,
}

/// The most attempts. A cut text may have one or two tokens more than planned, because the cut breaks a word.
const TRIES: usize = 8;

impl Truncation {
    /// Encodes a document, or as much of its beginning as fits.
    pub(super) fn fit<const N: usize>(
        self,
        model: &Model,
        document: &str,
        encode: impl Fn(&str) -> Result<[ValidText; N], RequestError>,
    ) -> Result<[ValidText; N], RequestError> {
        self.prompt.map_or(Ok(()), |most| check_most(most, ContextLimit::of(model)))?;
        let room = self.prompt.map(|most| most.min(model.context()));
        let longest = self.document.into_iter().chain(room).min();
        let mut text = longest.map_or(Cow::Borrowed(document), |most| beginning(model, bounded(document, most), |has| has.min(most)));
        let Some(room) = room else { return encode(&text) };
        for _ in 0..TRIES {
            let found = encode(&text);
            let taken = match &found {
                Ok(valid) => valid[0].num_tokens() as usize,
                Err(error) => match error.overflow() {
                    Some((taken, _)) => taken,
                    None => return found,
                },
            };
            if taken <= room {
                return found;
            }
            text = Cow::Owned(beginning(model, &text, |has| has.saturating_sub(taken - room)).into_owned());
            if text.is_empty() {
                break;
            }
        }
        Err(RequestError::NoRoom { room })
    }
}

/// The first tokens of a text, as text. `kept`: returns how many tokens to keep, given their number.
fn beginning<'a>(model: &Model, text: &'a str, kept: impl FnOnce(usize) -> usize) -> Cow<'a, str> {
    let tokenizer = &model.base.tokenizer;
    let ids = tokenizer.encode(text, false);
    let most = kept(ids.len());
    if most == ids.len() {
        return Cow::Borrowed(text);
    }
    // The last character may be cut.
    let decoded = tokenizer.decode(&ids[..most], false);
    let kept = decoded.trim_end_matches(char::REPLACEMENT_CHARACTER).trim_start();
    // Some vocabularies change what they encode, for example to lower case.
    let indent = text.len() - text.trim_start().len();
    match text[indent..].starts_with(kept) {
        true => Cow::Borrowed(&text[..indent + kept.len()]),
        false => Cow::Owned(kept.to_owned()),
    }
}

//! Documents that are cut so that they can be ranked.

use std::borrow::Cow;

use super::embedding::ValidText;
use super::error::RequestError;
use super::model::Model;

/// How many tokens a pair may take. Of a document that is longer, the end is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// The most tokens of a document.
    pub document: Option<usize>,
    /// The most tokens of a prompt, which holds the query and the document. The context, if that is less.
    pub prompt: Option<usize>,
}

/// A cut text may become one or two tokens more than it was, where a word is broken.
const TRIES: usize = 4;

impl Cut {
    /// What `encode` makes of a document, or of as much of it as fits.
    pub(super) fn fit<const N: usize>(
        self,
        model: &Model,
        document: &str,
        encode: impl Fn(&str) -> Result<[ValidText; N], RequestError>,
    ) -> Result<[ValidText; N], RequestError> {
        let room = self.prompt.map(|most| most.min(model.base.context));
        let longest = self.document.into_iter().chain(room).min();
        let mut text = longest.map_or(Cow::Borrowed(document), |most| beginning(model, document, most));
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
            let has = model.base.tokenizer.encode(&text, false).len();
            text = Cow::Owned(beginning(model, &text, has.saturating_sub(taken - room)).into_owned());
        }
        match encode(&text) {
            Ok(valid) if valid[0].num_tokens() as usize > room => {
                Err(RequestError::NoRoom { tokens: valid[0].num_tokens() as usize, room })
            }
            found => found,
        }
    }
}

/// The first tokens of a text, as text.
fn beginning<'a>(model: &Model, text: &'a str, most: usize) -> Cow<'a, str> {
    let tokenizer = &model.base.tokenizer;
    let ids = tokenizer.encode(text, false);
    if ids.len() <= most {
        return Cow::Borrowed(text);
    }
    // The last character may be cut.
    Cow::Owned(tokenizer.decode(&ids[..most], false).trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned())
}

//! Finds by trial renders how a chat template shows pictures.

use std::sync::Arc;

use super::conversation::{Conversation, Message, Part, Picture, PictureSource, Role};
use super::dialect::{Dialect, PictureForm};
use super::render::Layout;
use super::trial::Trials;

const BEFORE: &str = "penstock-before";
const AFTER: &str = "penstock-after";

/// The way in which the template shows pictures. `dialect`: the form in which it takes everything else. `has_control`: whether a text holds
/// a control token.
pub(super) fn pictures(trials: &Trials, dialect: &Dialect, has_control: &dyn Fn(&str) -> bool) -> PictureForm {
    let as_parts = |mark: &str| Dialect { pictures: PictureForm::Parts { mark: mark.to_owned() }, needs_lists: true, ..dialect.clone() };
    let asked = |parts: Vec<Part>| {
        let messages = vec![Message { parts, ..Message::new(Role::User) }];
        Conversation { messages, ..Conversation::default() }
    };
    // Without a mark, the text that the template writes stays in the prompt.
    let render = |parts: Vec<Part>| trials.render(&asked(parts), &as_parts("")).unwrap_or_default();
    let text = |text: &str| Part::Text(text.to_owned());
    let without = render(vec![text(BEFORE), text(AFTER)]);
    // The template prints the list itself.
    if ["\"text\"", "'text'"].iter().any(|key| without.contains(key)) {
        return PictureForm::Lines;
    }
    let shown = render(vec![text(BEFORE), picture(), text(AFTER)]);
    let Some((written, first)) = written(&shown, &without) else { return PictureForm::Lines };
    let mark = written.trim();
    let inline = || {
        let (before, rest) = written.split_at(written.len() - written.trim_start().len());
        PictureForm::Inline { space: [before.to_owned(), rest[mark.len()..].to_owned()], first }
    };
    // A mark behind a picture must change nothing else.
    let is_free = |parts: Vec<Part>| {
        let layout = Layout::new(&as_parts(mark), &str::to_owned, &asked(parts.clone()));
        let prompt = layout.render(trials.template).ok().and_then(|text| layout.split(text).ok());
        prompt.is_some_and(|prompt| prompt.with_markers(mark) == render(parts))
    };
    let several = vec![picture(), text(BEFORE), picture(), picture(), text(AFTER)];
    let is_marked = has_control(mark) && is_free(several) && is_free(vec![text(BEFORE), picture()]) && !trials.is_over();
    if is_marked { PictureForm::Parts { mark: mark.to_owned() } } else { inline() }
}

/// What a prompt shows for a picture between two texts, and whether it stands before both. `None`: nothing. `without`: the prompt without
/// the picture.
fn written<'a>(shown: &'a str, without: &str) -> Option<(&'a str, bool)> {
    let (before, after) = (shown.find(BEFORE)?, shown.find(AFTER)?);
    let between = shown.get(before + BEFORE.len()..after)?;
    if !between.trim().is_empty() {
        return Some((between, false));
    }
    let head = &without[..without.find(BEFORE)?];
    let lead = shown[..before].strip_prefix(head)?;
    (!lead.trim().is_empty()).then_some((lead, true))
}

fn picture() -> Part {
    let source = PictureSource::File(Arc::default());
    Part::Picture(Picture { source, field: Arc::from(""), substitute: None })
}

#[cfg(test)]
#[path = "picture_tests.rs"]
mod tests;

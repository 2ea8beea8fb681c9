//! The places of pictures in a conversation's texts. A mark stands for each picture from the message to the prompt: a template may move
//! texts, escape them or write them as JSON, and the mark goes with them.

use std::hash::{BuildHasher, RandomState};

use serde_json::{Value, json};

use super::conversation::{Message, Part, Picture};
use super::dialect::PictureForm;

/// Ends the number of a mark.
const END: char = 'z';

/// The marks of one rendering.
pub(super) struct PictureMarks {
    form: PictureForm,
    /// Begins each mark. No client can guess it, so no text of theirs holds a mark, and none can learn it in time, since the next rendering
    /// has another one. It has only letters and digits, which no template escapes.
    secret: String,
}

impl PictureMarks {
    pub fn new(form: &PictureForm) -> Self {
        let random = || RandomState::new().hash_one(0);
        Self { form: form.clone(), secret: format!("penstockpicture{:016x}{:016x}n", random(), random()) }
    }

    /// The shielded text of a message, with a mark for each picture. `count`: the number of pictures in the messages before it.
    pub fn content(&self, message: &Message, shield: &dyn Fn(&str) -> String, count: &mut usize) -> String {
        if message.parts.iter().all(|part| part.as_text().is_some()) {
            return shield(&message.text());
        }
        let (space, first) = match &self.form {
            PictureForm::Inline { space: [before, after], first } => ([before.as_str(), after], *first),
            PictureForm::Lines | PictureForm::Parts { .. } => ([""; 2], false),
        };
        let is_lines = self.form == PictureForm::Lines;
        let (mut pictures, mut content) = (String::new(), String::new());
        let mut last: Option<&Part> = None;
        for part in &message.parts {
            let text = match part {
                Part::Text(text) => shield(text),
                Part::Picture(_) => {
                    *count += 1;
                    [space[0], &self.mark(*count - 1), space[1]].concat()
                }
            };
            if first && part.as_text().is_none() {
                pictures.push_str(&text);
                continue;
            }
            let are_texts = last.is_some_and(|last| last.as_text().is_some()) && part.as_text().is_some();
            if are_texts || is_lines && last.is_some() {
                content.push('\n');
            }
            content.push_str(&text);
            last = Some(part);
        }
        pictures + &content
    }

    /// The content as a list of parts, for templates that take pictures in lists. `always`: also without pictures.
    pub fn parts(&self, content: &str, always: bool) -> Option<Value> {
        let (as_parts, is_marked) = match &self.form {
            PictureForm::Parts { mark } => (true, !mark.is_empty()),
            PictureForm::Lines | PictureForm::Inline { .. } => (false, true),
        };
        if !(always || as_parts && content.contains(&self.secret)) {
            return None;
        }
        let text = |text: &str| (!text.is_empty()).then(|| json!({"type": "text", "text": text}));
        if !as_parts {
            return Some(text(content).into_iter().collect());
        }
        let mut parts = Vec::new();
        for (number, piece) in self.pieces(content) {
            if let Some(number) = number {
                parts.push(json!({"type": "image"}));
                // The mark says which picture it is, wherever the template puts it.
                parts.extend(text(&self.mark(number)).filter(|_| is_marked));
            }
            parts.extend(text(piece));
        }
        Some(Value::Array(parts))
    }

    /// Removes the texts that the template has written for pictures, each before its mark.
    pub fn restored(&self, prompt: String) -> String {
        match &self.form {
            PictureForm::Parts { mark } if !mark.is_empty() => prompt.replace(&format!("{mark}{}", self.secret), &self.secret),
            _ => prompt,
        }
    }

    /// A message for clients, without marks.
    pub fn hidden(&self, message: &str) -> String {
        self.pieces(message)
            .into_iter()
            .map(|(number, text)| if number.is_some() { format!("<picture>{text}") } else { text.into() })
            .collect()
    }

    /// Splits a prompt at its marks: the texts around the pictures, and the pictures in the prompt's order.
    ///
    /// # Errors
    /// The numbers of the pictures that the prompt does not show exactly once.
    pub fn split(&self, prompt: &str, pictures: &[Picture]) -> Result<(Vec<String>, Vec<Picture>), Vec<usize>> {
        let pieces = self.pieces(prompt);
        let numbers: Vec<usize> = pieces.iter().filter_map(|(number, _)| *number).collect();
        let mut counts = vec![0; pictures.len()];
        for number in &numbers {
            if let Some(count) = counts.get_mut(*number) {
                *count += 1;
            }
        }
        let wrong: Vec<usize> = (0..pictures.len()).filter(|number| counts[*number] != 1).collect();
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let texts = pieces.iter().map(|(_, text)| (*text).to_owned()).collect();
        Ok((texts, numbers.into_iter().map(|number| pictures[number].clone()).collect()))
    }

    fn mark(&self, number: usize) -> String {
        format!("{}{number}{END}", self.secret)
    }

    /// The texts around the marks, each with the number of the mark before it.
    fn pieces<'a>(&self, text: &'a str) -> Vec<(Option<usize>, &'a str)> {
        let mut rest = text.split(self.secret.as_str());
        let mut pieces = vec![(None, rest.next().unwrap_or_default())];
        for piece in rest {
            match piece.split_once(END).and_then(|(number, text)| Some((number.parse().ok()?, text))) {
                Some((number, text)) => pieces.push((Some(number), text)),
                // A template has cut the mark.
                None => pieces.push((None, piece)),
            }
        }
        pieces
    }
}

//! Detects paths of images in a message. The engines run no model that takes images, so such messages are refused.

use std::path::{Path, PathBuf};

use anyhow::bail;

const SUFFIXES: [&str; 8] = ["png", "jpg", "jpeg", "webp", "gif", "bmp", "tif", "tiff"];

/// # Errors
/// The message names an image file that exists.
pub fn refuse(text: &str, model: &str) -> anyhow::Result<()> {
    match named(text).into_iter().find(|path| path.is_file()) {
        Some(path) => bail!(
            "{model} takes text only, and {} is an image: leave it out, or write its name between backticks if the text is about the name",
            path.display()
        ),
        None => Ok(()),
    }
}

/// Paths with an image's suffix: words, words with escaped spaces, and quoted texts.
fn named(text: &str) -> Vec<PathBuf> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (None, '\\') if chars.peek().is_some() => word.extend(chars.next()),
            (None, '"' | '\'' | '`') if word.is_empty() => quote = Some(c),
            (Some(end), c) if c == end => {
                words.push((std::mem::take(&mut word), end == '`'));
                quote = None;
            }
            (None, c) if c.is_whitespace() => words.push((std::mem::take(&mut word), false)),
            (_, c) => word.push(c),
        }
    }
    // An apostrophe may look like an opening quote without an end.
    match quote {
        Some(_) => words.extend(word.split_whitespace().map(|word| (word.to_owned(), false))),
        None => words.push((word, false)),
    }
    let is_image = |path: &PathBuf| {
        path.extension().and_then(|end| end.to_str()).is_some_and(|end| SUFFIXES.iter().any(|known| end.eq_ignore_ascii_case(known)))
    };
    let of_word = |(word, is_code): (String, bool)| (!is_code).then(|| at_home(word.trim_end_matches([',', '.', '?', '!', ';', ':', ')'])));
    words.into_iter().filter_map(of_word).filter(is_image).collect()
}

/// Expands `~/x` as a shell does.
pub fn at_home(text: &str) -> PathBuf {
    match (text.strip_prefix("~/"), std::env::var_os("HOME")) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_images_are_found_in_a_text() {
        let of = |text: &str| named(text).iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        assert_eq!(of("what is in ./cat.png?"), ["./cat.png"]);
        assert_eq!(of("compare /a/b.JPG, and 'my cat.webp'"), ["/a/b.JPG", "my cat.webp"]);
        assert_eq!(of("look at my\\ cat.gif"), ["my cat.gif"]);
        assert_eq!(of("it's about `logo.png` and png files. don't"), Vec::<String>::new());
        assert_eq!(of("that's in cat.png"), ["cat.png"]);
    }

    #[test]
    fn only_an_image_that_is_there_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cat.png");
        let text = format!("what is in {}?", path.display());
        assert!(refuse(&text, "m").is_ok());
        std::fs::write(&path, "x").unwrap();
        let error = refuse(&text, "m").unwrap_err().to_string();
        assert!(error.starts_with("m takes text only") && error.contains("cat.png"), "{error}");
    }
}

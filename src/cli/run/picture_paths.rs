//! Finds the paths of pictures in a message: as words, quoted, with escaped spaces, or as a terminal types what is dragged into it.

use std::ops::Range;
use std::path::{Path, PathBuf};

/// The suffixes of files that are taken for pictures. Those that models do not read are refused by name when they are opened.
const SUFFIXES: [&str; 8] = ["png", "jpg", "jpeg", "webp", "gif", "bmp", "tif", "tiff"];

/// Marks that end a sentence or a part of it, and no path.
const MARKS: [char; 7] = [',', '.', '?', '!', ';', ':', ')'];

/// A path in a text.
#[derive(Debug, PartialEq, Eq)]
pub struct NamedPath {
    /// The bytes of the text, with quotes.
    pub range: Range<usize>,
    pub path: PathBuf,
}

/// The paths of pictures that exist. Names between backticks are text.
pub fn named(text: &str) -> Vec<NamedPath> {
    named_if(text, Path::is_file)
}

fn named_if(text: &str, exists: impl Fn(&Path) -> bool) -> Vec<NamedPath> {
    let picture = |name: &str| Some(at_home(name)).filter(|path| has_suffix(path) && exists(path));
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let end = match first {
            '"' | '\'' | '`' => rest[1..].find(first).map(|end| end + 2),
            _ => None,
        };
        let length = match (first, end) {
            ('`', Some(end)) => end,
            (_, Some(end)) if let Some(path) = picture(&rest[1..end - 1]) => {
                found.push(NamedPath { range: at..at + end, path });
                end
            }
            // A word, and an apostrophe that looks like a quote.
            _ if !first.is_whitespace() && first != '(' => {
                let length = word(rest);
                let name = rest[..length].trim_end_matches(MARKS);
                if let Some(path) = picture(&unescaped(name)) {
                    found.push(NamedPath { range: at..at + name.len(), path });
                }
                length
            }
            _ => first.len_utf8(),
        };
        at += length;
    }
    found
}

/// The length of the first word, which escaped spaces do not end [bytes].
fn word(text: &str) -> usize {
    let mut is_escaped = false;
    let end = text.char_indices().find(|(_, c)| {
        let ends = c.is_whitespace() && !is_escaped;
        is_escaped = *c == '\\' && !is_escaped;
        ends
    });
    end.map_or(text.len(), |(at, _)| at)
}

/// The text without the backslashes that escape characters.
fn unescaped(text: &str) -> String {
    let mut chars = text.chars();
    let mut out = String::new();
    while let Some(c) = chars.next() {
        out.push(if c == '\\' { chars.next().unwrap_or(c) } else { c });
    }
    out
}

fn has_suffix(path: &Path) -> bool {
    path.extension().and_then(|end| end.to_str()).is_some_and(|end| SUFFIXES.iter().any(|known| end.eq_ignore_ascii_case(known)))
}

/// The paths after a command: one that exists as typed, or else words, each as in a message. A word may have any suffix.
pub fn listed(text: &str) -> Vec<PathBuf> {
    let whole = at_home(text);
    if whole.is_file() {
        return vec![whole];
    }
    let (mut paths, mut rest) = (Vec::new(), text.trim_start());
    while let Some(first) = rest.chars().next() {
        let quoted = matches!(first, '"' | '\'').then(|| rest[1..].find(first)).flatten();
        let (name, length) = match quoted {
            Some(end) => (rest[1..=end].to_owned(), end + 2),
            None => (unescaped(&rest[..word(rest)]), word(rest)),
        };
        paths.push(at_home(&name));
        rest = rest[length..].trim_start();
    }
    paths
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
    use proptest::prelude::*;

    use super::*;

    /// The paths in a text and what they are in it, if every file exists.
    fn all(text: &str) -> Vec<(String, &str)> {
        let one = |named: NamedPath| (named.path.display().to_string(), &text[named.range]);
        named_if(text, |_| true).into_iter().map(one).collect()
    }

    #[test]
    fn paths_of_pictures_are_found_in_a_text() {
        let cases: [(&str, &[(&str, &str)]); 10] = [
            ("what is in ./cat.png?", &[("./cat.png", "./cat.png")]),
            ("compare /a/b.JPG, and 'my cat.webp'", &[("/a/b.JPG", "/a/b.JPG"), ("my cat.webp", "'my cat.webp'")]),
            ("look at my\\ cat.gif", &[("my cat.gif", "my\\ cat.gif")]),
            ("it's about `logo.png` and png files. don't", &[]),
            ("that's in cat.png", &[("cat.png", "cat.png")]),
            ("'tis in cat.png, isn't it", &[("cat.png", "cat.png")]),
            ("(see \"a b.jpeg\") and (c.tiff)", &[("a b.jpeg", "\"a b.jpeg\""), ("c.tiff", "c.tiff")]),
            ("a`b.png", &[("a`b.png", "a`b.png")]),
            ("'/tmp/é.png' ende", &[("/tmp/é.png", "'/tmp/é.png'")]),
            (".png notes.txt \\ x.png\\", &[]),
        ];
        for (text, expected) in cases {
            let expected: Vec<_> = expected.iter().map(|(path, part)| ((*path).to_owned(), *part)).collect();
            assert_eq!(all(text), expected, "{text}");
        }
    }

    #[test]
    fn a_path_in_the_home_directory_is_expanded() {
        let home = std::env::var("HOME").unwrap();
        assert_eq!(all("see ~/cat.png."), [(format!("{home}/cat.png"), "~/cat.png")]);
    }

    #[test]
    fn paths_after_a_command_may_have_any_suffix() {
        let of = |text: &str| listed(text).iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        assert_eq!(of("a.png  'b c' d\\ e \"f\" it's"), ["a.png", "b c", "d e", "f", "it's"]);
        assert_eq!(of("''"), [""]);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("my cat.png");
        std::fs::write(&path, "x").unwrap();
        assert_eq!(listed(path.to_str().unwrap()), [path], "a name with spaces, as typed");
    }

    proptest! {
        #[test]
        fn any_text_is_read_and_paths_lie_in_it_in_order(text in "[a .(\"'`\\\\~/é\n]{0,24}(\\.png)?[ '\"`\\\\.]{0,3}.{0,6}") {
            let mut end = 0;
            for NamedPath { range, path } in named_if(&text, |_| true) {
                prop_assert!(end <= range.start && range.start < range.end);
                prop_assert!(text.get(range.clone()).is_some() && has_suffix(&path));
                end = range.end;
            }
            listed(&text);
        }

        #[test]
        fn a_text_without_files_names_nothing(text in ".{0,40}(\\.png)?.{0,10}") {
            prop_assert_eq!(named_if(&text, |_| false), vec![]);
        }

        #[test]
        fn a_name_is_found_however_it_is_written(name in "[a-zA-Z0-9é ()'\\\\]{0,8}[a-z]\\.(png|JPG|webp)", before in "(see |\\(|\n)?") {
            let escape = |c: char| if c.is_alphanumeric() || c == '.' { c.to_string() } else { format!("\\{c}") };
            let escaped: String = name.chars().map(escape).collect();
            for written in [escaped, format!("\"{name}\"")] {
                let text = format!("{before}{written}, please");
                prop_assert_eq!(all(&text), vec![(name.clone(), written.as_str())]);
            }
        }
    }
}

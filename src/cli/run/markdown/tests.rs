//! Tests that rendering keeps every letter in its order, however the text is cut.

use proptest::prelude::*;

use super::*;

fn rendered(parts: &[&str], width: usize) -> String {
    let mut markdown = Markdown::default();
    let mut shown: String = parts.iter().map(|part| markdown.push(part, width)).collect();
    shown += &markdown.finish();
    shown
}

/// What a terminal shows, without colours.
fn plain(shown: &str) -> String {
    let (mut text, mut in_code) = (String::new(), false);
    for c in shown.chars() {
        match c {
            '\x1b' => in_code = true,
            'm' if in_code => in_code = false,
            c if !in_code => text.push(c),
            _ => {}
        }
    }
    assert!(!in_code, "a code is complete: {shown:?}");
    text
}

fn letters(text: &str) -> String {
    text.chars().filter(|c| c.is_alphanumeric()).collect()
}

#[test]
fn blocks_are_shown_in_the_forms_of_a_terminal() {
    let text =
        "# Title\n\nA **bold** word.\n- one\n  * two\n1. three\n> said\n---\n```py\nif x:  # y\n```\n| a | b |\n|---|--:|\n| 1 | 2 |\nend";
    let shown = rendered(&[text], 0);
    let rule = "─".repeat(RULE);
    let due = format!("Title\n\nA bold word.\n• one\n  • two\n1. three\n│ said\n{rule}\npy\nif x:  # y\na │ b\n──┼──\n1 │ 2\nend");
    assert_eq!(plain(&shown), due);
    assert!(shown.starts_with("\x1b[1mTitle\x1b[22m\n") && shown.contains("\x1b[35mif\x1b[0m x:  \x1b[2m# y\x1b[0m"), "{shown:?}");
}

#[test]
fn what_only_looks_like_a_block_stays() {
    for text in ["#hashtag", "3.14 is pi", "-5 degrees", "2024", "1.", "-", "#", "a | b", "| no table", "~ about", "* "] {
        assert_eq!(plain(&rendered(&[text], 0)).trim_end(), text.trim_end(), "{text}");
    }
}

#[test]
fn code_keeps_its_lines_and_spaces() {
    let code = "  **not bold**   \n\n| no | table |\n\t# no heading";
    let long = "x ".repeat(3000);
    let shown = plain(&rendered(&[&format!("```\n{code}\n{long}\n```\nafter")], 20));
    assert_eq!(shown, format!("{code}\n{long}\nafter"));
    assert_eq!(plain(&rendered(&["~~~~\n```\n~~~\n~~~~\nx"], 20)), "```\n~~~\nx");
}

#[test]
fn items_hang_and_styles_end_with_their_lines() {
    assert_eq!(plain(&rendered(&["- one two three four"], 10)), "• one two\n  three\n  four");
    assert_eq!(plain(&rendered(&["> one two three four"], 10)), "│ one two\n│ three\n│ four");
    let shown = rendered(&["# A **b\nc** d"], 0);
    assert_eq!(shown, "\x1b[1mA **b\x1b[22m\nc** d");
}

#[test]
fn an_open_end_is_shown() {
    for (text, due) in [
        ("```\nlet", "let"),
        ("**bo", "**bo"),
        ("| a |\n|---|", "a\n─"),
        ("## Ti", "Ti"),
        ("a\n", "a\n"),
        ("[x](http", "[x](http"),
        ("", ""),
    ] {
        assert_eq!(plain(&rendered(&[text], 0)).trim_end(), due.trim_end(), "{text}");
    }
}

#[test]
fn text_is_shown_while_its_line_grows() {
    let mut markdown = Markdown::default();
    assert_eq!(markdown.push("Rivers flow ", 80), "Rivers flow");
    assert!(markdown.is_in_line());
    assert_eq!(markdown.push("to the", 80), " to");
    assert_eq!(markdown.push("\n| a |\n", 80), " the\n");
    assert_eq!(markdown.push("|---|\n", 80), "", "a table waits for its last row");
    assert!(plain(&markdown.push("x", 80)).starts_with("a\n─\n"));
}

/// What means something to Markdown, and words.
const PIECES: &[&str] = &[
    "\n",
    "\n\n",
    " ",
    "  ",
    "*",
    "**",
    "***",
    "_",
    "__",
    "`",
    "``",
    "```",
    "```rust\n",
    "~~",
    "~~~",
    "#",
    "## ",
    "- ",
    "* ",
    "+ ",
    "1. ",
    "12) ",
    "> ",
    "|",
    "| ",
    " |",
    "|---|\n",
    "| :-- | --: |\n",
    "---\n",
    "[",
    "](",
    ")",
    "](u)",
    "\\",
    "\\*",
    "\"",
    "'",
    "//",
    "a",
    "word",
    "two words",
    "é漢",
    "x1",
    "def",
    "\t",
    "!",
    "a_b",
    "\u{301}",
];

fn texts() -> impl Strategy<Value = String> {
    proptest::collection::vec(proptest::sample::select(PIECES), 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn no_letter_is_lost_or_moved_at_any_cut(text in texts(), cuts in proptest::collection::vec(0usize..200, 0..8), width in 0usize..40) {
        let whole = rendered(&[&text], width);
        prop_assert_eq!(letters(&plain(&whole)), letters(&text));
        let mut places: Vec<usize> = cuts.into_iter().filter(|at| *at <= text.len() && text.is_char_boundary(*at)).collect();
        places.sort_unstable();
        let (mut parts, mut from) = (Vec::new(), 0);
        for at in places {
            parts.push(&text[from..at]);
            from = at;
        }
        parts.push(&text[from..]);
        prop_assert_eq!(rendered(&parts, width), whole);
    }
}

//! A test that cannot run is ignored with a reason, and its name tells how `tests/run` chooses it.

use super::{all_rust, check};
use crate::source::{files, line_of};

/// The reasons for which a test may be ignored, each with the words that the test's name must have.
const REASONS: &[(&str, &[&str])] = &[
    ("needs a GPU", &["gpu"]),
    ("needs PENSTOCK_TEST_MODELS", &["real_model"]),
    ("needs a GPU and PENSTOCK_TEST_MODELS", &["gpu", "real_model"]),
    ("a measurement", &[]),
];

#[test]
fn ignored_tests_have_a_known_reason_and_a_name_that_tells_it() {
    let mark = concat!("#[ign", "ore");
    let mut broken = Vec::new();
    for file in all_rust() {
        for (at, _) in file.text.match_indices(mark) {
            let place = format!("{}:{}", file.path, line_of(&file.text, at));
            let reason = file.text[at..].split('"').nth(1).unwrap_or("");
            let name = file.text[at..].split("fn ").nth(1).and_then(|rest| rest.split('(').next()).unwrap_or("");
            match REASONS.iter().find(|(known, _)| *known == reason) {
                None => broken.push(format!("{place}: `{name}` is ignored for another reason than those of REASONS: \"{reason}\"")),
                Some((_, needed)) => broken.extend(
                    ["gpu", "real_model"]
                        .iter()
                        .filter(|word| needed.contains(word) != name.contains(*word))
                        .map(|word| format!("{place}: `{name}` is ignored because it {reason}: `{word}` in the name must tell so")),
                ),
            }
        }
    }
    check("ignored tests have a known reason and a name that tells it", broken);
}

#[test]
fn tests_neither_pass_in_silence_nor_read_from_outside_the_project() {
    let marks = [concat!("!(\"skip", "ped"), concat!("/../sha", "red"), concat!("\"sha", "red\" /")];
    let mut broken = Vec::new();
    for file in ["src", "tests"].into_iter().flat_map(files).filter(|file| file.path.ends_with(".rs") || file.path.ends_with(".py")) {
        for mark in marks {
            let hits = file.text.match_indices(mark);
            broken.extend(hits.map(|(at, _)| format!("{}:{}: `{mark}`", file.path, line_of(&file.text, at))));
        }
    }
    check("tests neither pass in silence nor read from outside the project", broken);
}

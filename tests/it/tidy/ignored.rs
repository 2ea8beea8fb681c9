//! Checks that a test that cannot run is ignored with a reason, and that `tests/run` can choose it by its name.

use super::{all_rust, check};
use crate::source::{Source, files, line_of};

/// The reasons for which a test may be ignored, each with the words that the test's name must contain.
const REASONS: &[(&str, &[&str])] = &[
    ("needs a GPU", &["gpu"]),
    ("needs PENSTOCK_TEST_MODELS", &["real_model"]),
    ("needs a GPU and PENSTOCK_TEST_MODELS", &["gpu", "real_model"]),
    ("a measurement", &[]),
];

/// A test that runs only on request.
struct Ignored {
    place: String,
    module: String,
    name: &'static str,
    reason: &'static str,
}

/// Every ignored test of the project's Rust code.
fn ignored() -> Vec<Ignored> {
    let mark = concat!("#[ign", "ore");
    let of_file = |file: &'static Source| {
        file.text.match_indices(mark).map(|(at, _)| Ignored {
            place: format!("{}:{}", file.path, line_of(&file.text, at)),
            module: module_of_tests(&file.path),
            name: file.text[at..].split("fn ").nth(1).and_then(|rest| rest.split('(').next()).unwrap_or(""),
            reason: file.text[at..].split('"').nth(1).unwrap_or(""),
        })
    };
    all_rust().into_iter().flat_map(of_file).collect()
}

/// The module of a test file: `src/scheduler/channel_tests.rs` is `penstock_scheduler::channel::tests`, `tests/it/long.rs` is `it::long`.
fn module_of_tests(path: &str) -> String {
    let path = path.trim_end_matches(".rs").replace("_tests", "/tests");
    path.replacen("src/", "penstock_", 1).replacen("tests/it/", "it/", 1).replace('/', "::")
}

#[test]
fn ignored_tests_have_a_known_reason_and_a_name_that_tells_it() {
    let mut broken = Vec::new();
    for Ignored { place, name, reason, .. } in ignored() {
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
    check("ignored tests have a known reason and a name that tells it", broken);
}

#[test]
fn skips_txt_lists_the_ignored_tests() {
    let listed: Vec<&str> = include_str!("../../skips.txt").lines().filter(|line| line.starts_with("rust/")).collect();
    // Complete runs have the models.
    let tests = ignored().into_iter().filter(|test| test.reason != "needs PENSTOCK_TEST_MODELS");
    let skipped: Vec<String> = tests.map(|Ignored { module, name, reason, .. }| format!("rust/{module}::{name}: {reason}")).collect();
    let missing = skipped.iter().filter(|line| !listed.contains(&line.as_str())).map(|line| format!("missing: {line}"));
    let stale = listed.iter().filter(|line| !skipped.iter().any(|skipped| skipped == *line)).map(|line| format!("no such test: {line}"));
    check("tests/skips.txt lists the ignored tests", missing.chain(stale).collect());
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

//! Checks the project's rules that a program can check. Each test prints every place that breaks its rule as `file:line: what`.

use proc_macro2::{Delimiter, TokenTree};

use crate::source::{Source, files, line_of, rust_files};
use crate::syntax::{self, flat, is_group, is_word, tokens};

mod arrows;
mod circles;
mod ignored;
mod lengths;
mod outside;

fn check(rule: &str, broken: Vec<String>) {
    assert!(broken.is_empty(), "{rule}:\n{}", broken.join("\n"));
}

/// What still breaks a rule, by kind of rule. The list may only shrink: the tests fail on an entry that breaks no rule any more.
fn still(kind: &str) -> Vec<&'static str> {
    let entries = include_str!("still.txt").lines().filter(|line| !line.starts_with('#'));
    entries.filter_map(|line| line.split_once(": ")).filter(|(found, _)| *found == kind).map(|(_, name)| name).collect()
}

/// Every Rust file of the project.
fn all_rust() -> Vec<&'static Source> {
    let all = rust_files("");
    assert!(all.len() > 100, "the walk found {} files", all.len());
    all
}

/// Whether a file holds kernels or the bindings of a device, where functions may be longer and have more parameters.
fn is_kernel(path: &str) -> bool {
    path.starts_with("src/engine/cpu/simd") || path.starts_with("src/engine/cuda") || path.starts_with("cuda/")
}

/// Whether a file is the file map, or the guard for files that are truncated while they are mapped.
fn is_file_map(path: &str) -> bool {
    ["src/gguf/map.rs", "src/gguf/guard.rs"].contains(&path)
}

/// Whether this file may hold `unsafe` and foreign functions.
fn may_be_unsafe(path: &str) -> bool {
    path.starts_with("src/engine/cpu/simd") || path.starts_with("src/engine/cuda/") || is_file_map(path)
}

#[test]
fn unsafe_stands_only_in_its_places() {
    let mut broken = Vec::new();
    for file in all_rust().into_iter().filter(|file| !may_be_unsafe(&file.path)) {
        for word in flat(tokens(file)).iter().filter(|token| ["unsafe", "extern"].iter().any(|word| is_word(token, word))) {
            let place = format!("{}:{}: `{word}`", file.path, syntax::line_of(word));
            broken.push(format!("{place} outside engine/cuda, engine/cpu/simd and the file map of gguf"));
        }
    }
    check("unsafe stands only in its places", broken);
}

#[test]
fn unsafe_says_why_it_is_sound() {
    let mut broken = Vec::new();
    for file in rust_files("src") {
        let lines: Vec<&str> = file.text.lines().collect();
        // An `unsafe fn` leaves the proof to its callers. A block or an `impl` claims that it holds.
        let claims = |next: &TokenTree| is_group(next, Delimiter::Brace) || is_word(next, "impl");
        for pair in flat(tokens(file)).windows(2).filter(|pair| is_word(&pair[0], "unsafe") && claims(&pair[1])) {
            let line = syntax::line_of(&pair[0]);
            let above = &lines[line.saturating_sub(12)..line];
            if !above.iter().any(|text| text.contains("SAFETY:") || text.contains("# Safety")) {
                broken.push(format!("{}:{line}: `unsafe` without a SAFETY comment", file.path));
            }
        }
    }
    check("unsafe says why it is sound", broken);
}

#[test]
fn nothing_is_left_unfinished() {
    let marks = [concat!("to", "do!("), concat!("unimple", "mented!("), concat!("TO", "DO"), concat!("FIX", "ME")];
    let mut broken = Vec::new();
    // The bundle of the chat page contains the marks, because its highlighter shows them.
    let is_ours = |file: &&Source| !file.path.starts_with("src/api/ops/page/");
    for file in ["src", "tests", "cuda", "benches", "page"].into_iter().flat_map(files).filter(is_ours) {
        for mark in marks {
            let hits = file.text.match_indices(mark);
            broken.extend(hits.map(|(at, _)| format!("{}:{}: `{mark}`", file.path, line_of(&file.text, at))));
        }
    }
    check("nothing is left unfinished", broken);
}

#[test]
fn the_cuda_feature_is_named_in_two_places() {
    let mut broken = Vec::new();
    for file in all_rust().into_iter().filter(|file| !["build.rs", "src/engine/lib.rs"].contains(&file.path.as_str())) {
        let hits = file.text.match_indices(concat!("feature = \"", "cuda\""));
        broken.extend(hits.map(|(at, _)| format!("{}:{}: the feature `cuda`", file.path, line_of(&file.text, at))));
    }
    check("the cuda feature is named in two places", broken);
}

#[test]
fn a_build_without_features_for_tests_has_no_faults_and_no_paced_engine() {
    let mut broken = Vec::new();
    for (room, module, feature, variable) in [
        ("src/serving", "faults", "faults", concat!("\"PENSTOCK_", "FAULTS\"")),
        ("src/engine", "paced", "test-engine", concat!("\"PENSTOCK_TEST_", "STEP_MS\"")),
    ] {
        let own = format!("{room}/{module}.rs");
        for file in rust_files("src").iter().filter(|file| file.text.contains(variable) != (file.path == own)) {
            broken.push(format!("{}: only {own} reads {variable}", file.path));
        }
        let room = rust_files("src").into_iter().find(|file| file.path == format!("{room}/lib.rs")).expect("a room has a lib.rs");
        if !room.text.contains(&format!("#[cfg(feature = \"{feature}\")]\nmod {module};")) {
            broken.push(format!("{}: the module `{module}` needs the feature `{feature}`", room.path));
        }
    }
    check("what only tests need is behind its feature", broken);
}

#[test]
fn no_package_registry_is_named() {
    let hosts = [
        concat!("py", "pi.org"),
        concat!("python", "hosted"),
        concat!("registry.", "npmjs"),
        concat!("index.", "crates.io"),
        concat!("static.", "crates.io"),
        concat!("deb.", "debian.org"),
    ];
    let mut broken = Vec::new();
    for file in files("").into_iter().filter(|file| file.path != "Cargo.lock") {
        for host in hosts {
            let hits = file.text.match_indices(host);
            broken.extend(
                hits.map(|(at, _)| format!("{}:{}: `{host}`: the clients know their registry", file.path, line_of(&file.text, at))),
            );
        }
    }
    check("no package registry is named", broken);
}

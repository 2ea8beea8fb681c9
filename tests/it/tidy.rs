//! The house's rules. Each prints every place that breaks it as `file:line: what`.

use crate::source::{Source, code_only, crate_modules, files, functions, line_of, root, rust_files, without_tests, words};

const MAX_FILE_LINES: usize = 600;
const MAX_FUNCTION_LINES: usize = 70;
const MAX_HANDLER_LINES: usize = 60;
const MAX_PARAMS: usize = 6;

/// Which of the crate's modules each may name: the arrows of `src/lib.rs`. `cli` sits on top and may name all.
const ARROWS: &[(&str, &[&str])] = &[
    ("gguf", &[]),
    ("logits", &[]),
    ("config", &[]),
    ("metrics", &[]),
    ("template", &[]),
    ("telemetry", &["config"]),
    ("tokenizer", &["gguf"]),
    ("grammar", &["logits", "tokenizer"]),
    ("answer", &["grammar", "logits", "template", "tokenizer"]),
    ("model", &["gguf"]),
    ("engine", &["model", "gguf", "logits"]),
    ("scheduler", &["engine", "model", "logits", "metrics"]),
    ("registry", &["answer", "config", "engine", "gguf", "grammar", "logits", "metrics", "model", "scheduler", "template", "tokenizer"]),
    ("serving", &["answer", "config", "grammar", "logits", "metrics", "model", "registry", "scheduler", "template", "tokenizer"]),
    ("api", &["config", "logits", "metrics", "registry", "scheduler", "serving", "telemetry", "template"]),
];

fn check(rule: &str, broken: Vec<String>) {
    assert!(broken.is_empty(), "{rule}:\n{}", broken.join("\n"));
}

/// Every Rust file of the crate and its tests.
fn all_rust() -> Vec<Source> {
    let mut all = rust_files("src");
    all.extend(rust_files("tests"));
    all.extend(rust_files("benches"));
    all.extend(std::fs::read_to_string(root().join("build.rs")).ok().map(|text| Source { path: "build.rs".into(), text }));
    assert!(all.len() > 20, "the walk found the sources");
    all
}

fn is_kernel(path: &str) -> bool {
    path.starts_with("src/engine/cpu/simd") || path.starts_with("src/engine/cuda") || path.starts_with("cuda/")
}

#[test]
fn files_are_short() {
    let is_source = |path: &str| [".rs", ".cu", ".cuh", ".h", ".py", ".mjs"].iter().any(|end| path.ends_with(end));
    let broken = files("").into_iter().filter(|file| is_source(&file.path)).filter_map(|file| {
        let lines = file.text.lines().count();
        (lines > MAX_FILE_LINES).then(|| format!("{}:{lines}: {lines} lines, {MAX_FILE_LINES} is the end", file.path))
    });
    check("files are short", broken.collect());
}

#[test]
fn functions_are_short_and_take_few_parameters() {
    let mut broken = Vec::new();
    for file in all_rust() {
        for function in functions(&code_only(&file.text)) {
            let place = format!("{}:{}: `{}`", file.path, function.line, function.name);
            if function.num_lines > MAX_FUNCTION_LINES && !is_kernel(&file.path) {
                broken.push(format!("{place} has {} lines, {MAX_FUNCTION_LINES} is the end", function.num_lines));
            }
            if function.num_params > MAX_PARAMS && !is_kernel(&file.path) {
                broken.push(format!("{place} has {} parameters, {MAX_PARAMS} is the end", function.num_params));
            }
        }
    }
    check("functions are short and take few parameters", broken);
}

#[test]
fn handlers_are_thin() {
    let mut broken = Vec::new();
    for file in rust_files("src/api") {
        for function in functions(without_tests(&code_only(&file.text))) {
            if function.num_lines > MAX_HANDLER_LINES {
                let lines = function.num_lines;
                broken.push(format!(
                    "{}:{}: `{}` has {lines} lines, {MAX_HANDLER_LINES} is the end",
                    file.path, function.line, function.name
                ));
            }
        }
    }
    check("handlers are thin", broken);
}

/// May this file hold `unsafe` and foreign functions?
fn may_be_unsafe(path: &str) -> bool {
    path.starts_with("src/engine/cpu/simd") || path.starts_with("src/engine/cuda/") || path.starts_with("src/gguf/")
}

#[test]
fn unsafe_stands_in_its_places_only() {
    let mut broken = Vec::new();
    let mut in_gguf = Vec::new();
    for file in all_rust() {
        let code = code_only(&file.text);
        for word in ["unsafe", "extern"] {
            for at in words(&code, word) {
                let place = format!("{}:{}: `{word}`", file.path, line_of(&code, at));
                if !may_be_unsafe(&file.path) {
                    broken.push(format!("{place} outside of engine/cuda, engine/cpu/simd and gguf's map"));
                } else if file.path.starts_with("src/gguf/") {
                    in_gguf.push(place);
                }
            }
        }
    }
    if in_gguf.len() > 1 {
        broken.extend(in_gguf.iter().map(|place| format!("{place}: gguf maps files in one place only")));
    }
    check("unsafe stands in its places only", broken);
}

#[test]
fn unsafe_says_why_it_is_sound() {
    let mut broken = Vec::new();
    for file in rust_files("src") {
        let code = code_only(&file.text);
        let lines: Vec<&str> = file.text.lines().collect();
        // an `unsafe fn` passes the duty on to its callers; a block or an impl claims to have met it
        let claims = |at: &usize| ["{", "impl"].iter().any(|next| code[at + "unsafe".len()..].trim_start().starts_with(next));
        for at in words(&code, "unsafe").into_iter().filter(claims) {
            let line = line_of(&code, at);
            let above = &lines[line.saturating_sub(12)..line];
            if !above.iter().any(|text| text.contains("SAFETY:") || text.contains("# Safety")) {
                broken.push(format!("{}:{line}: `unsafe` without a SAFETY comment", file.path));
            }
        }
    }
    check("unsafe says why it is sound", broken);
}

#[test]
fn arrows_point_down() {
    let mut broken = Vec::new();
    for (module, allowed) in ARROWS {
        let of_module = |path: &str| path == format!("src/{module}.rs") || path.starts_with(&format!("src/{module}/"));
        for file in rust_files("src").into_iter().filter(|file| of_module(&file.path) && !file.path.ends_with("tests.rs")) {
            let code = code_only(&file.text);
            for (name, at) in crate_modules(without_tests(&code)) {
                if name != *module && !allowed.contains(&name.as_str()) {
                    broken.push(format!("{}:{}: `{module}` must not know `{name}`", file.path, line_of(&code, at)));
                }
            }
        }
    }
    check("arrows point down", broken);
}

#[test]
fn every_module_has_its_arrows() {
    let lib = std::fs::read_to_string(root().join("src/lib.rs")).expect("src/lib.rs");
    let modules = lib.lines().filter_map(|line| line.strip_prefix("pub mod ").and_then(|rest| rest.strip_suffix(';')));
    let missing = modules.filter(|name| *name != "cli" && !ARROWS.iter().any(|(module, _)| module == name));
    check("every module has its arrows", missing.map(|name| format!("src/lib.rs:1: `{name}` is not in ARROWS")).collect());
}

#[test]
fn nothing_is_left_unfinished() {
    let marks = [concat!("to", "do!("), concat!("unimple", "mented!("), concat!("TO", "DO"), concat!("FIX", "ME")];
    let mut broken = Vec::new();
    for file in ["src", "tests", "cuda", "benches"].into_iter().flat_map(files) {
        for mark in marks {
            let hits = file.text.match_indices(mark);
            broken.extend(hits.map(|(at, _)| format!("{}:{}: `{mark}`", file.path, line_of(&file.text, at))));
        }
    }
    check("nothing is left unfinished", broken);
}

#[test]
fn the_cuda_feature_is_known_in_two_places() {
    let mut broken = Vec::new();
    for file in all_rust().into_iter().filter(|file| !["build.rs", "src/engine/mod.rs"].contains(&file.path.as_str())) {
        let hits = file.text.match_indices(concat!("feature = \"", "cuda\""));
        broken.extend(hits.map(|(at, _)| format!("{}:{}: the feature `cuda`", file.path, line_of(&file.text, at))));
    }
    check("the cuda feature is known in two places", broken);
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
            broken.extend(hits.map(|(at, _)| format!("{}:{}: `{host}`: clients know their registry", file.path, line_of(&file.text, at))));
        }
    }
    check("no package registry is named", broken);
}

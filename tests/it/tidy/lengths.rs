//! Checks the maximum lengths of files, functions, parameter lists and lines.

use std::collections::BTreeMap;

use super::{all_rust, check, is_kernel, still};
use crate::source::{files, rust_files};
use crate::syntax::{c_functions, functions, tokens, tokens_without_tests};

const MAX_FILE_LINES: usize = 600;
const MAX_FUNCTION_LINES: usize = 70;
const MAX_HANDLER_LINES: usize = 60;
const MAX_CUDA_FUNCTION_LINES: usize = 120;
const MAX_PARAMS: usize = 6;
const MAX_COLUMNS: usize = 140;

/// Files whose lines may be longer: test data, generated files, third-party texts, and JSON with long texts.
const LONG_LINES: &[&str] = &[
    "Cargo.lock",
    "LICENSE",
    "deploy/grafana/penstock.json",
    "fuzz/found/",
    "openapi/openapi.json",
    "page/package-lock.json",
    "src/api/ops/page/",
    "tests/clients/package-lock.json",
    "tests/golden/",
];

#[test]
fn files_are_short() {
    let is_source = |path: &str| [".rs", ".cu", ".cuh", ".h", ".py", ".mjs"].iter().any(|end| path.ends_with(end));
    let broken = files("").into_iter().filter(|file| is_source(&file.path)).filter_map(|file| {
        let lines = file.text.lines().count();
        (lines > MAX_FILE_LINES).then(|| format!("{}:{lines}: {lines} lines, at most {MAX_FILE_LINES} are allowed", file.path))
    });
    check("files are short", broken.collect());
}

#[test]
fn lines_are_short() {
    let mut long: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files("").into_iter().filter(|file| !LONG_LINES.iter().any(|name| file.path.starts_with(name))) {
        for (i, line) in file.text.lines().enumerate().filter(|(_, line)| line.chars().count() > MAX_COLUMNS) {
            let place = format!("{}:{}: {} columns, at most {MAX_COLUMNS} are allowed", file.path, i + 1, line.chars().count());
            long.entry(file.path.clone()).or_default().push(place);
        }
    }
    let still = still("long line");
    let gone = still.iter().filter(|path| !long.contains_key(**path));
    let mut broken: Vec<String> = gone.map(|path| format!("{path}: no long line any more: remove it from still.txt")).collect();
    broken.extend(long.into_iter().filter(|(path, _)| !still.contains(&path.as_str())).flat_map(|(_, places)| places));
    check("lines are short", broken);
}

#[test]
fn functions_are_short_and_take_few_parameters() {
    let mut broken = Vec::new();
    for file in all_rust().into_iter().filter(|file| !is_kernel(&file.path)) {
        for function in functions(tokens(file)) {
            let place = format!("{}:{}: `{}`", file.path, function.line, function.name);
            if function.num_lines > MAX_FUNCTION_LINES {
                broken.push(format!("{place} has {} lines, at most {MAX_FUNCTION_LINES} are allowed", function.num_lines));
            }
            if function.num_params > MAX_PARAMS {
                broken.push(format!("{place} has {} parameters, at most {MAX_PARAMS} are allowed", function.num_params));
            }
        }
    }
    check("functions are short and take few parameters", broken);
}

#[test]
fn handlers_are_thin() {
    let mut broken = Vec::new();
    for file in rust_files("src/api") {
        for function in functions(tokens_without_tests(file)).iter().filter(|function| function.num_lines > MAX_HANDLER_LINES) {
            let (path, line, lines) = (&file.path, function.line, function.num_lines);
            broken.push(format!("{path}:{line}: `{}` has {lines} lines, at most {MAX_HANDLER_LINES} are allowed", function.name));
        }
    }
    check("handlers are thin", broken);
}

#[test]
fn functions_of_cuda_are_short() {
    let (mut broken, mut long, mut count) = (Vec::new(), Vec::new(), 0);
    let still = still("long function");
    for file in files("cuda").into_iter().filter(|file| [".cu", ".cuh", ".h"].iter().any(|end| file.path.ends_with(end))) {
        let found = c_functions(file);
        count += found.len();
        for function in found.into_iter().filter(|function| function.num_lines > MAX_CUDA_FUNCTION_LINES) {
            let (name, lines) = (format!("{}: {}", file.path, function.name), function.num_lines);
            if !still.contains(&name.as_str()) {
                let place = format!("{}:{}: `{}`", file.path, function.line, function.name);
                broken.push(format!("{place} has {lines} lines, at most {MAX_CUDA_FUNCTION_LINES} are allowed"));
            }
            long.push(name);
        }
    }
    assert!(count > 100, "the walk found {count} functions");
    let gone = still.iter().filter(|name| !long.iter().any(|found| found == *name));
    broken.extend(gone.map(|name| format!("{name}: not that long any more: remove it from still.txt")));
    check("functions of CUDA are short", broken);
}

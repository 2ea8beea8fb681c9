//! Tells the binary what it was built from, for `penstock --version`: a commit, the target and the features.
//!
//! The commit is `PENSTOCK_BUILD` if it is set, as a build outside of a checkout may have it (the Dockerfile, `tools/package`). Otherwise
//! git tells it, if this folder is the top of a checkout. A source archive without either says that the commit is unknown.

use std::path::Path;
use std::process::Command;

/// What the binary is made of. The script runs again if one of these changes, and so does the crate, which stands on them.
const SOURCES: &[&str] = &["Cargo.lock", "Cargo.toml", "build", "build.rs", "config", "cuda", "src"];

fn main() {
    println!("cargo::rerun-if-env-changed=PENSTOCK_BUILD");
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
    }
    let told = std::env::var("PENSTOCK_BUILD").ok().filter(|build| !build.trim().is_empty());
    let commit = told.or_else(commit).unwrap_or_else(|| "unknown (built outside of a git checkout)".into());
    println!("cargo::rustc-env=PENSTOCK_COMMIT={commit}");
    println!("cargo::rustc-env=PENSTOCK_TARGET={}", std::env::var("TARGET").expect("cargo tells the target"));
    println!("cargo::rustc-env=PENSTOCK_FEATURES={}", features().join(", "));
}

/// The features of the root crate that are on, in cargo's spelling.
fn features() -> Vec<String> {
    let names = std::env::vars().filter_map(|(name, _)| Some(name.strip_prefix("CARGO_FEATURE_")?.to_lowercase().replace('_', "-")));
    let mut names: Vec<String> = names.filter(|name| name != "default").collect();
    names.sort();
    if names.is_empty() { vec!["none".into()] } else { names }
}

/// The commit of this checkout, and whether the sources differ from it. None: this folder is no checkout, or there is no git.
fn commit() -> Option<String> {
    let root = std::env::var("CARGO_MANIFEST_DIR").ok()?;
    // a source archive may lie inside somebody else's checkout, whose commit says nothing about it
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != Path::new(&root).canonicalize().ok()? {
        return None;
    }
    // a commit, a checkout and a merge all write a line there
    println!("cargo::rerun-if-changed={}", git(&["rev-parse", "--git-path", "logs/HEAD"])?);
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&[&["status", "--porcelain", "--untracked-files=no", "--"], SOURCES].concat())?;
    Some(if changed.is_empty() { commit } else { format!("{commit}, with changes") })
}

/// What git prints. None: it fails, or there is none.
fn git(args: &[&str]) -> Option<String> {
    // without the lock that `git status` may take to store what it has found
    let done = Command::new("git").env("GIT_OPTIONAL_LOCKS", "0").args(args).output().ok().filter(|done| done.status.success())?;
    Some(String::from_utf8(done.stdout).ok()?.trim().to_owned())
}

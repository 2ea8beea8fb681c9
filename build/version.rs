//! Tells the binary what it was built from, for `penstock --version`: a commit, the target and the features.
//!
//! The commit is `PENSTOCK_BUILD` if that is set, for builds outside of a checkout (the Dockerfile, `tools/package`). Otherwise git
//! provides the commit if this folder is the top of a checkout. In a source archive without either, the commit is unknown.

use std::path::Path;
use std::process::Command;

/// The sources of the binary. If one of these changes, the script runs again and the crate is rebuilt.
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

/// The enabled features of the root crate, in cargo's spelling.
fn features() -> Vec<String> {
    let names = std::env::vars().filter_map(|(name, _)| Some(name.strip_prefix("CARGO_FEATURE_")?.to_lowercase().replace('_', "-")));
    let mut names: Vec<String> = names.filter(|name| name != "default").collect();
    names.sort();
    if names.is_empty() { vec!["none".into()] } else { names }
}

/// The commit of this checkout, and whether the sources differ from it. `None` if this folder is no checkout or if there is no git.
fn commit() -> Option<String> {
    let root = std::env::var("CARGO_MANIFEST_DIR").ok()?;
    // A source archive may be inside another checkout, whose commit says nothing about it.
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != Path::new(&root).canonicalize().ok()? {
        return None;
    }
    // A commit, a checkout and a merge all add a line to this file.
    println!("cargo::rerun-if-changed={}", git(&["rev-parse", "--git-path", "logs/HEAD"])?);
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&[&["status", "--porcelain", "--untracked-files=no", "--"], SOURCES].concat())?;
    Some(if changed.is_empty() { commit } else { format!("{commit}, with changes") })
}

/// Returns the output of a git command, or `None` if it fails or if there is no git.
fn git(args: &[&str]) -> Option<String> {
    // Avoids the lock that `git status` may take to store its results.
    let done = Command::new("git").env("GIT_OPTIONAL_LOCKS", "0").args(args).output().ok().filter(|done| done.status.success())?;
    Some(String::from_utf8(done.stdout).ok()?.trim().to_owned())
}

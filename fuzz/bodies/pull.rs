//! Parses what a download's server sends.

use std::hint::black_box;

use catalogue::untrusted::{files_of_manifest, next_page, picked, redirected};

use crate::sections::{sections, text};

const HUB: &str = "https://hub.example/owner/repo/resolve/main/model.gguf";

/// The input: the kind, then one of these: a page of a listing, a file and a type; a `Link` header; a redirect's target and origin; a
/// manifest.
pub fn body(input: &[u8]) {
    let Some((kind, rest)) = input.split_first() else { return };
    let [first, second, third] = sections(rest).map(text);
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    match kind % 4 {
        0 => {
            for path in picked(&first, some(second).as_deref(), some(third).as_deref()).unwrap_or_default() {
                assert!(path.split('/').all(|part| !part.is_empty() && part != ".."), "{path:?} leaves its folder");
            }
        }
        1 => drop(black_box(next_page(&first).map(str::len))),
        2 => {
            let from = some(second).unwrap_or_else(|| HUB.to_owned());
            if let Some(target) = redirected(HUB, &from, &first) {
                assert!(target.starts_with("https://"), "{target:?} is not https");
            }
        }
        _ => drop(black_box(files_of_manifest(rest))),
    }
}

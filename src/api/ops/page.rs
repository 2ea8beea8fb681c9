//! The chat page at `/`, and its files under `/page/`. All are part of the binary, and the page loads nothing from elsewhere. The sources
//! are in `page/` at the top of the project (docs/page.md).

use std::io::Write as _;
use std::sync::LazyLock;

use actix_web::http::header;
use actix_web::{HttpRequest, HttpResponse, web};
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

use http::routes::not_found;
use http::state::AppState;

/// The page's content security policy. It allows this server's own scripts, styles and fonts, requests to this server, and blobs: the
/// pictures that the user attaches. It forbids HTML made from text.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; connect-src 'self'; \
    img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
    trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const FONT: &str = "font/woff2";

/// A file of the chat page.
struct File {
    name: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
    /// `bytes` compressed with gzip. `None` for a font, which is compressed already.
    gzip: Option<Vec<u8>>,
    /// A digest of `bytes`, for the `etag` header.
    tag: String,
}

impl File {
    fn new(name: &'static str, kind: &'static str, bytes: &'static [u8]) -> Self {
        let digest = Sha256::digest(bytes);
        let tag = digest[..12].iter().map(|byte| format!("{byte:02x}")).collect();
        Self { name, kind, bytes, gzip: (kind != FONT).then(|| gzip(bytes)), tag }
    }
}

macro_rules! files {
    ($($kind:ident: $($name:literal)+;)+) => {
        vec![$($(File::new($name, $kind, include_bytes!(concat!("page/", $name)))),+),+]
    };
}

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

static FILES: LazyLock<Vec<File>> = LazyLock::new(|| {
    files! {
        HTML: "index.html";
        SCRIPT: "app.js";
        STYLE: "app.css";
        TEXT: "licences.txt";
        FONT: "fonts/KaTeX_AMS-Regular.woff2" "fonts/KaTeX_Caligraphic-Regular.woff2" "fonts/KaTeX_Fraktur-Regular.woff2"
            "fonts/KaTeX_Main-Bold.woff2" "fonts/KaTeX_Main-Italic.woff2" "fonts/KaTeX_Main-Regular.woff2" "fonts/KaTeX_Math-Italic.woff2"
            "fonts/KaTeX_Script-Regular.woff2" "fonts/KaTeX_Size1-Regular.woff2" "fonts/KaTeX_Size2-Regular.woff2"
            "fonts/KaTeX_Size3-Regular.woff2" "fonts/KaTeX_Size4-Regular.woff2" "fonts/KaTeX_Typewriter-Regular.woff2";
    }
});

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("memory takes every byte")
}

/// Serves `/`, unless the configuration turns the page off.
pub async fn chat(state: web::Data<AppState>, request: HttpRequest) -> HttpResponse {
    answer(&state, request, "index.html").await
}

/// Serves `/page/{file}`.
pub async fn file(state: web::Data<AppState>, request: HttpRequest, name: web::Path<String>) -> HttpResponse {
    answer(&state, request, &name).await
}

async fn answer(state: &AppState, request: HttpRequest, name: &str) -> HttpResponse {
    let found = FILES.iter().find(|file| state.chat_page && file.name == name);
    // The HTML document is served at its own address only, because its relative links are right only there.
    let Some(file) = found.filter(|file| file.kind != HTML || request.path() == "/") else { return not_found(request).await };
    let asked = |name: header::HeaderName| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let tag = format!("\"{}\"", file.tag);
    let is_known = asked(header::IF_NONE_MATCH).split(',').any(|known| known.trim().trim_start_matches("W/") == tag);
    let mut response = if is_known { HttpResponse::NotModified() } else { HttpResponse::Ok() };
    response
        .insert_header((header::ETAG, tag))
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        .insert_header((header::VARY, "accept-encoding"))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"));
    if file.kind == HTML {
        response
            .insert_header((header::CONTENT_SECURITY_POLICY, POLICY))
            .insert_header((header::REFERRER_POLICY, "no-referrer"))
            .insert_header(("cross-origin-opener-policy", "same-origin"));
    }
    if is_known {
        return response.finish();
    }
    response.content_type(file.kind);
    match &file.gzip {
        Some(packed) if takes_gzip(asked(header::ACCEPT_ENCODING)) => {
            response.insert_header((header::CONTENT_ENCODING, "gzip")).body(packed.as_slice())
        }
        _ => response.body(file.bytes),
    }
}

/// Whether the `accept-encoding` header lists gzip and does not refuse it.
fn takes_gzip(accepted: &str) -> bool {
    accepted.split(',').any(|one| {
        let (name, weight) = one.split_once(';').unwrap_or((one, ""));
        let is_refused = weight.trim().strip_prefix("q=").is_some_and(|q| q.parse::<f32>().is_ok_and(|q| q == 0.0));
        name.trim().eq_ignore_ascii_case("gzip") && !is_refused
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size at which a phone on a slow network still loads the page within a few seconds [bytes].
    const MAX_COMPRESSED: usize = 350_000;

    fn text(name: &str) -> &'static str {
        let file = FILES.iter().find(|file| file.name == name).unwrap();
        std::str::from_utf8(file.bytes).unwrap()
    }

    #[test]
    fn the_page_is_small() {
        let size: usize = FILES.iter().map(|file| file.gzip.as_ref().map_or(file.bytes.len(), Vec::len)).sum();
        assert!(size <= MAX_COMPRESSED, "{size} bytes");
    }

    #[test]
    fn every_file_that_the_build_makes_is_served() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("page");
        let names = |folder: &std::path::Path| {
            let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            entries.filter(|path| path.is_file()).map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let mut made: Vec<String> = names(&folder);
        made.extend(names(&folder.join("fonts")).into_iter().map(|name| format!("fonts/{name}")));
        made.sort();
        let mut served: Vec<&str> = FILES.iter().map(|file| file.name).collect();
        served.sort_unstable();
        assert_eq!(made, served);
    }

    #[test]
    fn the_document_has_no_script_and_no_style_of_its_own() {
        let page = text("index.html");
        assert_eq!((page.matches("<script").count(), page.matches("</script>").count()), (1, 1));
        assert!(page.contains("<script src=\"page/app.js\" defer></script>") && page.contains("href=\"page/app.css\""));
        for word in ["<style", " style=", " onclick=", " onload=", "javascript:"] {
            assert!(!page.contains(word), "{word}");
        }
        for (at, _) in page.match_indices("://") {
            assert!(page[at + 3..].starts_with("www.w3.org/2000/svg"), "{}", &page[at..at + 40]);
        }
    }

    #[test]
    fn our_scripts_make_no_html_and_compile_nothing() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../page/src");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let source = std::fs::read_to_string(&path).unwrap();
            for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser", "srcdoc"] {
                assert!(!source.contains(word), "{}: {word}", path.display());
            }
            count += 1;
        }
        assert!(count > 10, "{count} files");
    }

    #[test]
    fn compressed_files_go_to_those_that_take_them() {
        for yes in ["gzip", "deflate, gzip;q=0.5", "br, GZIP"] {
            assert!(takes_gzip(yes), "{yes}");
        }
        for no in ["", "br", "gzip;q=0", "identity, gzip; q=0.0"] {
            assert!(!takes_gzip(no), "{no}");
        }
    }
}

//! The chat page at `/`: one document from the binary, which loads nothing from elsewhere.

use std::sync::LazyLock;

use actix_web::http::header;
use actix_web::{HttpRequest, HttpResponse, web};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::http::routes::not_found;
use crate::http::state::AppState;

const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/script.js");

static PAGE: LazyLock<String> = LazyLock::new(|| include_str!("page/index.html").replace("{{style}}", STYLE).replace("{{script}}", SCRIPT));

/// The page's content security policy. It allows the page's own script and style by their hashes and requests to this server. It forbids
/// making HTML from text.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |text: &str| STANDARD.encode(Sha256::digest(text));
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        hash(SCRIPT),
        hash(STYLE)
    )
});

/// `/`, unless the configuration turns the page off
pub async fn chat(state: web::Data<AppState>, request: HttpRequest) -> HttpResponse {
    if !state.chat_page {
        return not_found(request).await;
    }
    HttpResponse::Ok()
        .content_type("text/html; charset=utf-8")
        .insert_header((header::CONTENT_SECURITY_POLICY, POLICY.as_str()))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .insert_header((header::REFERRER_POLICY, "no-referrer"))
        .insert_header(("cross-origin-opener-policy", "same-origin"))
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        .body(PAGE.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_one_script_and_one_style_and_loads_nothing() {
        for tag in ["<script", "<style"] {
            assert_eq!(PAGE.matches(tag).count(), 1, "{tag}");
        }
        for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", " style=", " onclick="] {
            assert!(!PAGE.contains(word), "{word}");
        }
        let hosts = PAGE.match_indices("://").filter(|(at, _)| !PAGE[at + 3..].starts_with("www.w3.org/2000/svg"));
        assert_eq!(hosts.count(), 0);
        assert!(!PAGE.contains("{{"));
    }
}

//! Tests of the assembled API: the dialects together with the operators' routes.

use config::{Config, ConfigSources, Overrides};

/// Compares the committed OpenAPI document with the code. `PENSTOCK_BLESS=1` rewrites the document.
#[test]
fn the_committed_document_is_current() {
    let env = vec![("HOME".to_owned(), "/home/u".to_owned())];
    let config = Config::load_from(&ConfigSources { env, ..Default::default() }, &Overrides::default()).unwrap();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../openapi/openapi.json");
    let text = ops::openapi_json(&super::dialects(&config));
    if std::env::var_os("PENSTOCK_BLESS").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap();
    assert!(committed == text, "openapi/openapi.json is not what the code says: run this test with PENSTOCK_BLESS=1");
}

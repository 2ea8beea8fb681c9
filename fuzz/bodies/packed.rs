//! Unpacks compressed bodies. The server reads no multipart bodies.

use api::untrusted::{request, unpacked};

use crate::request::LIMITS;

/// Largest body [bytes].
const LIMIT: usize = 1 << 20;

/// The input: gzip, deflate or zstd, then the body.
pub fn body(input: &[u8]) {
    let Some((kind, packed)) = input.split_first() else { return };
    if let Ok(body) = unpacked(packed, kind % 3, LIMIT) {
        assert!(body.len() <= LIMIT);
        let _ = std::hint::black_box(request("/v1/chat/completions", &body, &LIMITS));
    }
}

//! SHA-256 digests of files.

use std::io::Read;
use std::path::Path;

use outside::open_regular;
use sha2::{Digest, Sha256};

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The SHA-256 of a file.
pub fn sha256_of(path: &Path) -> std::io::Result<String> {
    let (mut file, mut hasher, mut buffer) = (open_regular(path)?, Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hasher.finalize())),
            n => hasher.update(&buffer[..n]),
        }
    }
}

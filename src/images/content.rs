//! What identifies a picture's rows: the prefix cache and the cache of encoded rows compare this, so two pictures never share rows unless
//! their pixels and the settings are equal.

use std::hash::{Hash, Hasher};

use sha2::{Digest, Sha256};

use crate::{PictureSettings, Rgb};

/// SHA-256 as a `Hasher`, so that a type that can be hashed can be digested. Only its digest is of use.
struct DigestHasher(Sha256);

impl Hasher for DigestHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        u64::from_le_bytes(*self.0.clone().finalize().first_chunk().expect("a digest has 32 bytes"))
    }
}

impl PictureSettings {
    /// SHA-256 of a picture's pixels with the settings.
    pub fn picture_id(&self, picture: &Rgb) -> [u8; 32] {
        let mut hasher = DigestHasher(Sha256::new());
        self.hash(&mut hasher);
        (picture.width, picture.height).hash(&mut hasher);
        hasher.0.update(&picture.pixels);
        hasher.0.finalize().into()
    }
}

/// The source of the rows of a plan's chunk (`scheduler::RowRun::source`). The prefix cache adds a row's index in its chunk.
pub fn chunk_source(picture_id: &[u8; 32], chunk: usize) -> [u8; 32] {
    Sha256::new().chain_update(picture_id).chain_update((chunk as u64).to_le_bytes()).finalize().into()
}

//! Computes a short fingerprint of a model file's contents.

use sha2::{Digest, Sha256};

use crate::file::GgufFile;

/// Bytes hashed per tensor. They tell fine-tunes apart without reading whole files.
const SAMPLE: u64 = 4096;

impl GgufFile {
    /// Twelve hexadecimal digits of a hash over the files' lengths, the metadata, the tensor table and the first bytes of each tensor.
    pub fn digest(&self) -> String {
        let mut hasher = Sha256::new();
        for (shard, (_, map)) in self.shards.iter().enumerate() {
            let bytes = map.bytes();
            let tensors = || self.tensors.iter().filter(|tensor| tensor.shard == shard);
            let header = tensors().map(|tensor| tensor.offset).min().unwrap_or(bytes.len() as u64);
            hasher.update((bytes.len() as u64).to_le_bytes());
            hasher.update(&bytes[..header as usize]);
            for tensor in tensors() {
                hasher.update(&bytes[tensor.offset as usize..(tensor.offset + tensor.nbytes.min(SAMPLE)) as usize]);
            }
        }
        hasher.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GgufBuilder;

    #[test]
    fn the_digest_depends_on_contents_and_not_on_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let digest = |name: &str, key: &str, weight: u8| {
            let path = dir.path().join(name);
            GgufBuilder::new().kv("general.name", key).tensor("w", &[32], 24, vec![weight; 32]).write(&path).unwrap();
            GgufFile::open(&path).unwrap().digest()
        };
        let first = digest("a.gguf", "x", 1);
        assert!(first.len() == 12 && first.chars().all(|c| c.is_ascii_hexdigit()), "{first}");
        assert_eq!(first, digest("b.gguf", "x", 1));
        assert_ne!(first, digest("c.gguf", "y", 1), "metadata");
        assert_ne!(first, digest("d.gguf", "x", 2), "weights");
    }
}

//! Computes a short fingerprint of a model file's contents.

use sha2::{Digest, Sha256};

use crate::file::GgufFile;

/// Bytes hashed per tensor. They tell fine-tunes apart without reading whole files.
const SAMPLE: u64 = 4096;

/// The bytes that a thread hashes at once.
const CHUNK: usize = 32 << 20;

impl GgufFile {
    /// The hash of everything in the file, over hashes of its parts, which all processors compute. Reads the whole file.
    pub fn whole_digest(&self) -> [u8; 32] {
        let lengths = self.shards.iter().map(|(_, map)| map.bytes().len() as u64);
        let mut hasher = lengths.fold(Sha256::new(), |hasher, len| hasher.chain_update(len.to_le_bytes()));
        let chunks: Vec<&[u8]> = self.shards.iter().flat_map(|(_, map)| map.bytes().chunks(CHUNK)).collect();
        let share = chunks.len().div_ceil(std::thread::available_parallelism().map_or(1, usize::from)).max(1);
        std::thread::scope(|scope| {
            let hash = |chunks: &[&[u8]]| chunks.iter().map(Sha256::digest).collect::<Vec<_>>();
            let threads: Vec<_> = chunks.chunks(share).map(|chunks| scope.spawn(move || hash(chunks))).collect();
            threads
                .into_iter()
                .for_each(|thread| thread.join().expect("hashing does not fail").iter().for_each(|digest| hasher.update(digest)));
        });
        hasher.finalize().into()
    }

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
        let whole = |name: &str| GgufFile::open(&dir.path().join(name)).unwrap().whole_digest();
        assert_eq!(whole("a.gguf"), whole("b.gguf"));
        assert!(whole("c.gguf") != whole("a.gguf") && whole("d.gguf") != whole("a.gguf"));
    }
}

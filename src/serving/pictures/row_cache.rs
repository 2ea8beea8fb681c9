//! [`RowCache`]: rows of pictures that were encoded lately, so that the next turn of a conversation does not encode its pictures again.

use std::collections::HashMap;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::rules::EncodedPicture;

/// Identifies a file for one tenant. Tenants do not share rows, so that none learns from the time of an answer what another has sent.
pub(super) type PictureKey = [u8; 32];

pub(super) fn picture_key(file: &[u8], salt: u64) -> PictureKey {
    Sha256::new().chain_update(salt.to_le_bytes()).chain_update(file).finalize().into()
}

/// The most recently used pictures, up to a number of bytes.
pub(super) struct RowCache {
    pictures: HashMap<PictureKey, (u64, Arc<EncodedPicture>)>,
    bytes: usize,
    max_bytes: usize,
    uses: u64,
}

impl RowCache {
    pub fn new(max_bytes: usize) -> Self {
        Self { pictures: HashMap::new(), bytes: 0, max_bytes, uses: 0 }
    }

    pub fn get(&mut self, key: &PictureKey) -> Option<Arc<EncodedPicture>> {
        self.uses += 1;
        let (used, picture) = self.pictures.get_mut(key)?;
        *used = self.uses;
        Some(picture.clone())
    }

    /// Keeps a picture's rows, unless they alone exceed the bound.
    pub fn insert(&mut self, key: PictureKey, picture: Arc<EncodedPicture>) {
        if picture.num_bytes() > self.max_bytes {
            return;
        }
        self.uses += 1;
        self.bytes += picture.num_bytes();
        if let Some((_, old)) = self.pictures.insert(key, (self.uses, picture)) {
            self.bytes -= old.num_bytes();
        }
        while self.bytes > self.max_bytes {
            let oldest = self.pictures.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| *key);
            let Some((_, old)) = oldest.and_then(|key| self.pictures.remove(&key)) else { return };
            self.bytes -= old.num_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scheduler::{Layout, RowRun};

    fn picture(rows: usize) -> Arc<EncodedPicture> {
        let embeddings = vec![0.0; 256 * rows].into();
        let run = RowRun { source: [0; 32], embeddings, num_rows: rows, layout: Layout::Line, is_whole: false };
        Arc::new(EncodedPicture { runs: vec![run] })
    }

    #[test]
    fn the_least_recently_used_picture_leaves_first() {
        let mut cache = RowCache::new(3 * picture(4).num_bytes());
        for key in 0..3 {
            cache.insert([key; 32], picture(4));
        }
        assert!(cache.get(&[0; 32]).is_some());
        cache.insert([3; 32], picture(4));
        let kept = (0..4).filter(|key| cache.get(&[*key; 32]).is_some()).collect::<Vec<_>>();
        assert_eq!((kept, cache.bytes), (vec![0, 2, 3], cache.max_bytes));
        cache.insert([4; 32], picture(100));
        assert!(cache.get(&[4; 32]).is_none() && cache.get(&[0; 32]).is_some(), "rows that exceed the bound push nothing out");
        cache.insert([0; 32], picture(8));
        assert_eq!(cache.pictures.len(), 2);
    }

    #[test]
    fn tenants_have_keys_of_their_own() {
        assert_ne!(picture_key(b"a", 1), picture_key(b"a", 2));
        assert_ne!(picture_key(b"a", 1), picture_key(b"b", 1));
    }
}

//! The format of a file. All numbers are little-endian.
//!
//! | bytes | |
//! |---|---|
//! | 8 | `PENKVBLK` |
//! | 4 | the version of the format: 1 |
//! | 4 | the part: the number of the cache group, or 2^32 - 1 for a recurrent state |
//! | 4 | the length of the identity |
//! | 4 | 0 |
//! | 8 | the length of the payload |
//! | | the identity |
//! | | the payload: what the engine keeps |
//! | 32 | SHA-256 of everything before |

use std::ops::Range;

use sha2::{Digest, Sha256};

use crate::key::{HASH, Identity, Key, Part};

const MAGIC: [u8; 8] = *b"PENKVBLK";
const VERSION: u32 = 1;
const HEAD: usize = 32;

/// A file to write.
#[derive(Debug)]
pub struct Saved {
    pub key: Key,
    pub identity: Identity,
    pub payload: Vec<u8>,
}

/// A file to read.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub key: Key,
    pub identity: Identity,
    /// The length of its payload [bytes].
    pub len: usize,
}

/// The length of a file [bytes].
pub fn len(identity: usize, payload: usize) -> u64 {
    (HEAD + identity + payload + HASH) as u64
}

fn head(part: Part, identity: usize, payload: usize) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[12..16].copy_from_slice(&part.code().to_le_bytes());
    head[16..20].copy_from_slice(&(identity as u32).to_le_bytes());
    head[24..].copy_from_slice(&(payload as u64).to_le_bytes());
    head
}

/// The bytes of a file before its payload, and those behind it.
pub fn encode(part: Part, identity: &[u8], payload: &[u8]) -> (Vec<u8>, [u8; HASH]) {
    let before = [&head(part, identity.len(), payload.len())[..], identity].concat();
    let checksum = Sha256::new().chain_update(&before).chain_update(payload).finalize();
    (before, checksum.into())
}

/// The place of the payload in a file's bytes. None unless the file is whole, unchanged, and exactly the one that is asked for.
pub fn decode(bytes: &[u8], part: Part, identity: &[u8], payload: usize) -> Option<Range<usize>> {
    let start = HEAD + identity.len();
    let end = start.checked_add(payload)?;
    if bytes.len() != end.checked_add(HASH)? || bytes[..HEAD] != head(part, identity.len(), payload) || bytes[HEAD..start] != *identity {
        return None;
    }
    (Sha256::digest(&bytes[..end])[..] == bytes[end..]).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    const ROOT: [u8; HASH] = [0; HASH];

    fn whole(part: Part, identity: &[u8], payload: &[u8]) -> Vec<u8> {
        let (before, checksum) = encode(part, identity, payload);
        [&before[..], payload, &checksum].concat()
    }

    #[test]
    fn a_file_gives_its_payload_back_to_those_who_ask_for_it() {
        let identity = Identity::new(&ROOT, 3, b"scope", &[7, 8]).bytes;
        let bytes = whole(Part::Block(1), &identity, b"payload");
        assert_eq!(bytes.len() as u64, len(identity.len(), 7));
        assert_eq!(decode(&bytes, Part::Block(1), &identity, 7).map(|range| &bytes[range]), Some(&b"payload"[..]));
        let other = Identity::new(&ROOT, 3, b"scope", &[7, 9]).bytes;
        assert_eq!(decode(&bytes, Part::Block(1), &other, 7), None, "other tokens");
        assert_eq!(decode(&bytes, Part::Block(0), &identity, 7), None, "another group");
        assert_eq!(decode(&bytes, Part::Block(1), &identity, 8), None, "another length");
        assert_eq!(decode(&bytes, Part::Block(1), &identity, usize::MAX), None);
    }

    proptest! {
        #[test]
        fn no_other_bytes_are_believed(
            payload in prop::collection::vec(any::<u8>(), 0..200),
            at in any::<prop::sample::Index>(),
            change in 1u8..,
            cut in any::<prop::sample::Index>(),
            noise in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let identity = Identity::new(&ROOT, 0, b"", &[1, 2, 3]).bytes;
            let bytes = whole(Part::State, &identity, &payload);
            let read = |bytes: &[u8]| decode(bytes, Part::State, &identity, payload.len());
            prop_assert!(read(&bytes).is_some());
            let mut changed = bytes.clone();
            changed[at.index(bytes.len())] ^= change;
            prop_assert_eq!(read(&changed), None);
            prop_assert_eq!(read(&bytes[..cut.index(bytes.len())]), None);
            prop_assert_eq!(read(&[&bytes[..], &noise[..1.min(noise.len())]].concat()).is_some(), noise.is_empty());
            prop_assert_eq!(read(&noise), None);
        }
    }
}

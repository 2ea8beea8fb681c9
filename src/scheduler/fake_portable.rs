//! The test engine's cache as bytes.

use engine::{CachePart, KvCapacity, PortableCache};

use super::{CachedToken, FakeEngine, NOTHING, RecurrentState};

const TOKEN_BYTES: usize = 16;
const STATE_BYTES: usize = 16;

pub fn form(capacity: &KvCapacity) -> PortableCache {
    let state_bytes = if capacity.has_state() { STATE_BYTES } else { 0 };
    PortableCache { form: "fake".into(), block_bytes: capacity.block_size * TOKEN_BYTES, state_bytes }
}

impl FakeEngine {
    pub(super) fn export_part(&self, part: CachePart, out: &mut Vec<u8>) {
        match part {
            CachePart::Block(block) => {
                let size = self.capacity.block_size;
                for kept in &self.kv[block as usize * size..][..size] {
                    assert_ne!(*kept, NOTHING, "a block that is not full is exported");
                    let CachedToken { entry, token, group, position } = *kept;
                    [entry, token, group as u32, position as u32].iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
                }
            }
            CachePart::State(slot) => {
                let RecurrentState { len, hash } = self.states[slot as usize];
                [len as u64, hash].iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
            }
        }
    }

    pub(super) fn import_part(&mut self, part: CachePart, bytes: &[u8]) {
        let word = |at: usize| u32::from_le_bytes(bytes[4 * at..][..4].try_into().unwrap());
        match part {
            CachePart::Block(block) => {
                let size = self.capacity.block_size;
                assert_eq!(bytes.len(), size * TOKEN_BYTES);
                assert!((block as usize) < self.num_backed, "a block without memory is imported");
                for (i, to) in self.kv[block as usize * size..][..size].iter_mut().enumerate() {
                    let [entry, token, group, position] = [0, 1, 2, 3].map(|part| word(4 * i + part));
                    *to = CachedToken { entry, token, group: group as usize, position: position as usize };
                }
            }
            CachePart::State(slot) => {
                assert_eq!(bytes.len(), STATE_BYTES);
                let hash = u64::from(word(2)) | u64::from(word(3)) << 32;
                self.states[slot as usize] = RecurrentState { len: word(0) as usize, hash };
            }
        }
    }
}

//! The token ids of a sequence, as far as the host knows them.

use std::sync::Arc;

#[derive(Debug)]
pub struct Tokens {
    pub prompt: Arc<[u32]>,
    /// Sampled and collected ids, without the stop id.
    pub generated: Vec<u32>,
}

impl Tokens {
    pub fn new(prompt: Vec<u32>) -> Self {
        Self { prompt: prompt.into(), generated: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.prompt.len() + self.generated.len()
    }

    /// The token at `position`. None if the token is not collected yet.
    pub fn get(&self, position: usize) -> Option<u32> {
        match position.checked_sub(self.prompt.len()) {
            None => Some(self.prompt[position]),
            Some(index) => self.generated.get(index).copied(),
        }
    }

    /// Copies the tokens of block `index` to `out`. The block must be full.
    pub fn copy_block(&self, index: usize, block_size: usize, out: &mut Vec<u32>) {
        out.clear();
        let (start, end, prompt) = (index * block_size, (index + 1) * block_size, self.prompt.len());
        out.extend_from_slice(&self.prompt[start.min(prompt)..end.min(prompt)]);
        out.extend_from_slice(&self.generated[start.max(prompt) - prompt..end.max(prompt) - prompt]);
    }
}

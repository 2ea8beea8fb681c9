//! [`Budget`]: the most memory that an adapter may take.

/// The most numbers of an adapter: 8 GiB as float32. One of rank 128 for all products of a model with 70 billion weights has 1.6 billion.
const MAX_NUMBERS: usize = 1 << 31;

/// How many more numbers may be read.
pub struct Budget {
    left: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: MAX_NUMBERS }
    }
}

impl Budget {
    /// Counts the numbers of a tensor before memory is reserved for them.
    ///
    /// # Errors
    /// Names the tensor with which the adapter is too large.
    pub fn take(&mut self, tensor: &str, dims: [usize; 3]) -> Result<usize, String> {
        let count = dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim)).filter(|&count| count <= self.left);
        let Some(count) = count else {
            return Err(format!("{tensor}: with it the adapter has more than {MAX_NUMBERS} numbers, which is the most"));
        };
        self.left -= count;
        Ok(count)
    }

    /// Returns the count of numbers that are no longer held.
    pub fn give_back(&mut self, count: usize) {
        self.left += count;
    }
}

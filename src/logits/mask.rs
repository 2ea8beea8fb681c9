//! Masks over a vocabulary, with one bit per id.

/// The number of words in a mask. Bit `id % 32` of word `id / 32` is set if the id is allowed.
pub fn mask_words(vocab: usize) -> usize {
    vocab.div_ceil(32)
}

/// Sets the logits of all ids that the mask forbids to -inf. A NaN stays, because overwriting it would hide a broken row. The loop does not
/// branch on single bits, because processors would mispredict the branches.
pub(crate) fn forbid(logits: &mut [f32], mask: &[u32]) {
    const BITS: [u32; 32] = {
        let mut bits = [0; 32];
        let mut at = 0;
        while at < 32 {
            bits[at] = 1 << at;
            at += 1;
        }
        bits
    };
    for (&word, ids) in mask.iter().zip(logits.chunks_mut(32)).filter(|(word, _)| **word != u32::MAX) {
        for (logit, bit) in ids.iter_mut().zip(BITS) {
            let stays = (word & bit != 0) | logit.is_nan();
            *logit = if stays { *logit } else { f32::NEG_INFINITY };
        }
    }
}

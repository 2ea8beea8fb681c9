//! Chooses one token from a row of logits: arg max, and draws with min-p, top-k and top-p. Nothing here sorts the whole vocabulary.
//!
//! Every sum is taken in one fixed order, so that the same logits give the same token on every machine.

use std::cmp::Ordering;

/// Elements per block of a scan. Small, so that rescanning a block costs little.
const BLOCK: usize = 256;
const LANES: usize = 16;

/// A token that may still be drawn. Its weight is exp((logit - max) / temperature), in (0, 1].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    pub weight: f32,
    pub id: u32,
}

/// Orders by descending weight. Among equals, the lower id comes first.
fn descending(a: &Candidate, b: &Candidate) -> Ordering {
    b.weight.total_cmp(&a.weight).then(a.id.cmp(&b.id))
}

/// The id and value of the largest logit. Among equals, the lowest id. None if a logit is NaN or +inf, or if no logit is finite.
pub fn argmax(logits: &[f32]) -> Option<(u32, f32)> {
    let (mut best, mut best_block, mut poisoned) = (f32::NEG_INFINITY, 0, 0u32);
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        let (max, nan) = block_max(block);
        poisoned |= nan;
        if max > best {
            (best, best_block) = (max, index);
        }
    }
    if poisoned != 0 || !best.is_finite() {
        return None;
    }
    let start = best_block * BLOCK;
    let offset = logits[start..].iter().position(|&x| x == best)?;
    Some(((start + offset) as u32, best))
}

/// The maximum of a block, and a number that is not 0 if the block holds a NaN. Uses [`LANES`] accumulators instead of one, so that the
/// loop compiles to vector instructions.
#[inline]
fn block_max(block: &[f32]) -> (f32, u32) {
    let (mut max, mut nan) = ([f32::NEG_INFINITY; LANES], [0u32; LANES]);
    let mut chunks = block.chunks_exact(LANES);
    for chunk in &mut chunks {
        for lane in 0..LANES {
            max[lane] = if chunk[lane] > max[lane] { chunk[lane] } else { max[lane] };
            nan[lane] |= u32::from(chunk[lane].is_nan());
        }
    }
    for (lane, &x) in chunks.remainder().iter().enumerate() {
        max[lane] = if x > max[lane] { x } else { max[lane] };
        nan[lane] |= u32::from(x.is_nan());
    }
    (max.into_iter().fold(f32::NEG_INFINITY, f32::max), nan.into_iter().fold(0, |a, b| a | b))
}

/// e^x for x <= 0, within 2 units in the last place, and 0 below -87. Has no branches, so that loops over it vectorise. Gives the same bits
/// on every machine.
#[inline]
pub fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it leaves the nearest integer in the low mantissa bits
    let clamped = if x > -87.0 { x } else { -87.0 };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    // ln 2 is split into two parts (Cody and Waite), which makes the reduction exact.
    let r = (clamped - n * (355.0 / 512.0)) - n * -2.121_944_4e-4;
    let mut p = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + coefficient;
    }
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    let value = p * f32::from_bits(exponent);
    if x > -87.0 { value } else { 0.0 }
}

#[inline]
fn weight(logit: f32, max: f32, temperature: f32) -> f32 {
    exp((logit - max) / temperature)
}

/// Replaces logits by their weights. Returns the sum of the weights of each block of [`BLOCK`] elements.
fn weigh_all(logits: &mut [f32], max: f32, temperature: f32) -> Vec<f64> {
    let mut sums = Vec::with_capacity(logits.len().div_ceil(BLOCK));
    for block in logits.chunks_mut(BLOCK) {
        let mut lanes = [0f32; LANES];
        let mut chunks = block.chunks_exact_mut(LANES);
        for chunk in &mut chunks {
            for lane in 0..LANES {
                chunk[lane] = weight(chunk[lane], max, temperature);
                lanes[lane] += chunk[lane];
            }
        }
        for (lane, x) in chunks.into_remainder().iter_mut().enumerate() {
            *x = weight(*x, max, temperature);
            lanes[lane] += *x;
        }
        sums.push(lanes.iter().map(|&x| f64::from(x)).sum());
    }
    sums
}

/// Draws from the whole vocabulary with the uniform number `u`. Overwrites `logits`. `max` is the largest logit.
pub fn draw_all(logits: &mut [f32], max: f32, temperature: f32, u: f64) -> u32 {
    let sums = weigh_all(logits, max, temperature);
    let threshold = u * sums.iter().sum::<f64>();
    let (mut below, mut block) = (0.0, 0);
    for (index, &sum) in sums.iter().enumerate() {
        if sum > 0.0 {
            block = index;
            if below + sum > threshold {
                break;
            }
            below += sum;
        }
    }
    // The block's sum and the running sum may differ in rounding. If the scan reaches the end of the block, the last token with a weight is
    // drawn.
    let start = block * BLOCK;
    let mut last = start;
    for (id, &w) in logits.iter().enumerate().skip(start).take(BLOCK) {
        if w > 0.0 {
            last = id;
            below += f64::from(w);
            if below > threshold {
                break;
            }
        }
    }
    last as u32
}

/// Temperature and filters. The neutral values, which switch a filter off, are 0 for top-k, 1 for top-p and 0 for min-p.
#[derive(Clone, Copy, Debug)]
pub struct Filters {
    pub temperature: f32,
    pub top_k: usize,
    pub top_p: f32,
    pub min_p: f32,
}

impl Filters {
    /// Whether no filter can remove a token from a vocabulary of `vocab` ids.
    pub fn is_neutral(&self, vocab: usize) -> bool {
        (self.top_k == 0 || self.top_k >= vocab) && self.top_p >= 1.0 && self.min_p <= 0.0
    }

    /// Returns the tokens that survive min-p, top-k and top-p, in a fixed order. Overwrites `logits`. `max` is the largest logit.
    ///
    /// Min-p keeps tokens that are at least `min_p` times as likely as the likeliest token. Top-k keeps exactly k tokens; among equals, the
    /// lower ids. Top-p keeps the smallest set of the likeliest remaining tokens whose share of the remaining mass reaches `top_p`, and at
    /// least one token.
    pub fn survivors(&self, logits: &mut [f32], max: f32) -> Vec<Candidate> {
        let mut kept;
        let total: f64;
        if self.top_k > 0 && self.top_k < logits.len() {
            let mut ids = largest(logits, self.top_k);
            ids.sort_unstable();
            kept = self.weighed(ids, logits, max);
            total = kept.iter().map(|c| f64::from(c.weight)).sum();
        } else if self.min_p > 0.0 {
            // A little below the exact bound, because `weighed` makes the final decision.
            let bound = max + self.temperature * (self.min_p.ln() - 1e-3) - 1e-5 * max.abs();
            kept = self.weighed(above(logits, bound), logits, max);
            total = kept.iter().map(|c| f64::from(c.weight)).sum();
        } else {
            total = weigh_all(logits, max, self.temperature).iter().sum();
            // All tokens below this weight together have less than (1 - top_p) of the mass, so every survivor lies above it. The factor 0.5
            // leaves room for rounding.
            let floor = (0.5 * (1.0 - f64::from(self.top_p)) * total / logits.len() as f64) as f32;
            // Most rows need far fewer candidates. Take the first of these bounds that leaves enough mass, with room for rounding.
            let enough = f64::from(self.top_p) * total * (1.0 + 1e-4);
            let powers = [1.0 / 32.0, 1.0 / 1024.0, 1.0 / 32768.0].into_iter();
            let bound = powers.filter(|&b| b > floor).find(|&b| mass_above(logits, b) >= enough).unwrap_or(floor);
            kept = above(logits, bound).into_iter().map(|id| Candidate { weight: logits[id as usize], id }).collect();
            kept.retain(|c| c.weight > 0.0);
        }
        if self.top_p < 1.0 {
            let keep = nucleus(&mut kept, f64::from(self.top_p) * total);
            kept.truncate(keep);
        }
        kept
    }

    fn weighed(&self, ids: Vec<u32>, logits: &[f32], max: f32) -> Vec<Candidate> {
        let candidates = ids.into_iter().map(|id| Candidate { weight: weight(logits[id as usize], max, self.temperature), id });
        candidates.filter(|c| c.weight > 0.0 && c.weight >= self.min_p).collect()
    }
}

/// ln Σ exp(logit - max)
pub fn log_mass(logits: &[f32], max: f32) -> f64 {
    let block_mass = |block: &[f32]| {
        let mut lanes = [0f32; LANES];
        for chunk in block.chunks(LANES) {
            for (sum, &logit) in lanes.iter_mut().zip(chunk) {
                *sum += exp(logit - max);
            }
        }
        lanes.iter().map(|&x| f64::from(x)).sum::<f64>()
    };
    logits.chunks(BLOCK).map(block_mass).sum::<f64>().ln()
}

/// The ids of the `k` largest logits (k > 0) in descending order. Among equals, the lower id comes first.
pub fn largest(logits: &[f32], k: usize) -> Vec<u32> {
    // Adding +0 turns -0 into +0. Only `total_cmp` tells the two apart.
    let key = |id: u32| logits[id as usize] + 0.0;
    let order = |a: &u32, b: &u32| key(*b).total_cmp(&key(*a)).then(a.cmp(b));
    let capacity = 2 * k + BLOCK;
    let mut ids: Vec<u32> = Vec::with_capacity(capacity.min(logits.len()));
    // Once k ids are known, a later token counts only if its logit exceeds the smallest of their logits.
    let mut bound = None;
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        if bound.is_some_and(|bound| block_max(block).0 <= bound) {
            continue;
        }
        let start = (index * BLOCK) as u32;
        let fits = |x: f32| bound.is_none_or(|bound| x > bound);
        ids.extend(block.iter().zip(start..).filter(|&(&x, _)| fits(x)).map(|(_, id)| id));
        if ids.len() > capacity - BLOCK {
            ids.select_nth_unstable_by(k - 1, order);
            ids.truncate(k);
            bound = Some(logits[ids[k - 1] as usize]);
        }
    }
    if ids.len() > k {
        ids.select_nth_unstable_by(k - 1, order);
        ids.truncate(k);
    }
    ids.sort_unstable_by(order);
    ids
}

/// The ids of the values that are at least `bound`, in ascending order.
fn above(values: &[f32], bound: f32) -> Vec<u32> {
    let mut ids = Vec::new();
    for (index, block) in values.chunks(BLOCK).enumerate() {
        if block_max(block).0 >= bound {
            let start = (index * BLOCK) as u32;
            ids.extend(block.iter().zip(start..).filter(|&(&x, _)| x >= bound).map(|(_, id)| id));
        }
    }
    ids
}

/// The sum of all weights that are at least `bound`.
fn mass_above(weights: &[f32], bound: f32) -> f64 {
    let block_mass = |block: &[f32]| {
        let mut lanes = [0f32; LANES];
        for chunk in block.chunks(LANES) {
            for (sum, &w) in lanes.iter_mut().zip(chunk) {
                *sum += if w >= bound { w } else { 0.0 };
            }
        }
        lanes.iter().map(|&x| f64::from(x)).sum::<f64>()
    };
    weights.chunks(BLOCK).map(block_mass).sum()
}

/// Moves the smallest set of the heaviest candidates whose weights reach `mass` to the front, in descending order. Returns its size. Sorts
/// piece by piece, because a few tokens suffice if the distribution is peaked.
fn nucleus(candidates: &mut [Candidate], mass: f64) -> usize {
    let (mut sum, mut done, mut piece) = (0.0, 0, 64);
    while done < candidates.len() {
        let rest = &mut candidates[done..];
        let take = piece.min(rest.len());
        if take < rest.len() {
            rest.select_nth_unstable_by(take - 1, descending);
        }
        rest[..take].sort_unstable_by(descending);
        for candidate in &rest[..take] {
            sum += f64::from(candidate.weight);
            done += 1;
            if sum >= mass {
                return done;
            }
        }
        piece *= 4;
    }
    done
}

/// Draws one of `candidates` with the uniform number `u`. None if there are no candidates.
pub fn draw(candidates: &[Candidate], u: f64) -> Option<u32> {
    let threshold = u * candidates.iter().map(|c| f64::from(c.weight)).sum::<f64>();
    let mut sum = 0.0;
    let hit = candidates.iter().find(|c| {
        sum += f64::from(c.weight);
        sum > threshold
    });
    hit.or(candidates.last()).map(|c| c.id)
}

//! Climbs from an input to similar inputs that cost more per kilobyte.

use std::time::{Duration, Instant};

use crate::measure::{Cost, apart};
use crate::places::Place;
use logits::rng;

/// Least size of an input [bytes]. For smaller ones, the cost of every request would count as the input's.
const LEAST: usize = 4 << 10;
/// Most numbers of an input.
const MAX_NUMBERS: usize = 12;

/// A generator of random numbers.
struct Draws {
    seed: u64,
    count: u64,
}

impl Draws {
    /// A random number below `most`.
    fn below(&mut self, most: usize) -> usize {
        self.count += 1;
        (rng::uniform(self.seed, self.count as _) * most as f64) as usize
    }
}

/// Searches one place, and prints the worst input by memory and the worst by time.
pub fn run(place: &Place, seconds: f64) {
    let by_memory = |cost: &Cost| cost.bytes as f64;
    let by_time = |cost: &Cost| cost.micros as f64;
    type Measure<'a> = (&'a str, &'a dyn Fn(&Cost) -> f64);
    let measures: [Measure<'_>; 2] = [("memory", &by_memory), ("time", &by_time)];
    for (seed, (name, of)) in measures.into_iter().enumerate() {
        let per_kib = |cost: &Cost| of(cost) / (cost.length.max(LEAST) as f64 / 1024.0);
        let (numbers, cost, count) = climb(place, &per_kib, Duration::from_secs_f64(seconds / 2.0), seed as u64 + 1);
        let (kib, mib) = (cost.length as f64 / 1024.0, cost.bytes as f64 / 1048576.0);
        let (memory, time) = (cost.bytes as f64 / 1024.0 / kib.max(0.1), cost.micros as f64 / 1000.0 / kib.max(0.1));
        println!(
            "{:<14} by {name:<6} {memory:>8.1} KiB and {time:>7.2} ms per KiB: {kib:.1} KiB, {mib:.1} MiB, {:.0} ms, {}, {count} tried: \
             {numbers:?}",
            place.name,
            cost.micros as f64 / 1000.0,
            if cost.compiles { "served" } else { "refused" },
        );
    }
}

fn climb(place: &Place, score: &dyn Fn(&Cost) -> f64, most: Duration, seed: u64) -> (Vec<u32>, Cost, usize) {
    let mut draws = Draws { seed, count: 0 };
    let mut best = (place.first.to_vec(), Cost::default());
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < most || count == 0 {
        let numbers = if count == 0 { best.0.clone() } else { changed(&best.0, &mut draws) };
        count += 1;
        // Skips inputs that are longer than bodies may be.
        if (place.build)(&numbers).len() > place.most {
            continue;
        }
        match apart(place, &numbers) {
            Some(cost) if score(&cost) >= score(&best.1) => best = (numbers, cost),
            Some(_) => {}
            None => println!("{}: the process ended without a result: {numbers:?}", place.name),
        }
    }
    (best.0, best.1, count)
}

/// An input similar to this one.
fn changed(numbers: &[u32], draws: &mut Draws) -> Vec<u32> {
    let mut numbers = numbers.to_vec();
    for _ in 0..=draws.below(3) {
        let at = draws.below(numbers.len());
        let number = numbers[at];
        match draws.below(8) {
            0 => numbers[at] = number.saturating_mul(2),
            1 => numbers[at] = number / 2,
            2 => numbers[at] = number + 1,
            3 => numbers[at] = number.saturating_sub(1),
            4 => numbers[at] = draws.below(64) as u32,
            5 => numbers[at] = 1 << draws.below(17),
            6 if numbers.len() < MAX_NUMBERS => numbers.extend([draws.below(64) as u32, 1 << draws.below(12)]),
            _ if numbers.len() > 2 => numbers.truncate(numbers.len() - 2),
            _ => numbers[at] = number + 2,
        }
    }
    numbers
}

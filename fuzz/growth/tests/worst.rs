//! Checks that the worst known inputs stay within what a request may cost the server. Each runs in a separate process.

use std::process::Command;

/// Most growth of the server [bytes].
const MOST_BYTES: usize = 64 << 20;
/// Most processor time, on a slow machine [µs].
const MOST_MICROS: usize = 10_000_000;

/// The worst inputs of each place by memory and by time, as the numbers that choose them.
const WORST: &[(&str, &[u32])] = &[
    ("gbnf", &[10_000, 0, 14_000]),
    ("gbnf-classes", &[1500, 40, 1]),
    ("regex", &[1, 100_000]),
    ("lark", &[1, 10_000]),
    ("quoted-regex", &[0, 100_000]),
    ("quoted-lark", &[1, 10_000]),
    ("choice", &[900, 200, 1]),
    ("schema", &[0, 400, 100]),
    ("tagged-tools", &[0, 400, 100, 8]),
    ("tagged-tools", &[1, 0, 15, 1]),
    ("notated-tools", &[6, 2000, 50, 8]),
];

#[test]
fn the_worst_inputs_of_each_place_cost_little() {
    for (place, numbers) in WORST {
        let mut command = Command::new(env!("CARGO_BIN_EXE_growth"));
        let output = command.args(["once", place]).args(numbers.iter().map(u32::to_string)).output().expect("a process");
        let line = String::from_utf8_lossy(&output.stdout);
        let cost: Vec<usize> = line.split_whitespace().map(|number| number.parse().expect("a number")).collect();
        let [length, bytes, micros, compiles] = cost[..] else { panic!("{place} {numbers:?}: {line} {output:?}") };
        println!(
            "{place:<14} {:>7.1} KiB, {:>6.1} MiB, {:>6.0} ms, {}: {numbers:?}",
            length as f64 / 1024.0,
            bytes as f64 / 1048576.0,
            micros as f64 / 1000.0,
            if compiles == 1 { "served" } else { "refused" },
        );
        assert!(bytes <= MOST_BYTES && micros <= MOST_MICROS, "{place} {numbers:?}: {bytes} bytes, {micros} µs");
    }
}

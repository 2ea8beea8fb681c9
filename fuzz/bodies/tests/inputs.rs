//! Runs every target over its seeds and over earlier findings.

use std::path::Path;

use fuzz_bodies::TARGETS;

#[test]
fn seeds_and_found_inputs_do_no_harm() {
    let mut count = 0;
    for target in TARGETS {
        let seeds = target.seeds();
        assert!(!seeds.is_empty(), "{}", target.name);
        for (i, seed) in seeds.iter().enumerate() {
            eprintln!("{}: seed {i}", target.name);
            target.run(seed);
        }
        let found = Path::new(env!("CARGO_MANIFEST_DIR")).join("../found").join(target.name);
        let found: Vec<_> = std::fs::read_dir(found).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        for path in &found {
            eprintln!("{}: {}", target.name, path.display());
            target.run(&std::fs::read(path).expect("an input"));
        }
        count += seeds.len() + found.len();
    }
    eprintln!("{count} inputs");
}

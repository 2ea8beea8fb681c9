//! `write_seeds FOLDER`: writes the seeds of every target to `FOLDER/TARGET/`.

use std::path::Path;

use bodies::TARGETS;
// Links the functions that the instrumented crates call.
use libfuzzer_sys as _;

fn main() -> std::io::Result<()> {
    let folder = std::env::args().nth(1).expect("write_seeds FOLDER");
    for target in TARGETS {
        let folder = Path::new(&folder).join(target.name);
        std::fs::create_dir_all(&folder)?;
        for (i, seed) in target.seeds().iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{i:03}")), seed)?;
        }
    }
    Ok(())
}

//! Decisions about the kernels of `cuda/`, which need no GPU.

use std::path::Path;
use std::process::Command;

/// Compiles `cuda/bench/choose.cu`, which checks that every product, layer of experts and attention of real models has exactly one kernel.
/// Compares what it prints with `tests/golden/kernels.txt`, so that no decision changes unseen. `PENSTOCK_WRITE_GOLDEN=1` writes the file
/// anew.
#[test]
fn every_shape_has_one_kernel() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("choose");
    let decisions =
        ["linear/choose", "linear/rows_plan", "linear/hopper_plan", "experts/choose", "attention/choose", "attention/general_choose"];
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let built = Command::new(&compiler)
        .args(["-std=c++17", "-O1", "-Wall", "-Werror", "-x", "c++"])
        .arg(root.join("cuda/bench/choose.cu"))
        .args(decisions.map(|name| root.join(format!("cuda/{name}.cu"))))
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap_or_else(|error| panic!("{compiler}: {error}"));
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let run = Command::new(&program).output().unwrap();
    let printed = String::from_utf8(run.stdout).unwrap();
    assert!(run.status.success(), "{printed}");
    let golden = root.join("tests/golden/kernels.txt");
    if std::env::var_os("PENSTOCK_WRITE_GOLDEN").is_some() {
        std::fs::write(&golden, &printed).unwrap();
    }
    let expected = std::fs::read_to_string(&golden).unwrap();
    for (got, want) in printed.lines().zip(expected.lines()) {
        assert_eq!(got, want);
    }
    assert_eq!(printed.lines().count(), expected.lines().count());
}

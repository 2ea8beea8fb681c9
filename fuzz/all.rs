//! Contains every target in one executable, which runs the target that it is named after. Used for packing, because the targets share most
//! of their code.

#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use bodies::{TARGETS, Target, let_compilers_panic};

static CHOSEN: LazyLock<Target> = LazyLock::new(|| {
    let path = std::env::args().next().unwrap_or_default();
    let name = Path::new(&path).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let named = TARGETS.into_iter().find(|target| target.name == name);
    named.unwrap_or_else(|| panic!("`{name}` is no target: call this by the name of one"))
});

libfuzzer_sys::fuzz_target!(
    init: if ["schema", "grammar"].contains(&CHOSEN.name) {
        let_compilers_panic();
    },
    |data: &[u8]| CHOSEN.run(data)
);

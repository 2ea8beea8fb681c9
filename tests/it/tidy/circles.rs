//! Checks that no two files import each other, directly or through others.

use super::{check, still};
use crate::modules::{Modules, circles, shortest_circle};

#[test]
fn no_files_import_each_other_in_a_circle() {
    let modules = Modules::of_workspace();
    assert!(modules.files.len() > 100, "the walk found the modules");
    let imports = modules.imports();
    let circles = circles(&imports);
    let path = |file: usize| modules.files[file].path.as_str();
    let still = still("circle");
    let mut broken = Vec::new();
    for file in circles.iter().flatten().copied().filter(|&file| !still.contains(&path(file))) {
        let way = shortest_circle(&imports, file);
        let next = way.iter().copied().chain([file]).nth(1).expect("a circle has two files");
        let line = modules.mentions.iter().find(|mention| mention.from == file && mention.target == next).map_or(1, |mention| mention.line);
        let names: Vec<&str> = way.iter().map(|&file| path(file)).collect();
        broken.push(format!("{}:{line}: {} → {}", path(file), names.join(" → "), path(file)));
    }
    let gone = still.iter().filter(|name| !circles.iter().flatten().any(|&file| path(file) == **name));
    broken.extend(gone.map(|name| format!("{name}: on no circle any more: remove it from still.txt")));
    check("no files import each other in a circle", broken);
}

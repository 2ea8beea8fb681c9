//! Checks that imports between rooms point down, and that the code uses each permitted arrow.
//!
//! A room is a folder of `src`. Most rooms are crates. Their arrows are the dependencies in their `Cargo.toml`, which the compiler
//! enforces. `ARROWS` lists the rooms of the root crate and the parts of rooms. Tests may import anything.

use super::check;
use crate::modules::{Mention, Modules, crates, section};
use crate::source::root;

/// What a room of the root crate may mention, and which other parts a part of a crate may mention. `cli` is at the top and may mention
/// everything.
const ARROWS: &[(&str, &[&str])] = &[("telemetry", &["config", "metrics", "outside"]), ("engine/cpu", &[]), ("engine/cuda", &[])];

/// One import: its place, and the rooms from which and to which it points.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Arrow {
    place: String,
    from: String,
    to: String,
}

/// The room of a module: the longest name in `ARROWS` that begins its path, or otherwise the folder below `src`. `None` for the crate's
/// root.
fn room(module: &str) -> Option<String> {
    let path = module.strip_prefix("penstock").map_or(module, |path| path.trim_start_matches('/'));
    let begins = |name: &&str| path == *name || path.starts_with(&format!("{name}/"));
    let named = ARROWS.iter().map(|(name, _)| *name).filter(begins).max_by_key(|name| name.len());
    named.map(str::to_owned).or_else(|| path.split('/').next().filter(|name| !name.is_empty()).map(str::to_owned))
}

/// Whether a room equals another, or is a part of it.
fn is_within(room: &str, other: &str) -> bool {
    room == other || room.starts_with(&format!("{other}/"))
}

/// The crate, or the room of the root crate, to which a room belongs.
fn whole(room: &str) -> &str {
    room.split('/').next().unwrap_or(room)
}

/// The arrows between different rooms that the code uses.
fn arrows() -> Vec<Arrow> {
    let modules = Modules::of_workspace();
    let arrow = |mention: &Mention| {
        let (from, to) = (room(&modules.module_of[mention.from])?, room(&mention.named)?);
        let place = format!("{}:{}", modules.files[mention.from].path, mention.line);
        // A part of a room may mention the room itself, and a room may mention its parts.
        (!is_within(&from, &to) && !is_within(&to, &from)).then_some(Arrow { place, from, to })
    };
    let mut arrows: Vec<Arrow> = modules.mentions.iter().filter_map(arrow).collect();
    arrows.sort();
    arrows.dedup();
    assert!(arrows.len() > 100, "the walk found {} imports", arrows.len());
    arrows
}

/// Whether a room is a separate crate.
fn is_crate(room: &str) -> bool {
    crates().iter().any(|of_workspace| of_workspace.name == room)
}

#[test]
fn arrows_point_down() {
    let held_by_cargo = |arrow: &Arrow| is_crate(whole(&arrow.from)) && whole(&arrow.from) != whole(&arrow.to);
    let is_allowed =
        |arrow: &Arrow| ARROWS.iter().any(|(room, may)| *room == arrow.from && may.iter().any(|other| is_within(&arrow.to, other)));
    let broken = arrows().into_iter().filter(|arrow| arrow.from != "cli" && !held_by_cargo(arrow) && !is_allowed(arrow));
    check("arrows point down", broken.map(|arrow| format!("{}: `{}` must not know `{}`", arrow.place, arrow.from, arrow.to)).collect());
}

#[test]
fn every_permitted_arrow_is_used() {
    let used = arrows();
    let is_used = |from: &str, to: &str| used.iter().any(|arrow| is_within(&arrow.from, from) && is_within(&arrow.to, to));
    let mut broken = Vec::new();
    for (room, may) in ARROWS {
        let unused = may.iter().filter(|other| !is_used(room, other));
        broken.extend(unused.map(|other| format!("tests/it/tidy/arrows.rs:1: no code of `{room}` names `{other}`: remove the arrow")));
    }
    for of_workspace in crates() {
        let names: Vec<String> = match of_workspace.folder.as_str() {
            "" => vec!["cli".to_owned(), "telemetry".to_owned()],
            _ => vec![of_workspace.name.clone()],
        };
        let lines = section(of_workspace.manifest, "dependencies").filter_map(|line| line.split(['=', '.']).next());
        for other in lines.map(str::trim).filter(|name| is_crate(name)) {
            if !names.iter().any(|name| is_used(name, other)) {
                let (folder, name) = (&of_workspace.folder, &of_workspace.name);
                broken.push(format!(
                    "{folder}Cargo.toml:1: no code of `{name}` names `{other}`: remove the dependency, or make it one for tests"
                ));
            }
        }
    }
    check("every permitted arrow is used", broken);
}

#[test]
fn every_room_has_its_arrows() {
    let lib = std::fs::read_to_string(root().join("src/lib.rs")).expect("src/lib.rs");
    let rooms: Vec<&str> = lib.lines().filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';')).collect();
    let has_arrows = |name: &str| name == "cli" || ARROWS.iter().any(|(room, _)| *room == name);
    let mut broken: Vec<String> =
        rooms.iter().filter(|name| !has_arrows(name)).map(|name| format!("src/lib.rs:1: `{name}` is not in ARROWS")).collect();
    let gone = ARROWS.iter().filter(|(room, _)| !root().join("src").join(room).exists() && !root().join(format!("src/{room}.rs")).exists());
    broken.extend(gone.map(|(room, _)| format!("tests/it/tidy/arrows.rs:1: there is no room `{room}`")));
    let by_cargo = ARROWS.iter().filter(|(room, _)| is_crate(room));
    broken.extend(by_cargo.map(|(room, _)| format!("tests/it/tidy/arrows.rs:1: `{room}` is a crate: its arrows are in its Cargo.toml")));
    check("every room has its arrows", broken);
}

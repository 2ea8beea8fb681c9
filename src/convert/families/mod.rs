//! `FAMILIES`: one row per family of checkpoints.

mod common;
mod gpt;
mod llama;
mod qwen;

use crate::config::Config;
use crate::error::Fallible;
use crate::family::Family;

/// All rows.
pub fn families() -> impl Iterator<Item = &'static Family> {
    llama::ROWS.iter().chain(qwen::ROWS).chain(gpt::ROWS)
}

/// The family of a checkpoint, found by the classes in its configuration.
pub fn find(config: &Config) -> Fallible<&'static Family> {
    let classes = config.classes();
    if let Some(family) = families().find(|family| classes.iter().any(|class| family.classes.contains(class))) {
        return Ok(family);
    }
    let known: Vec<&str> = families().flat_map(|family| family.classes).copied().collect();
    config.fault("architectures", format!("one of {} (found: {})", known.join(", "), classes.join(", ")))
}

//! `ARCHS`: one row per architecture.

mod common;
mod dense;
mod encoders;
mod experts;
mod recurrent;
mod special;

use crate::arch::Arch;
pub use common::COMMON;
use common::joined;

pub const ARCHS: &[Arch] = joined!(Arch, dense::ROWS, experts::ROWS, recurrent::ROWS, special::ROWS, encoders::ROWS);

impl Arch {
    /// The row of the architecture `name`, as in `general.architecture`.
    pub fn by_name(name: &str) -> Option<&'static Arch> {
        static ROWS: &[Arch] = ARCHS;
        ROWS.iter().find(|arch| arch.name == name)
    }
}

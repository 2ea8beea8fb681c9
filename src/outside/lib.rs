//! Files, texts and addresses from outside the process. Every path that a user or a configuration names is opened here, every text that
//! others wrote is made harmless here before it is shown, and addresses that others name are told apart here.
//!
//! # Invariants
//! - No open blocks: a FIFO, a device or a socket in the place of a file is an error that names it.
//! - An output appears whole or not at all. Nothing but a regular file is ever replaced, and a link stays a link.
//! - A text that was made visible holds no control character and nothing that reorders the text around it.

mod addresses;
mod input;
mod kind;
mod output;
mod text;

pub use addresses::is_public;
pub use input::{check_regular, open_regular, read_regular, read_text};
pub use output::{Output, check_output, write};
pub use text::{in_json, in_line, is_unsafe, visible};

//! The CPU backend: the default, and the reference for the others. `submit` computes the step, so one step is in flight.

mod activation;
mod adapters;
mod cache_parts;
mod cut;
mod device;
mod draft_head;
mod encoder;
mod engine;
mod experts;
mod forward;
mod group;
mod head;
mod layout;
mod matrix;
mod ops;
mod outputs;
mod routing;
mod run;
pub mod simd;
mod state;

pub use cut::Cut;
pub use device::{Cpu, open_exact};
pub use encoder::CpuEncoder;
pub use engine::{CpuEngine, CpuOptions};

#[cfg(test)]
mod architecture_tests;
#[cfg(test)]
mod broken_tests;
#[cfg(test)]
mod cut_tests;
#[cfg(test)]
mod picture_tests;
#[cfg(test)]
mod state_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

//! The CPU backend: the default, and the reference for the others. `submit` computes the step, so one step is in flight.

mod activation;
mod altup;
mod device;
mod engine;
mod experts;
mod feed_forward;
mod forward;
mod loader;
mod mixer;
mod outputs;
mod per_layer;
mod routing;
mod run;
pub mod simd;
mod state;
mod weights;

pub use device::{Cpu, open_exact};
pub use engine::{CpuEngine, CpuOptions};

#[cfg(test)]
mod architecture_tests;
#[cfg(test)]
mod broken_tests;
#[cfg(test)]
mod state_tests;
#[cfg(test)]
mod tests;

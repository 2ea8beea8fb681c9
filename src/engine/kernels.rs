//! The inputs, besides the model, that decide which kernels a step runs: the size of the step and the device.

/// The size of a step: as many rows of each of its sequences, over contexts of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSize {
    pub sequences: u32,
    pub rows: u32,
    pub context: u32,
}

/// Where a step would run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelsOn {
    /// A device of this machine, by its index.
    Device(u32),
    /// A device of an architecture, such as `sm_90a`, which this machine need not have.
    Arch(String),
}

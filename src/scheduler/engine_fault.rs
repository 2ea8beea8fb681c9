//! [`EngineFault`]: a fault that only a new process cures.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineFault {
    /// The engine thread had work and made no progress for too long.
    Stuck,
    DeviceLost,
}

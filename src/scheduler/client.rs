//! The tenant and the priority of a request.

/// The priority of a client that sets none.
pub const DEFAULT_PRIORITY: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// All requests of a tenant share the engine as one. `None`: the request belongs to no tenant and shares on its own.
    pub tenant: Option<u64>,
    /// The request's weight when the engine is shared. At least 1.
    pub priority: u32,
}

impl Client {
    pub(crate) fn weight(&self) -> u64 {
        u64::from(self.priority.max(1))
    }
}

impl Default for Client {
    fn default() -> Self {
        Self { tenant: None, priority: DEFAULT_PRIORITY }
    }
}

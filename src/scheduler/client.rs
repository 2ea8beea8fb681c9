//! Who a request is from.

/// The priority of a client that states none.
pub const DEFAULT_PRIORITY: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// All requests of a tenant share the engine as one. `None`: the request is nobody's, and shares as it is.
    pub tenant: Option<u64>,
    /// How much of the engine the request gets beside others, in proportion. At least 1.
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

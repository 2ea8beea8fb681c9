//! Parts of the cache as bytes, which can leave the engine and come back, even to another process.

/// A part of the cache of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachePart {
    /// A KV block.
    Block(u32),
    /// The recurrent state in a state slot.
    State(u32),
}

/// The form of exported parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortableCache {
    /// What the bytes depend on besides the model's file, the program and the tokens. Engines with the same form have the same bits.
    pub form: String,
    /// The bytes of a block.
    pub block_bytes: usize,
    /// The bytes of a recurrent state. 0 if the model has none.
    pub state_bytes: usize,
}

//! What is wrong with a configuration.

/// A wrong setting: which one, where it was set, and what is wrong with it. One line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("{origin}: {fault}")]
    File { origin: String, fault: String },
    #[error("{origin}: unknown setting `{key}`{hint}")]
    UnknownKey { origin: String, key: String, hint: String },
    #[error("{origin}: `{key}`: {fault}")]
    BadValue { origin: String, key: String, fault: String },
    #[error("{origin}: model `{id}`: {fault}")]
    Model { origin: String, id: String, fault: String },
}

//! Errors in a configuration.

/// A wrong setting. The message is one line with the setting, its origin and the fault.
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
    #[error("{origin}: adapter `{id}`: {fault}")]
    Adapter { origin: String, id: String, fault: String },
}

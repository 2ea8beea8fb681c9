//! Who a request is from.

use std::sync::Arc;

use actix_web::{HttpMessage, HttpRequest};

/// The tenant of a request. The middleware puts one into the extensions of every request that it admits.
#[derive(Clone, Debug, Default)]
pub struct Tenant {
    name: Arc<str>,
}

impl Tenant {
    /// The tenant of an admitted request. A request that was not admitted has none, which is the same as a nameless one.
    pub fn of(request: &HttpRequest) -> Self {
        request.extensions().get::<Self>().cloned().unwrap_or_default()
    }

    /// The tenant's name. Empty if the server needs no keys.
    pub fn name(&self) -> &str {
        &self.name
    }
}

//! Who a request is from.

use std::sync::Arc;
use std::time::Instant;

use actix_web::{HttpMessage, HttpRequest};

use super::error::{ApiError, Kind, quoted};
use super::host::is_local_host;
use super::keyring::mark;
use keys::{InFlight, Key, Rate, Refusal};
use registry::{Registry, RegistryError};
use serving::Client;

/// Stands in for a user's number where a tenant's batches are told from its other requests.
const BATCHES: u64 = 1;

/// The tenant of a request. The middleware puts one into the extensions of every request whose key it has found, and a nameless one if
/// the request needs no key.
#[derive(Clone, Debug, Default)]
pub struct Tenant {
    key: Option<Arc<Key>>,
    /// Whether the request is one of a batch, which gets the least of the engine.
    of_batch: bool,
}

impl Tenant {
    pub fn with_key(key: Arc<Key>) -> Self {
        Self { key: Some(key), of_batch: false }
    }

    /// The tenant of a batch's requests: everything that the tenant has, at the lowest priority.
    pub fn of_batch(self) -> Self {
        Self { of_batch: true, ..self }
    }

    /// The name of the tenant's key, which outlives a restart. `None`: there is no key.
    pub fn key_name(&self) -> Option<&str> {
        self.key.as_ref().map(|key| key.name.as_str())
    }

    /// The tenant of a request. A request that was not admitted has none, which is the same as a nameless one.
    pub fn of(request: &HttpRequest) -> Self {
        request.extensions().get::<Self>().cloned().unwrap_or_default()
    }

    /// The tenant's name. Empty if the request needs no key.
    pub fn name(&self) -> &str {
        self.key.as_ref().map_or("", |key| &key.tenant)
    }

    /// The salt of the prefix cache for one of the tenant's users. Tenants and users do not share prefixes, because how fast an answer
    /// begins tells whether its prompt was asked before.
    pub fn salt(&self, user: u64) -> u64 {
        if self.key.is_none() && user == 0 { 0 } else { mark(self.name(), user) }
    }

    /// How the engine tells the tenant's requests from others.
    pub fn client(&self) -> Client {
        if self.of_batch {
            // All batches of a tenant share the engine as one, beside the tenant's own requests.
            return Client { tenant: Some(mark(self.name(), BATCHES)), priority: 1 };
        }
        match &self.key {
            Some(key) => Client { tenant: Some(mark(&key.tenant, 0)), priority: key.priority },
            None => Client::default(),
        }
    }

    /// Begins a request, which counts against the key's limits. `None`: there is no key.
    ///
    /// # Errors
    /// A limit is reached.
    pub fn begin(&self, now: Instant) -> Result<Option<InFlight>, Refusal> {
        self.key.as_ref().map(|key| key.begin(now)).transpose()
    }

    /// Counts a request that runs nothing against the key's rates.
    ///
    /// # Errors
    /// A rate is reached.
    pub fn look(&self, now: Instant) -> Result<(), Refusal> {
        self.key.as_ref().map_or(Ok(()), |key| key.look(now))
    }

    /// Counts tokens against the key's rate.
    pub fn spend(&self, num_tokens: u64) {
        if let Some(key) = &self.key {
            key.spend(num_tokens, Instant::now());
        }
    }

    /// Checks that a request may manage models. With keys, its key must allow that. Without keys, it must come from this machine, and not
    /// through a proxy.
    pub fn check_admin(&self, request: &HttpRequest, needs_keys: bool) -> Result<(), ApiError> {
        let refuse = |message: &str| Err(ApiError::new(Kind::AdminRequired, message));
        match &self.key {
            Some(key) if key.admin => Ok(()),
            Some(_) => refuse("this API key may not manage models: `penstock keys add NAME --admin` makes one that may"),
            None if needs_keys => refuse("managing models needs an API key"),
            None if is_from_here(request) => Ok(()),
            None => refuse("without keys, models are managed from the server's own machine: `penstock keys add NAME --admin` makes a key"),
        }
    }

    /// What is left of the key's rates of requests and of tokens.
    pub fn rates(&self) -> (Option<Rate>, Option<Rate>) {
        self.key.as_ref().map_or((None, None), |key| key.rates(Instant::now()))
    }

    /// Whether the key may use a model that is served, by its id or an alias.
    pub fn may_use(&self, registry: &Registry, name: &str) -> bool {
        let Some(models) = self.key.as_ref().and_then(|key| key.models()) else { return true };
        let id = registry.id(name);
        id.is_some() && models.iter().any(|model| registry.id(model) == id)
    }

    /// The error for a name that no served model has. It names no model that the key may not use.
    pub fn not_found(&self, registry: &Registry, name: &str) -> ApiError {
        match registry.not_found(name) {
            RegistryError::NotFound { near: Some(near), .. } if !self.may_use(registry, &near) => ApiError::model_not_found(name, None),
            error => error.into(),
        }
    }

    /// Checks that a model is served and that the key may use it.
    pub fn check_model(&self, registry: &Registry, name: &str) -> Result<(), ApiError> {
        if registry.id(name).is_none() {
            return Err(self.not_found(registry, name));
        }
        if !self.may_use(registry, name) {
            let message = format!("this API key may not use the model `{}`: GET /v1/models lists those that it may use", quoted(name));
            return Err(ApiError::new(Kind::ModelForbidden, message).with_param("model"));
        }
        Ok(())
    }
}

/// Whether a request comes from this machine and was sent to it by a local name.
fn is_from_here(request: &HttpRequest) -> bool {
    const OF_PROXIES: [&str; 4] = ["forwarded", "x-forwarded-for", "x-real-ip", "via"];
    let is_local = request.peer_addr().is_some_and(|peer| peer.ip().to_canonical().is_loopback());
    let host = request.headers().get("host").and_then(|host| host.to_str().ok()).unwrap_or_default();
    is_local && is_local_host(host) && OF_PROXIES.iter().all(|name| !request.headers().contains_key(*name))
}

//! The tenant of a request: its key's limits, its share of the engine and its permissions.

use std::sync::Arc;
use std::time::Instant;

use actix_web::{HttpMessage, HttpRequest};

use super::error::{ApiError, Kind, quoted};
use super::host::is_local_host;
use super::keyring::mark;
use keys::{InFlight, Key, Rate, Refusal};
use registry::{Registry, RegistryError};
use serving::Client;

/// Takes the place of a user's number in the mark that separates a tenant's batches from its other requests.
const BATCHES: u64 = 1;

/// The tenant of a request. The middleware stores one in the extensions of every request: that of the request's key, or a nameless one if
/// the request needs no key.
#[derive(Clone, Debug, Default)]
pub struct Tenant {
    key: Option<Arc<Key>>,
    /// Whether the request belongs to a batch, which runs at the lowest priority.
    of_batch: bool,
}

impl Tenant {
    pub fn with_key(key: Arc<Key>) -> Self {
        Self { key: Some(key), of_batch: false }
    }

    /// Returns the same tenant for the requests of a batch, which run at the lowest priority.
    pub fn of_batch(self) -> Self {
        Self { of_batch: true, ..self }
    }

    /// The name of the tenant's key, which stays the same after a restart. `None` if there is no key.
    pub fn key_name(&self) -> Option<&str> {
        self.key.as_ref().map(|key| key.name.as_str())
    }

    /// Returns the tenant of a request. A request that was not admitted gets a nameless tenant.
    pub fn of(request: &HttpRequest) -> Self {
        request.extensions().get::<Self>().cloned().unwrap_or_default()
    }

    /// The tenant's name. Empty if the request needs no key.
    pub fn name(&self) -> &str {
        self.key.as_ref().map_or("", |key| &key.tenant)
    }

    /// The prefix cache's salt for one of the tenant's users. Tenants and users do not share prefixes, because the time to the first token
    /// would reveal whether a prompt had been sent before.
    pub fn salt(&self, user: u64) -> u64 {
        if self.key.is_none() && user == 0 { 0 } else { mark(self.name(), user) }
    }

    /// The identity by which the engine tells the tenant's requests from others.
    pub fn client(&self) -> Client {
        if self.of_batch {
            // A tenant's batches share the engine as one client, apart from the tenant's own requests.
            return Client { tenant: Some(mark(self.name(), BATCHES)), priority: 1 };
        }
        match &self.key {
            Some(key) => Client { tenant: Some(mark(&key.tenant, 0)), priority: key.priority },
            None => Client::default(),
        }
    }

    /// Starts a request that counts against the key's limits. Returns `None` if there is no key.
    ///
    /// # Errors
    /// Fails if a limit is reached.
    pub fn begin(&self, now: Instant) -> Result<Option<InFlight>, Refusal> {
        self.key.as_ref().map(|key| key.begin(now)).transpose()
    }

    /// Counts a request that runs no model against the key's rates.
    ///
    /// # Errors
    /// Fails if a rate is reached.
    pub fn look(&self, now: Instant) -> Result<(), Refusal> {
        self.key.as_ref().map_or(Ok(()), |key| key.look(now))
    }

    /// Counts tokens against the key's rate.
    pub fn spend(&self, num_tokens: u64) {
        if let Some(key) = &self.key {
            key.spend(num_tokens, Instant::now());
        }
    }

    /// Checks that a request may manage models. With keys, the request's key must allow it. Without keys, the request must come from this
    /// machine and not through a proxy.
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

    /// The remainders of the key's rates of requests and of tokens.
    pub fn rates(&self) -> (Option<Rate>, Option<Rate>) {
        self.key.as_ref().map_or((None, None), |key| key.rates(Instant::now()))
    }

    /// Whether the key may use a served model, given by its id or an alias.
    pub fn may_use(&self, registry: &Registry, name: &str) -> bool {
        let Some(models) = self.key.as_ref().and_then(|key| key.models()) else { return true };
        let id = registry.id(name);
        id.is_some() && models.iter().any(|model| registry.id(model) == id)
    }

    /// Returns the error for a name that no served model has. The error suggests no model that the key may not use.
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

/// Whether a request was sent from this machine, to a local name.
fn is_from_here(request: &HttpRequest) -> bool {
    const OF_PROXIES: [&str; 4] = ["forwarded", "x-forwarded-for", "x-real-ip", "via"];
    let is_local = request.peer_addr().is_some_and(|peer| peer.ip().to_canonical().is_loopback());
    let host = request.headers().get("host").and_then(|host| host.to_str().ok()).unwrap_or_default();
    is_local && is_local_host(host) && OF_PROXIES.iter().all(|name| !request.headers().contains_key(*name))
}

//! Access control: API keys and TLS certificates. Both are read from files, which are read again when they change.

use std::sync::Arc;
use std::time::Duration;

use actix_web::rt;

use super::keyring::Keyring;
use super::tls::Tls;
use config::Config;

/// How often the files are checked for changes. This bounds how long a revoked key still works.
const PERIOD: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub struct Access {
    pub keys: Arc<Keyring>,
    pub(crate) tls: Option<Arc<Tls>>,
}

impl Access {
    /// Reads the files that the configuration names.
    ///
    /// # Errors
    /// Fails if a file is invalid. The error names the file.
    pub fn open(config: &Config) -> anyhow::Result<Self> {
        Ok(Self { keys: Arc::new(Keyring::open(config)?), tls: Tls::open(config)? })
    }

    /// Whether requests need a key.
    pub fn needs_keys(&self) -> bool {
        self.keys.is_required()
    }

    /// Whether clients speak TLS.
    pub fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Reads the files again whenever they change. Never completes.
    pub(crate) async fn refresh(self) {
        loop {
            rt::time::sleep(PERIOD).await;
            self.keys.refresh();
            self.tls.iter().for_each(|tls| tls.refresh());
        }
    }
}

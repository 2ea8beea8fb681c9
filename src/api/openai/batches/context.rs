//! [`BatchContext`]: what every batch runs with.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use actix_web::web::Data;

use super::super::files::storage_folder::StorageFolder;
use super::fair_semaphore::FairSemaphore;
use super::in_process::InProcessClient;
use config::Storage;
use http::state::{AppState, off_loop};

/// How long to wait before something is tried again that did not work: a busy model, a full disk.
pub const RETRY: Duration = Duration::from_secs(1);

pub struct BatchContext {
    pub state: Data<AppState>,
    pub folder: Arc<StorageFolder>,
    pub client: InProcessClient,
    pub storage: Storage,
    /// Permits for lines that run at once.
    pub line_permits: Rc<FairSemaphore>,
    /// The permit for a batch that looks for its next line, which may be long.
    pub reading: Rc<FairSemaphore>,
    /// The permit for a batch whose input is checked, all of it.
    pub checking: Rc<FairSemaphore>,
    /// The server ends.
    pub stop: Arc<AtomicBool>,
}

pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    off_loop(work).await.map_err(io::Error::other)?
}

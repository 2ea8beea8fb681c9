//! [`BatchContext`]: the state that all batches share.

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

/// The delay before a failed action is tried again, for example because a model is busy or the disk is full.
pub const RETRY: Duration = Duration::from_secs(1);

pub struct BatchContext {
    pub state: Data<AppState>,
    pub folder: Arc<StorageFolder>,
    pub client: InProcessClient,
    pub storage: Storage,
    /// Permits for lines that run at the same time.
    pub line_permits: Rc<FairSemaphore>,
    /// Permits to search for a batch's next line, which may be long.
    pub reading: Rc<FairSemaphore>,
    /// Permits to check the whole input of a batch.
    pub checking: Rc<FairSemaphore>,
    /// Set when the server ends.
    pub stop: Arc<AtomicBool>,
}

pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    off_loop(work).await.map_err(io::Error::other)?
}

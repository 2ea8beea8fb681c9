//! What every batch runs with.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use actix_web::web::Data;

use super::super::files::room::Room;
use super::inside::Inside;
use super::places::Places;
use config::Storage;
use http::state::{AppState, off_loop};

/// How long to wait before something is tried again that did not work: a busy model, a full disk.
pub const RETRY: Duration = Duration::from_secs(1);

pub struct Workshop {
    pub state: Data<AppState>,
    pub room: Arc<Room>,
    pub inside: Inside,
    pub storage: Storage,
    /// The places for lines that run at once.
    pub places: Rc<Places>,
    /// The place for a batch that looks for its next line, which may be long.
    pub reading: Rc<Places>,
    /// The place for a batch whose input is checked, all of it.
    pub checking: Rc<Places>,
    /// The server ends.
    pub stop: Arc<AtomicBool>,
}

pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    off_loop(work).await.map_err(io::Error::other)?
}

//! Makes models in the store while the server runs.

use std::sync::{Arc, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use super::error::RegistryError;
use super::pull::PullState;
use super::registry::Registry;
use catalogue::{NewBlob, PullError, blob_digest};
use create::{CreateError, Maker, Recipe};

/// How often the progress of a download is told.
const PERIOD: Duration = Duration::from_millis(250);
/// How long a request waits while another model is made. Most take milliseconds, since weights are linked; quantising takes minutes.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a waiting request looks.
const LOOK: Duration = Duration::from_millis(10);

/// A stage of making a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateStage {
    Named(String),
    /// The model to start from is fetched: its id, bytes received, and in total if known.
    Pulling {
        id: String,
        done: u64,
        total: Option<u64>,
    },
}

impl Registry {
    /// Makes a model and adds it to the list. A model to start from that is not on disk is fetched first. `tell` gets each stage. Blocks.
    ///
    /// # Errors
    /// The recipe is wrong, its origin cannot be had, the name belongs to another model, or another model is being made.
    pub fn create(self: &Arc<Self>, name: &str, recipe: Recipe, tell: &dyn Fn(CreateStage)) -> Result<(), RegistryError> {
        let stage = |text: &str| tell(CreateStage::Named(text.to_owned()));
        match self.make(name, recipe.clone(), &stage) {
            Err(CreateError::NotOnDisk(id)) => {
                self.fetch_origin(&id, tell)?;
                self.make(name, recipe, &stage).map_err(|error| self.not_created(name, error))
            }
            made => made.map_err(|error| self.not_created(name, error)),
        }
    }

    /// Gives a model a second name. Blocks.
    ///
    /// # Errors
    /// As for [`Registry::create`]. A model that is not on disk is not fetched.
    pub fn copy(self: &Arc<Self>, from: &str, to: &str) -> Result<(), RegistryError> {
        match self.make(to, Recipe::copy_of(from), &|_| {}) {
            Err(CreateError::NotOnDisk(id)) => Err(self.not_found(&id)),
            made => made.map_err(|error| self.not_created(to, error)),
        }
    }

    fn make(&self, name: &str, recipe: Recipe, tell: &dyn Fn(&str)) -> Result<(), CreateError> {
        let _turn = self.turn()?;
        let config = self.settings();
        Maker { config: &config, store: &self.store }.make(name, recipe, tell)?;
        self.follow_store();
        Ok(())
    }

    /// Waits until no other model is being made.
    fn turn(&self) -> Result<MutexGuard<'_, ()>, CreateError> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.creating.try_lock() {
                Ok(turn) => return Ok(turn),
                Err(TryLockError::Poisoned(turn)) => return Ok(turn.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() < end => std::thread::sleep(LOOK),
                Err(TryLockError::WouldBlock) => {
                    return Err(CreateError::Refused("another model is being made: try again when it is done".into()));
                }
            }
        }
    }

    fn fetch_origin(self: &Arc<Self>, id: &str, tell: &dyn Fn(CreateStage)) -> Result<(), RegistryError> {
        let pull = self.pull_while_waiting(id)?;
        loop {
            match pull.state() {
                PullState::Running { done, total } => tell(CreateStage::Pulling { id: pull.id.clone(), done, total }),
                PullState::Done => return Ok(()),
                PullState::Failed => {
                    return Err(RegistryError::PullFailed { id: id.into(), cause: "the server's log has the cause".into() });
                }
            }
            std::thread::sleep(PERIOD);
        }
    }

    fn not_created(&self, name: &str, error: CreateError) -> RegistryError {
        let cause = match error {
            CreateError::NotFound(id) => return self.not_found(&id),
            CreateError::Disk(cause) => {
                tracing::error!("the model `{}` could not be made: {}", name.escape_debug(), cause.escape_debug());
                // Only the operator may see errors of the disk.
                "the server's log has the cause".to_owned()
            }
            other => other.to_string(),
        };
        RegistryError::NotCreated { id: name.into(), cause }
    }

    /// Whether an uploaded file is there.
    ///
    /// # Errors
    /// The digest has another form.
    pub fn has_blob(&self, digest: &str) -> Result<bool, String> {
        Ok(self.store.blob(&blob_digest(digest)?).is_some())
    }

    /// Begins an upload. `size`: the size that the client announces [bytes]. Blocks.
    ///
    /// # Errors
    /// The digest has another form, or the disk has no room.
    pub fn new_blob(&self, digest: &str, size: Option<u64>) -> Result<NewBlob, PullError> {
        let digest = blob_digest(digest).map_err(PullError::Refused)?;
        self.store.new_blob(&digest, size)
    }
}

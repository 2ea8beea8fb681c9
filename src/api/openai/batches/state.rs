//! The state of a batch, as stored on disk.

use serde::{Deserialize, Serialize};

use super::super::disk::now;
use super::super::types::batches::{BatchError, BatchErrors, BatchObject};

/// How a batch ends after its last line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchEnd {
    Completed,
    Expired,
    Cancelled,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Batch {
    /// The object that clients see.
    pub object: BatchObject,
    /// The batch's tenant. Empty if it was made without a key.
    pub tenant: String,
    /// The name of the key that made the batch.
    pub key: Option<String>,
    /// The batch's number in the order of arrival.
    pub serial: u64,
    /// The time until the output is deleted [s].
    pub keep_output: u64,
    /// How the batch ends. `None` while it has lines to run.
    pub ending: Option<BatchEnd>,
    /// The ids that the output files will get.
    pub output_id: String,
    pub errors_id: String,
}

impl Batch {
    pub fn has_ended(&self) -> bool {
        matches!(self.object.status.as_str(), "completed" | "failed" | "expired" | "cancelled")
    }

    /// When the batch ended [Unix seconds].
    pub fn ended_at(&self) -> Option<u64> {
        let object = &self.object;
        object.completed_at.or(object.failed_at).or(object.expired_at).or(object.cancelled_at)
    }

    /// Whether the time for the batch's lines is up.
    pub fn is_overdue(&self) -> bool {
        self.object.expires_at.is_some_and(|at| at <= now())
    }

    pub fn start(&mut self, total: usize) {
        self.object.request_counts.total = total;
        self.object.in_progress_at = Some(now());
        self.object.status = "in_progress".into();
    }

    pub fn fail(&mut self, data: Vec<BatchError>) {
        self.object.errors = Some(BatchErrors { object: "list".into(), data });
        self.object.failed_at = Some(now());
        self.object.status = "failed".into();
    }

    /// Records that a client cancels the batch.
    pub fn cancel(&mut self) {
        self.object.cancelling_at = Some(now());
        self.object.status = "cancelling".into();
        self.ending = Some(BatchEnd::Cancelled);
    }

    /// Stops running lines.
    pub fn finalize(&mut self, ending: BatchEnd) {
        self.object.finalizing_at = Some(now());
        if ending != BatchEnd::Cancelled {
            self.object.status = "finalizing".into();
        }
        self.ending = Some(ending);
    }

    /// Ends the batch. Its files exist by now.
    pub fn end(&mut self, ending: BatchEnd, output: Option<String>, errors: Option<String>) {
        let object = &mut self.object;
        (object.output_file_id, object.error_file_id) = (output, errors);
        let (status, at) = match ending {
            BatchEnd::Completed => ("completed", &mut object.completed_at),
            BatchEnd::Expired => ("expired", &mut object.expired_at),
            BatchEnd::Cancelled => ("cancelled", &mut object.cancelled_at),
        };
        *at = Some(now());
        object.status = status.into();
    }
}

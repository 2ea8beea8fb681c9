//! Ends the process after a fault that only a new process cures, so that a supervisor restarts it.

use std::time::Duration;

use scheduler::EngineFault;
use tokio::sync::Notify;

/// Exit code if an engine hangs.
pub const EXIT_STUCK: i32 = 70;
/// Exit code if the device was lost.
pub const EXIT_DEVICE_LOST: i32 = 71;
/// Time for clients to read their errors, and for probes to see that the process is unhealthy.
const GRACE: Duration = Duration::from_secs(2);
/// Time at the end of [`GRACE`] for connections that are already accepted. Later ones wait for the next process.
const LAST: Duration = Duration::from_millis(300);

static CLOSING: Notify = Notify::const_new();

/// Waits until the process is about to end after a fault and must stop accepting connections. Only one task may wait.
pub async fn closing() {
    CLOSING.notified().await;
}

/// Ends the process after [`GRACE`]. Returns at once.
pub fn end_process(fault: EngineFault) {
    let (code, what) = match fault {
        EngineFault::Stuck => (EXIT_STUCK, "an engine hangs"),
        EngineFault::DeviceLost => (EXIT_DEVICE_LOST, "its GPU can no longer be used"),
    };
    tracing::error!("the process ends with code {code} in {} s: {what}", GRACE.as_secs());
    let end = move || {
        std::thread::sleep(GRACE - LAST);
        CLOSING.notify_one();
        std::thread::sleep(LAST);
        engine::end_process(code)
    };
    if std::thread::Builder::new().name("end".into()).spawn(end).is_err() {
        engine::end_process(code);
    }
}

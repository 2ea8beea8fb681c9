//! The end of a process whose GPU no longer answers: a supervisor starts a new one.

use std::time::Duration;

use crate::engine;
use crate::scheduler::Fault;

/// The exit code where a step did not return.
pub const EXIT_STUCK: i32 = 70;
/// The exit code where the device was lost.
pub const EXIT_DEVICE_LOST: i32 = 71;
/// What clients get to read their errors in, and probes to see that the process is not healthy.
const GRACE: Duration = Duration::from_secs(2);

/// Ends the process after a short grace; does not wait for it.
pub fn end_process(fault: Fault) {
    let code = match fault {
        Fault::Stuck => EXIT_STUCK,
        Fault::DeviceLost => EXIT_DEVICE_LOST,
    };
    tracing::error!("the process ends with code {code} in {} s: its GPU cannot be used any more", GRACE.as_secs());
    let end = move || {
        std::thread::sleep(GRACE);
        engine::end_process(code)
    };
    if std::thread::Builder::new().name("end".into()).spawn(end).is_err() {
        engine::end_process(code);
    }
}

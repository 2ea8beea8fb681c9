//! [`Meter`]: limits the time that following a grammar may take.
//!
//! llguidance's own limits count the items that it creates, not how often it visits them. An ambiguous grammar can stay within them for
//! minutes. So the work is also timed, and cancelled if it takes too long.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use llguidance::CancellationHandle;

/// The time that a text may take beyond what its tokens earn. Also the most time that a text may save up.
pub const CREDIT: Duration = Duration::from_secs(2);
/// The time that each token earns: about a hundred times what a token usually takes.
pub const EARNED: Duration = Duration::from_millis(50);
/// The interval between the timer's checks.
const PERIOD: Duration = Duration::from_millis(20);
/// The deadline while no work is running.
const NEVER: u64 = u64::MAX;

/// The time budget of following a grammar through one text.
pub struct Meter {
    credit: Duration,
    work: Arc<MeteredWork>,
}

struct MeteredWork {
    handle: CancellationHandle,
    /// When to cancel the work, in milliseconds on [`clock`].
    deadline: AtomicU64,
}

impl Meter {
    /// A budget for the work that `handle` cancels.
    pub fn new(handle: CancellationHandle) -> Self {
        let work = Arc::new(MeteredWork { handle, deadline: AtomicU64::new(NEVER) });
        timer().watch(&work);
        Self { credit: CREDIT, work }
    }

    /// A budget as large as what is left of this one, for the work that `handle` cancels.
    pub fn fork(&self, handle: CancellationHandle) -> Self {
        Self { credit: self.credit, ..Self::new(handle) }
    }

    /// Runs the work for one token, and charges the time that it takes.
    pub fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        self.work.deadline.store(clock() + self.credit.as_millis() as u64, Ordering::Relaxed);
        let done = work();
        self.work.deadline.store(NEVER, Ordering::Relaxed);
        self.credit = (self.credit + EARNED).saturating_sub(start.elapsed()).min(CREDIT);
        done
    }
}

/// Milliseconds since the first call.
fn clock() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_millis() as u64
}

/// The thread that cancels work past its deadline. It sleeps while no grammar is being followed.
#[derive(Default)]
struct Timer {
    works: Mutex<Vec<Weak<MeteredWork>>>,
    added: Condvar,
}

fn timer() -> &'static Timer {
    static TIMER: OnceLock<Timer> = OnceLock::new();
    let mut is_new = false;
    let timer = TIMER.get_or_init(|| {
        is_new = true;
        Timer::default()
    });
    if is_new && let Err(error) = std::thread::Builder::new().name("grammar timer".into()).spawn(|| timer.run()) {
        tracing::error!("the thread that times grammars did not start: {error}");
    }
    timer
}

impl Timer {
    fn watch(&self, work: &Arc<MeteredWork>) {
        self.works.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(work));
        self.added.notify_one();
    }

    fn run(&self) {
        let mut works = self.works.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            works = self.added.wait_while(works, |works| works.is_empty()).unwrap_or_else(PoisonError::into_inner);
            let now = clock();
            works.retain(|work| {
                let Some(work) = work.upgrade() else { return false };
                if work.deadline.load(Ordering::Relaxed) <= now {
                    work.handle.cancel();
                }
                true
            });
            drop(works);
            std::thread::sleep(PERIOD);
            works = self.works.lock().unwrap_or_else(PoisonError::into_inner);
        }
    }
}

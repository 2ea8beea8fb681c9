//! How long following a grammar may take. The library's own limits count what it makes, not how often it looks at it: an ambiguous grammar
//! stays below them for minutes. So its work is timed, too, and called off where it takes too long.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use llguidance::CancellationHandle;

/// What a text may take, beyond what it earns.
pub const CREDIT: Duration = Duration::from_secs(2);
/// More for each token: some hundred times what it takes as a rule.
pub const EARNED: Duration = Duration::from_millis(50);
/// How often the timer looks.
const PERIOD: Duration = Duration::from_millis(20);
/// Nothing is to be called off.
const NEVER: u64 = u64::MAX;

/// The time of one text's grammar.
pub struct Meter {
    credit: Duration,
    work: Arc<Work>,
}

struct Work {
    handle: CancellationHandle,
    /// When it is called off, in milliseconds on [`clock`].
    due: AtomicU64,
}

impl Meter {
    /// Calls off the work behind `handle` where it takes too long.
    pub fn new(handle: CancellationHandle) -> Self {
        let work = Arc::new(Work { handle, due: AtomicU64::new(NEVER) });
        timer().watch(&work);
        Self { credit: CREDIT, work }
    }

    /// Runs a token's work.
    pub fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        self.work.due.store(clock() + self.credit.as_millis() as u64, Ordering::Relaxed);
        let done = work();
        self.work.due.store(NEVER, Ordering::Relaxed);
        self.credit = (self.credit + EARNED).saturating_sub(start.elapsed()).min(CREDIT);
        done
    }
}

/// Milliseconds since the first call.
fn clock() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_millis() as u64
}

/// A thread that looks at all that is being followed; it sleeps while that is nothing.
#[derive(Default)]
struct Timer {
    works: Mutex<Vec<Weak<Work>>>,
    begun: Condvar,
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
    fn watch(&self, work: &Arc<Work>) {
        self.works.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(work));
        self.begun.notify_one();
    }

    fn run(&self) {
        let mut works = self.works.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            works = self.begun.wait_while(works, |works| works.is_empty()).unwrap_or_else(PoisonError::into_inner);
            let now = clock();
            works.retain(|work| {
                let Some(work) = work.upgrade() else { return false };
                if work.due.load(Ordering::Relaxed) <= now {
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

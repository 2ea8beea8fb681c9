//! [`Worker`]: a child process that compiles one grammar on trial. One is kept ready for the next grammar.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

/// The first argument of a process that compiles a grammar on trial.
pub const ARG: &str = "compile-grammar-on-trial";
/// The longest answer that is read: a finished source with each of its characters escaped, and the other lines [bytes].
const MAX_ANSWER: u64 = (6 * crate::source::MAX_ALL_BYTES + (64 << 10)) as u64;
/// The pause before a worker that ended by itself is replaced.
const PAUSE: Duration = Duration::from_secs(1);

/// The worker that is kept ready.
static READY: Mutex<Option<Worker>> = Mutex::new(None);
/// Whether a worker is kept ready.
static KEEPS: AtomicBool = AtomicBool::new(false);
/// Whether a worker is being started to be kept ready.
static STARTING: AtomicBool = AtomicBool::new(false);

/// A process that waits for its grammar. Ends with this program, which holds the other end of its stdin.
pub struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    /// The vocabulary that the worker has received.
    vocabulary: Option<Arc<str>>,
}

/// Starts to keep one worker ready.
pub fn keep_one() {
    KEEPS.store(true, Ordering::Relaxed);
    replace(None);
}

/// Starts a worker to keep, in the background, unless there is one already or none is to be kept.
pub fn replace(vocabulary: Option<Arc<str>>) {
    if !KEEPS.load(Ordering::Relaxed) || !may_start() {
        return;
    }
    if std::thread::Builder::new().name("grammar worker".into()).spawn(move || keep(vocabulary)).is_err() {
        STARTING.store(false, Ordering::Relaxed);
    }
}

/// Whether a worker should be started: there is none, and none is being started.
fn may_start() -> bool {
    ready().is_none() && !STARTING.swap(true, Ordering::Relaxed)
}

/// Starts a worker and watches it until it ends. If nobody has taken the worker by then, starts another.
fn keep(mut vocabulary: Option<Arc<str>>) {
    loop {
        let started = Worker::start().and_then(|mut worker| {
            vocabulary.iter().try_for_each(|vocabulary| worker.learn(vocabulary))?;
            Ok(worker)
        });
        let started = started.map(|worker| {
            let pid = worker.child.id();
            *ready() = Some(worker);
            pid
        });
        STARTING.store(false, Ordering::Relaxed);
        let pid = match started {
            Ok(pid) => pid,
            Err(error) => return tracing::warn!("the process that compiles the next grammar on trial did not start: {error}"),
        };
        // If the worker was taken, its taker reaps it, perhaps before this thread looks. `waitid` then fails, which also means that it has
        // ended.
        let id = || Id::Pid(Pid::from_raw(pid.cast_signed()));
        while waitid(id(), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::EINTR) {}
        let Some(ended) = ready().take_if(|worker| worker.child.id() == pid) else { return };
        vocabulary.clone_from(&ended.vocabulary);
        drop(ended);
        tracing::warn!("the process that waits for the next grammar ended: starting another");
        std::thread::sleep(PAUSE);
        if !may_start() {
            return;
        }
    }
}

fn ready() -> std::sync::MutexGuard<'static, Option<Worker>> {
    READY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Worker {
    /// The worker that is ready, or a new one, with the tables over `vocabulary`.
    pub fn take(vocabulary: &Arc<str>) -> io::Result<Self> {
        let kept = ready().take();
        if let Some(mut worker) = kept
            && matches!(worker.child.try_wait(), Ok(None))
            && worker.learn(vocabulary).is_ok()
        {
            return Ok(worker);
        }
        let mut worker = Self::start()?;
        worker.learn(vocabulary)?;
        Ok(worker)
    }

    fn start() -> io::Result<Self> {
        let mut command = Command::new(program());
        // In its own process group, the worker survives an interrupt at a terminal until the requests that are still served have ended.
        command.arg(ARG).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // Otherwise the allocator keeps freed memory for some milliseconds, and whether a grammar is refused depends on the machine's load.
        command.env("MIMALLOC_PURGE_DELAY", "0");
        let mut child = command.spawn()?;
        Ok(Self { stdin: child.stdin.take(), child, vocabulary: None })
    }

    /// Sends the vocabulary, unless the worker knows it.
    fn learn(&mut self, vocabulary: &Arc<str>) -> io::Result<()> {
        if self.vocabulary.as_ref().is_none_or(|known| known != vocabulary) {
            self.tell(&["[\"vocabulary\",", vocabulary, "]\n"])?;
            self.vocabulary = Some(vocabulary.clone());
        }
        Ok(())
    }

    fn tell(&mut self, pieces: &[&str]) -> io::Result<()> {
        let stdin = self.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        pieces.iter().try_for_each(|piece| stdin.write_all(piece.as_bytes()))
    }

    /// Has a source compiled. Returns the answer and the process's exit status.
    pub fn compile(mut self, source: &str, budget: &str) -> io::Result<(String, ExitStatus)> {
        // If the worker ends before it has read everything, its exit status says why.
        let _ = self.tell(&["[\"grammar\",", source, ",", budget, "]\n"]);
        self.stdin = None;
        let mut answer = Vec::new();
        if let Some(pipe) = self.child.stdout.take() {
            pipe.take(MAX_ANSWER).read_to_end(&mut answer)?;
        }
        Ok((String::from_utf8(answer).unwrap_or_default(), self.child.wait()?))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both fail if the process has ended and has been reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The path of this program, even if its file was replaced since it started.
fn program() -> std::path::PathBuf {
    let own = std::path::PathBuf::from("/proc/self/exe");
    if own.exists() { own } else { std::env::current_exe().unwrap_or_default() }
}

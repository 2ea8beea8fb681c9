//! `penstock serve --supervise`: a parent process opens the port, and a child process serves. The child is restarted after a fault, while
//! clients wait at the open port.
//!
//! The child inherits the listening socket as its stdin, which needs no unsafe code. The parent accepts no connections.

use std::fmt;
use std::fs::File;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt, parent_id};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, dup2_stdin};
use tokio::signal::unix::{self, SignalKind};

use crate::api;
use crate::config::Config;
use crate::registry::{EXIT_DEVICE_LOST, EXIT_STUCK};

/// The exit code of a process whose main thread panicked.
const EXIT_PANICKED: i32 = 101;
/// A child that ends sooner counts as a quick failure.
const QUICK: Duration = Duration::from_secs(30);
/// The waits before a restart, by the number of quick failures in a row so far. One more failure ends the supervision.
const WAITS: [Duration; 5] =
    [Duration::ZERO, Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];

/// Opens the port and serves through a child, until the child ends by itself or a signal ends both. The child gets this process's
/// arguments. Blocks.
pub fn run(config: &Config) -> anyhow::Result<()> {
    let listener = api::listen(config.server.host, config.server.port)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Runs on this thread, because a child treats the end of the thread that started it as the end of its parent.
    runtime.block_on(supervise(&listener))
}

/// Takes over the listening socket in a child. The child will end if its parent ends.
pub fn inherited(parent: u32) -> anyhow::Result<TcpListener> {
    set_pdeathsig(Signal::SIGTERM).context("cannot watch for the parent's end")?;
    ensure!(parent_id() == parent, "the process {parent}, which supervises this one, has ended");
    let listener = TcpListener::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    listener.local_addr().context("stdin is no listening socket: only `penstock serve --supervise` may pass --supervised")?;
    // Processes that this one starts must not keep the port open.
    dup2_stdin(File::open("/dev/null")?)?;
    Ok(listener)
}

/// How the child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildExit(ExitStatus);

impl std::error::Error for ChildExit {}

impl ChildExit {
    /// The exit code. For a signal, the code that a shell would report.
    pub fn code(&self) -> i32 {
        self.0.code().or_else(|| self.0.signal().map(|signal| 128 + signal)).unwrap_or(1)
    }

    /// Whether a new process may succeed where this one failed.
    fn is_crash(&self) -> bool {
        self.0.signal().is_some() || matches!(self.0.code(), Some(EXIT_STUCK | EXIT_DEVICE_LOST | EXIT_PANICKED))
    }
}

impl fmt::Display for ChildExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |signal: i32| Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |signal| signal.to_string());
        match (self.0.code(), self.0.signal()) {
            (Some(EXIT_STUCK), _) => write!(f, "the server ended with code {EXIT_STUCK}: an engine hung"),
            (Some(EXIT_DEVICE_LOST), _) => write!(f, "the server ended with code {EXIT_DEVICE_LOST}: its GPU was lost"),
            (Some(code), _) => write!(f, "the server ended with code {code}"),
            (None, Some(signal)) => write!(f, "the server was ended by {}", named(signal)),
            (None, None) => write!(f, "the server ended"),
        }
    }
}

/// The decision after a child has ended.
#[derive(Debug, PartialEq, Eq)]
enum RestartDecision {
    Start(Duration),
    End,
    GiveUp(usize),
}

/// Counts failures.
#[derive(Debug, Default)]
struct Failures {
    num_quick: usize,
}

impl Failures {
    /// Decides whether to restart. `lived`: how long the child ran. A child that exits with an ordinary error is restarted only if there
    /// were crashes before, because such a fault may pass, for example when a device recovers.
    fn after(&mut self, ended: ChildExit, lived: Duration) -> RestartDecision {
        if ended.0.success() || !(ended.is_crash() || self.num_quick > 0) {
            return RestartDecision::End;
        }
        if lived >= QUICK {
            self.num_quick = 0;
        }
        let wait = WAITS.get(self.num_quick).copied();
        self.num_quick += 1;
        wait.map_or(RestartDecision::GiveUp(self.num_quick), RestartDecision::Start)
    }
}

async fn supervise(listener: &TcpListener) -> anyhow::Result<()> {
    let (mut signals, mut failures) = (Signals::new().context("cannot handle signals")?, Failures::default());
    loop {
        let (mut child, started) = (start(listener)?, Instant::now());
        tracing::info!(pid = child.id(), "the server was started under supervision");
        let ended = ChildExit(signals.pass_on_until_end(&mut child).await?);
        match failures.after(ended, started.elapsed()) {
            RestartDecision::End if ended.0.success() => return Ok(()),
            RestartDecision::End => return Err(ended.into()),
            _ if signals.is_over => return Err(ended.into()),
            RestartDecision::GiveUp(count) => {
                let given_up = format!("the server failed {count} times in a row and is not started again");
                return Err(anyhow::Error::new(ended).context(given_up));
            }
            RestartDecision::Start(wait) => {
                tracing::error!("{ended}: it is started again in {:.1} s", wait.as_secs_f64());
                if signals.is_over_within(wait).await {
                    return Ok(());
                }
            }
        }
    }
}

fn start(listener: &TcpListener) -> anyhow::Result<Child> {
    let parent = std::process::id();
    let args = std::env::args_os().skip(1);
    let args = args.map(|arg| if arg == "--supervise" { format!("--supervised={parent}").into() } else { arg });
    let socket = OwnedFd::from(listener.try_clone()?);
    // The child has its own process group, so it gets a terminal's Ctrl-C only once, from this process.
    let child = Command::new(program()).args(args).stdin(Stdio::from(socket)).process_group(0).spawn();
    child.context("the server's process did not start")
}

/// The path of this program, even if its file was replaced.
fn program() -> PathBuf {
    std::env::current_exe().ok().filter(|path| path.is_file()).unwrap_or_else(|| "/proc/self/exe".into())
}

struct Signals {
    child: unix::Signal,
    terminate: unix::Signal,
    interrupt: unix::Signal,
    /// None if the process was started with hangups ignored, for example by `nohup`.
    hangup: Option<unix::Signal>,
    /// Whether a signal has requested the end.
    is_over: bool,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        let hangup = if api::ignores_hangup() { None } else { Some(unix::signal(SignalKind::hangup())?) };
        let (child, interrupt) = (unix::signal(SignalKind::child())?, unix::signal(SignalKind::interrupt())?);
        Ok(Self { child, terminate: unix::signal(SignalKind::terminate())?, interrupt, hangup, is_over: false })
    }

    /// The next signal for the server. None if a child has ended. Cancel-safe.
    async fn next(&mut self) -> Option<Signal> {
        let Self { child, terminate, interrupt, hangup, .. } = self;
        let hangup = async {
            match hangup {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
        };
        let signal = tokio::select! {
            _ = child.recv() => return None,
            _ = terminate.recv() => Signal::SIGTERM,
            _ = interrupt.recv() => Signal::SIGINT,
            () = hangup => Signal::SIGHUP,
        };
        self.is_over |= signal != Signal::SIGHUP;
        Some(signal)
    }

    /// Forwards every signal to the child until the child ends.
    async fn pass_on_until_end(&mut self, child: &mut Child) -> anyhow::Result<ExitStatus> {
        let pid = Pid::from_raw(i32::try_from(child.id()).context("the child's id")?);
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if let Some(signal) = self.next().await {
                tracing::info!("{signal} is forwarded to the server");
                // Fails only if the child has just ended.
                let _ = kill(pid, signal);
            }
        }
    }

    /// Whether a signal requests the end within `wait`.
    async fn is_over_within(&mut self, wait: Duration) -> bool {
        let over = async {
            while !self.is_over {
                self.next().await;
            }
        };
        tokio::time::timeout(wait, over).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(code: i32) -> ChildExit {
        ChildExit(ExitStatus::from_raw(code << 8))
    }

    #[test]
    fn a_crash_is_told_from_an_end() {
        let killed = ChildExit(ExitStatus::from_raw(9));
        assert_eq!((killed.code(), killed.to_string().as_str()), (137, "the server was ended by SIGKILL"));
        assert_eq!(ended(71).to_string(), "the server ended with code 71: its GPU was lost");
        assert!(killed.is_crash() && [70, 71, 101].map(ended).iter().all(ChildExit::is_crash));
        assert!(![0, 1, 2, 130].map(ended).iter().any(ChildExit::is_crash));
    }

    #[test]
    fn quick_failures_wait_longer_and_end_the_supervision() {
        let (quick, long) = (Duration::from_secs(1), QUICK);
        let mut failures = Failures::default();
        assert_eq!([failures.after(ended(0), long), failures.after(ended(1), quick)], [RestartDecision::End, RestartDecision::End]);
        let waits: Vec<RestartDecision> = (0..WAITS.len()).map(|_| failures.after(ended(70), quick)).collect();
        assert_eq!(waits, WAITS.map(RestartDecision::Start));
        assert_eq!(failures.after(ended(1), quick), RestartDecision::GiveUp(6), "it crashed before");
        assert_eq!(failures.after(ended(70), long), RestartDecision::Start(Duration::ZERO), "it has served for a while");
    }
}

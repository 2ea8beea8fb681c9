//! The engine thread's main loop. It takes commands between steps. When it ends, for whatever reason, every client is told.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, select_biased};

use crate::cache_size::Cost;
use crate::engine_fault::EngineFault;
use crate::engine_state::EngineState;
use crate::event::Event;
use crate::sequence::Sequence;
use crate::shared_device::{CacheHandle, MemoryRequest};
use crate::step::Scheduler;
use crate::time_slicing::TimeSliceClient;
use crate::watchdog::{self, Heartbeat, Watchdog};
use engine::EngineError;

pub const STOPPED: &str = "the engine has stopped";

/// Added to the priority's number of a thread that drives a device. It sleeps most of the time, and the device waits for it when it wakes.
const NICE: i32 = -10;

/// How often the device's memory is measured while steps run.
const MEMORY_PERIOD: Duration = Duration::from_secs(5);

pub enum Command {
    Enqueue(Box<Sequence>),
    GiveBack(MemoryRequest),
    Stop,
}

/// Runs the engine until a stop command, the drop of the last handle, a final error or a panic of the engine. Then tells every client.
pub fn run(
    mut scheduler: Scheduler,
    commands: Receiver<Command>,
    state: Arc<EngineState>,
    watchdog: Option<Watchdog>,
    device: Option<((TimeSliceClient, CacheHandle), Duration)>,
) {
    let heartbeat = Arc::new(Heartbeat::new(scheduler.progress()));
    let cache_idle = device.as_ref().map_or(Idle::LONG, |(_, cache_idle)| *cache_idle);
    if let Some((client, _)) = device {
        scheduler.join(client, heartbeat.clone());
    }
    // The threads of a CPU have the same work as the engine thread. The watchdog shall see in time, too.
    if scheduler.has_device() {
        raise_priority();
    }
    if let Some(Err(error)) = watchdog.map(|watchdog| watchdog::watch(watchdog, &heartbeat, state.clone(), scheduler.gauges())) {
        tracing::error!("the watchdog thread did not start: {error}");
    }
    let outcome = catch_unwind(AssertUnwindSafe(|| serve(&mut scheduler, &commands, &heartbeat, &state, cache_idle)));
    // The watchdog has nothing left to watch, even if the engine is slow to end.
    heartbeat.rest();
    drop(heartbeat);
    let is_lost = matches!(outcome, Ok(Err(EngineError::Device(_))));
    let fault = watchdog.filter(|_| is_lost).map(|_| EngineFault::DeviceLost);
    if fault.is_some() {
        state.lose();
    }
    state.close();
    let reason = match outcome {
        Ok(Ok(())) => STOPPED.to_owned(),
        Ok(Err(error)) => format!("the engine failed: {error}"),
        Err(panic) => format!("the engine panicked: {}", panic_text(&*panic)),
    };
    if reason == STOPPED {
        tracing::debug!("{reason}");
    } else {
        tracing::error!("{reason}");
    }
    if reason == STOPPED {
        scheduler.finish_saving();
    }
    scheduler.fail_all(&reason);
    for command in commands.try_iter() {
        if let Command::Enqueue(sequence) = command {
            sequence.end(Event::Failed(reason.clone()));
        }
    }
    if reason == STOPPED {
        return;
    }
    if let Some((watchdog, fault)) = watchdog.zip(state.fail(fault)) {
        (watchdog.on_fault)(fault);
    }
}

/// Lets the thread of a device run before the machine's other threads, where the system permits that.
fn raise_priority() {
    if let Err(error) = rustix::process::nice(NICE) {
        tracing::debug!("the engine thread keeps its priority: {error}");
    }
}

/// The next action of the engine thread.
enum Flow {
    Step,
    Stop,
}

/// Repeats commands and steps until a stop command.
///
/// # Errors
/// The engine failed for good ([`EngineError::is_final`]).
fn serve(
    scheduler: &mut Scheduler,
    commands: &Receiver<Command>,
    heartbeat: &Heartbeat,
    state: &EngineState,
    cache_idle: Duration,
) -> Result<(), EngineError> {
    scheduler.measure_memory();
    let mut measured = Instant::now();
    loop {
        state.set_cache_bytes(scheduler.cache_bytes());
        if let Flow::Stop = take_commands(scheduler, commands, (state, heartbeat), Idle::new(cache_idle))? {
            return Ok(());
        }
        scheduler.reap_cancelled();
        match scheduler.step() {
            Err(error) if error.is_final() => return Err(error),
            Err(error) => tracing::error!("a step failed: {error}"),
            Ok(()) => {}
        }
        if measured.elapsed() >= MEMORY_PERIOD {
            scheduler.measure_memory();
            measured = Instant::now();
        }
    }
}

/// Carries out pending commands and the memory requests of other models. Blocks while there is no work.
fn take_commands(
    scheduler: &mut Scheduler,
    commands: &Receiver<Command>,
    (state, heartbeat): (&EngineState, &Heartbeat),
    mut idle: Idle,
) -> Result<Flow, EngineError> {
    let requests = scheduler.requests();
    loop {
        scheduler.show_work();
        let has_work = scheduler.has_work();
        if has_work {
            heartbeat.work(scheduler.num_turns());
        } else {
            heartbeat.rest();
        }
        let command = select_biased! {
            recv(commands) -> command => command.map_err(|_| Wake::Ended),
            recv(requests) -> ask => ask.map(Command::GiveBack).map_err(|_| Wake::Ended),
            default(if has_work { Duration::ZERO } else { idle.left() }) => Err(Wake::Timeout),
        };
        match command {
            Ok(Command::Enqueue(sequence)) => scheduler.push(*sequence),
            Ok(Command::GiveBack(MemoryRequest { bytes, preempts, reply })) => {
                let given = give_back(scheduler, bytes, if preempts { Cost::Sequences } else { Cost::Contents }, (state, heartbeat))?;
                scheduler.hold_back();
                // The caller may have given up.
                let _ = reply.map(|reply| reply.try_send(given));
            }
            Ok(Command::Stop) | Err(Wake::Ended) => return Ok(Flow::Stop),
            Err(Wake::Timeout) if has_work => return Ok(Flow::Step),
            Err(Wake::Timeout) => {
                let cost = if idle.is_long() { Cost::Contents } else { Cost::Nothing };
                idle.go_on();
                give_back(scheduler, u64::MAX, cost, (state, heartbeat))?;
            }
        }
    }
}

/// Gives cache memory back. The watchdog watches this like a step, because it waits for the steps in flight.
fn give_back(
    scheduler: &mut Scheduler,
    bytes: u64,
    cost: Cost,
    (state, heartbeat): (&EngineState, &Heartbeat),
) -> Result<u64, EngineError> {
    heartbeat.work(scheduler.num_turns());
    let given = scheduler.give_back(bytes, cost);
    state.set_cache_bytes(scheduler.cache_bytes());
    scheduler.measure_memory();
    match given {
        Err(error) if !error.is_final() => {
            tracing::error!("a step failed: {error}");
            Ok(0)
        }
        given => given,
    }
}

/// Why no command was received.
enum Wake {
    Timeout,
    /// Every handle was dropped.
    Ended,
}

/// Decides when an idle model gives memory back: first the cache memory that holds nothing, later also that of cached prompts.
#[derive(Debug)]
struct Idle {
    long: Duration,
    num_rests: u32,
}

impl Idle {
    const SHORT: Duration = Duration::from_secs(5);
    const LONG: Duration = Duration::from_secs(300);
    const FOREVER: Duration = Duration::from_secs(1 << 30);

    fn new(long: Duration) -> Self {
        Self { long: long.max(Duration::from_secs(1)), num_rests: 0 }
    }

    /// Time until memory is given back next.
    fn left(&self) -> Duration {
        let short = Self::SHORT.min(self.long);
        match self.num_rests {
            0 => short,
            1 => self.long.saturating_sub(short),
            _ => Self::FOREVER,
        }
    }

    fn is_long(&self) -> bool {
        self.num_rests > 0
    }

    fn go_on(&mut self) {
        self.num_rests += 1;
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

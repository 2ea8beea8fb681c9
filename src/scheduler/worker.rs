//! The engine thread: commands in, steps in between, and an orderly end whatever happens.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError};

use super::guard::{self, Fault, Guard, Pulse};
use super::scheduler::Scheduler;
use super::sequence::{Sequence, Shared};
use super::{Event, STOPPED};
use crate::engine::EngineError;

/// The device's memory is looked at this often, while steps run.
const MEMORY_PERIOD: Duration = Duration::from_secs(5);

pub enum Command {
    Enqueue(Box<Sequence>),
    Stop,
}

/// Runs until it is told to stop, every handle is gone, the device is lost or the engine panics; then everyone is told.
pub(super) fn run(mut scheduler: Scheduler, commands: Receiver<Command>, shared: Arc<Shared>, guard: Option<Guard>) {
    let pulse = Arc::new(Pulse::new());
    if let Some(Err(error)) = guard.map(|guard| guard::watch(guard, &pulse, shared.clone())) {
        tracing::error!("no watchdog watches the engine: {error}");
    }
    let outcome = catch_unwind(AssertUnwindSafe(|| serve(&mut scheduler, &commands, &pulse)));
    // Sends the watchdog home.
    drop(pulse);
    let lost = guard.filter(|_| matches!(outcome, Ok(Err(_))));
    if lost.is_some() {
        shared.lose();
    }
    shared.alive.store(false, Ordering::Release);
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
    scheduler.fail_all(&reason);
    for command in commands.try_iter() {
        if let Command::Enqueue(sequence) = command {
            sequence.end(Event::Failed(reason.clone()));
        }
    }
    if let Some(guard) = lost {
        (guard.on_fault)(Fault::DeviceLost);
    }
}

fn serve(scheduler: &mut Scheduler, commands: &Receiver<Command>, pulse: &Pulse) -> Result<(), EngineError> {
    scheduler.note_memory();
    let mut noted = Instant::now();
    loop {
        if !scheduler.has_work() {
            match commands.recv() {
                Ok(Command::Enqueue(sequence)) => scheduler.push(*sequence),
                Ok(Command::Stop) | Err(_) => return Ok(()),
            }
        }
        loop {
            match commands.try_recv() {
                Ok(Command::Enqueue(sequence)) => scheduler.push(*sequence),
                Err(TryRecvError::Empty) => break,
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return Ok(()),
            }
        }
        scheduler.reap_cancelled();
        pulse.begin();
        let outcome = scheduler.step();
        pulse.end();
        match outcome {
            Err(error @ EngineError::Device(_)) => return Err(error),
            Err(error) => tracing::error!("a step failed: {error}"),
            Ok(()) => {}
        }
        if noted.elapsed() >= MEMORY_PERIOD {
            scheduler.note_memory();
            noted = Instant::now();
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

//! The engine thread: it takes commands between steps, and tells every client when it ends, whatever the reason.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError};

use crate::event::Event;
use crate::sequence::Sequence;
use crate::shared::Shared;
use crate::step::Scheduler;
use crate::watchdog::{self, Fault, Pulse, Watchdog};
use engine::EngineError;

pub const STOPPED: &str = "the engine has stopped";

/// How often the device's memory is measured while steps run.
const MEMORY_PERIOD: Duration = Duration::from_secs(5);

pub enum Command {
    Enqueue(Box<Sequence>),
    Stop,
}

/// Runs until a stop command, the last handle's drop, an engine that cannot go on or a panic of the engine. Then it tells every client.
pub fn run(mut scheduler: Scheduler, commands: Receiver<Command>, shared: Arc<Shared>, watchdog: Option<Watchdog>) {
    let pulse = Arc::new(Pulse::new(scheduler.progress()));
    if let Some(Err(error)) = watchdog.map(|watchdog| watchdog::watch(watchdog, &pulse, shared.clone())) {
        tracing::error!("the watchdog thread did not start: {error}");
    }
    let outcome = catch_unwind(AssertUnwindSafe(|| serve(&mut scheduler, &commands, &pulse)));
    // Stops the watchdog thread.
    drop(pulse);
    let is_lost = matches!(outcome, Ok(Err(EngineError::Device(_))));
    let on_lost_device = watchdog.filter(|_| is_lost).map(|watchdog| watchdog.on_fault);
    if on_lost_device.is_some() {
        shared.lose();
    }
    shared.close();
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
    if let Some(on_fault) = on_lost_device {
        on_fault(Fault::DeviceLost);
    }
}

/// The loop of the engine thread. The error is one after which the engine cannot go on.
fn serve(scheduler: &mut Scheduler, commands: &Receiver<Command>, pulse: &Pulse) -> Result<(), EngineError> {
    scheduler.measure_memory();
    let mut measured = Instant::now();
    loop {
        if !scheduler.has_work() {
            pulse.rest();
            match commands.recv() {
                Ok(Command::Enqueue(sequence)) => scheduler.push(*sequence),
                Ok(Command::Stop) | Err(_) => return Ok(()),
            }
        }
        pulse.work(scheduler.num_turns());
        loop {
            match commands.try_recv() {
                Ok(Command::Enqueue(sequence)) => scheduler.push(*sequence),
                Err(TryRecvError::Empty) => break,
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return Ok(()),
            }
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

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

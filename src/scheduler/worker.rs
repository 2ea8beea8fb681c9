//! The engine thread: commands in, steps in between, and an orderly end whatever happens.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, TryRecvError};

use super::scheduler::Scheduler;
use super::sequence::{Sequence, Shared};
use super::{Event, STOPPED};
use crate::engine::EngineError;

pub enum Command {
    Enqueue(Box<Sequence>),
    Stop,
}

/// Runs until it is told to stop, every handle is gone, the device is lost or the engine panics; then everyone is told.
pub(super) fn run(mut scheduler: Scheduler, commands: Receiver<Command>, shared: Arc<Shared>) {
    let outcome = catch_unwind(AssertUnwindSafe(|| serve(&mut scheduler, &commands)));
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
}

fn serve(scheduler: &mut Scheduler, commands: &Receiver<Command>) -> Result<(), EngineError> {
    loop {
        if !scheduler.has_work() {
            match commands.recv() {
                Ok(Command::Enqueue(sequence)) => scheduler.push(sequence),
                Ok(Command::Stop) | Err(_) => return Ok(()),
            }
        }
        loop {
            match commands.try_recv() {
                Ok(Command::Enqueue(sequence)) => scheduler.push(sequence),
                Err(TryRecvError::Empty) => break,
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return Ok(()),
            }
        }
        scheduler.reap_cancelled();
        match scheduler.step() {
            Err(error @ EngineError::Device(_)) => return Err(error),
            Err(error) => tracing::error!("a step failed: {error}"),
            Ok(()) => {}
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

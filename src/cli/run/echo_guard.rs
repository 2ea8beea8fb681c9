//! Keeps typed keys out of an answer: while it is written, keys are not echoed and wait for the next line.

use std::io::{IsTerminal, Stdin, stdin};

use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};

/// Restores the terminal's mode when dropped.
pub struct EchoGuard {
    before: Option<Termios>,
    terminal: Stdin,
}

impl EchoGuard {
    /// Changes the mode. Does nothing if stdin is no terminal.
    pub fn begin() -> Self {
        let terminal = stdin();
        let before = terminal.is_terminal().then(|| tcgetattr(&terminal).ok()).flatten();
        if let Some(before) = &before {
            let mut mode = before.clone();
            // Without a line discipline, typed text can still be edited on the next line. Ctrl-C ends only the answer and does not discard
            // typed text.
            mode.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ECHONL | LocalFlags::IEXTEN);
            mode.local_flags.insert(LocalFlags::ISIG | LocalFlags::NOFLSH);
            // On failure, keys are echoed into the answer.
            let _ = tcsetattr(&terminal, SetArg::TCSANOW, &mode);
        }
        Self { before, terminal }
    }
}

impl Drop for EchoGuard {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = tcsetattr(&self.terminal, SetArg::TCSANOW, before);
        }
    }
}

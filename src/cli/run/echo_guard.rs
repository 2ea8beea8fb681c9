//! A terminal while an answer is written on it: keys are not echoed and wait for the next line.

use std::io::{IsTerminal, Stdin, stdin};

use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};

/// Gives the terminal back its mode when it is dropped.
pub struct EchoGuard {
    before: Option<Termios>,
    terminal: Stdin,
}

impl EchoGuard {
    /// Stdin stays as it is if it is no terminal.
    pub fn begin() -> Self {
        let terminal = stdin();
        let before = terminal.is_terminal().then(|| tcgetattr(&terminal).ok()).flatten();
        if let Some(before) = &before {
            let mut mode = before.clone();
            // Without a line discipline, what was typed can still be edited on the next line. Ctrl-C ends the answer and nothing else:
            // it does not throw away what was typed.
            mode.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ECHONL | LocalFlags::IEXTEN);
            mode.local_flags.insert(LocalFlags::ISIG | LocalFlags::NOFLSH);
            // If it fails, keys are echoed into the answer.
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

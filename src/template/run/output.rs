//! [`Output`]: collects the text that a render writes.

use crate::budget::{MAX_OUTPUT, charge};
use crate::failure::{Outcome, limit};

/// The length beyond which an output reserves the whole limit at once [bytes]. Pages that are not written take no memory, while doubling
/// leaves copies that the allocator returns only later.
const DOUBLING_OUTPUT: usize = 4 << 20;

/// The prompt, and the texts of blocks that are being captured.
#[derive(Default)]
pub(super) struct Output {
    prompt: String,
    captures: Vec<String>,
}

impl Output {
    pub fn write(&mut self, text: &str) -> Outcome<()> {
        if let Some(capture) = self.captures.last_mut() {
            charge(text.len() as u64)?;
            capture.push_str(text);
            return Ok(());
        }
        let length = self.prompt.len() + text.len();
        if length > MAX_OUTPUT {
            return Err(limit(format!("the output is longer than {} MiB", MAX_OUTPUT >> 20)));
        }
        if length > DOUBLING_OUTPUT {
            self.prompt.reserve_exact(MAX_OUTPUT - self.prompt.len());
        }
        self.prompt.push_str(text);
        Ok(())
    }

    pub fn start_capture(&mut self) {
        self.captures.push(String::new());
    }

    pub fn end_capture(&mut self) -> String {
        self.captures.pop().unwrap_or_default()
    }

    pub fn finish(self) -> String {
        self.prompt
    }
}

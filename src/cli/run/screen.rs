//! Shows an answer: its Markdown rendered, wrapped and sanitised on a terminal, and unchanged elsewhere. A spinner turns while no text
//! comes.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use super::markdown::Markdown;
use super::settings::Settings;
use super::wrap::Wrap;
use crate::cli::colour::{Colour, Colours};
use crate::cli::output::{for_terminal, show};
use crate::serving::Account;

/// Time without text before the spinner shows. Quick answers show none.
const PATIENCE: Duration = Duration::from_millis(400);
/// How often the spinner turns.
pub const TURN: Duration = Duration::from_millis(100);
const FRAMES: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];

/// Writes an answer to stdout.
pub struct Screen {
    is_terminal: bool,
    /// For reasoning, and for answers that are not rendered.
    wrap: Wrap,
    wraps: bool,
    /// Renders the answer. None: the answer is shown as the model writes it.
    markdown: Option<Markdown>,
    in_reasoning: bool,
    /// The codes before and after reasoning, which is dimmed.
    dim: (&'static str, &'static str),
    spinner: Spinner,
}

impl Screen {
    /// `renders`: whether the answer may be Markdown. Texts of base models are not.
    pub fn new(settings: &Settings, renders: bool) -> Self {
        let is_terminal = io::stdout().is_terminal();
        let dim = if is_terminal { Colours::of_stdout().around(Colour::Dim) } else { ("", "") };
        // A terminal without colours cannot show what the marks mean.
        let markdown = (renders && !settings.plain && !dim.0.is_empty()).then(Markdown::default);
        let wraps = settings.wordwrap && is_terminal;
        Self { is_terminal, wraps, wrap: Wrap::default(), markdown, in_reasoning: false, dim, spinner: Spinner::new() }
    }

    /// Turns the spinner while no text comes.
    pub fn wait(&mut self, account: &Account) {
        self.spinner.turn(account);
    }

    /// Shows reasoning on a terminal. Elsewhere, stdout gets only the answer.
    pub fn reasoning(&mut self, text: &str) -> io::Result<()> {
        if !self.is_terminal {
            return Ok(());
        }
        let begins = !std::mem::replace(&mut self.in_reasoning, true);
        self.spinner.clear();
        let before = if begins { self.flushed() + self.dim.0 } else { String::new() };
        self.wrap.width = self.width();
        let shown = self.wrap.push(&for_terminal(text));
        self.put(&before, &shown, "")
    }

    /// The answer so far, if reasoning interrupts it.
    fn flushed(&mut self) -> String {
        let Some(markdown) = &mut self.markdown else { return String::new() };
        let is_open = markdown.is_in_line();
        let rest = markdown.finish();
        if rest.is_empty() && !is_open { rest } else { rest + "\n" }
    }

    /// Width of the terminal for wrapping [columns]. 0: no wrapping.
    fn width(&self) -> usize {
        if self.wraps { console::Term::stdout().size_checked().map_or(0, |(_, columns)| columns.into()) } else { 0 }
    }

    pub fn text(&mut self, text: &str) -> io::Result<()> {
        let ends = std::mem::replace(&mut self.in_reasoning, false);
        if ends {
            self.end_reasoning()?;
        }
        self.spinner.clear();
        if !self.is_terminal {
            return show(text);
        }
        let width = self.width();
        // Sanitise first, so that the measured text is the shown text.
        let safe = for_terminal(text);
        let shown = match &mut self.markdown {
            Some(markdown) => markdown.push(&safe, width),
            None => {
                self.wrap.width = width;
                self.wrap.push(&safe)
            }
        };
        self.put("", &shown, "")
    }

    /// Ends the answer, even if it was interrupted.
    pub fn end(&mut self) -> io::Result<()> {
        self.spinner.clear();
        let rest = self.wrap.finish() + &self.markdown.as_mut().map(Markdown::finish).unwrap_or_default();
        let end = if self.in_reasoning { self.dim.1 } else { "" };
        self.in_reasoning = false;
        self.put("", &rest, &format!("{end}\n"))
    }

    fn end_reasoning(&mut self) -> io::Result<()> {
        let line_is_open = self.wrap.column() > 0;
        let rest = self.wrap.finish();
        self.put("", &rest, &format!("{}{}", self.dim.1, if line_is_open { "\n" } else { "" }))
    }

    /// Writes sanitised text between our own codes.
    fn put(&self, before: &str, text: &str, after: &str) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(before.as_bytes())?;
        stdout.write_all(text.as_bytes())?;
        stdout.write_all(after.as_bytes())?;
        stdout.flush()
    }
}

/// A status line on stderr with the engine's progress, if stderr is a terminal.
struct Spinner {
    is_terminal: bool,
    begun: Instant,
    frame: usize,
    /// Width of the shown line [columns].
    width: usize,
}

impl Spinner {
    fn new() -> Self {
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { is_terminal: io::stderr().is_terminal() && !is_dumb, begun: Instant::now(), frame: 0, width: 0 }
    }

    fn turn(&mut self, account: &Account) {
        if !self.is_terminal || self.begun.elapsed() < PATIENCE {
            return;
        }
        self.frame = (self.frame + 1) % FRAMES.len();
        let line = format!("{} {}", FRAMES[self.frame], state(account));
        // Spaces instead of a clearing code, so that a log of the terminal stays readable.
        let shown = format!("\r{line:<width$}", width = self.width);
        self.width = line.chars().count();
        // The line is not essential, so errors of stderr are ignored.
        let _ = io::stderr().write_all(shown.as_bytes());
    }

    /// Clears the status line for the answer, and restarts the waiting time.
    fn clear(&mut self) {
        self.begun = Instant::now();
        match std::mem::take(&mut self.width) {
            0 => {}
            width => drop(write!(io::stderr(), "\r{:width$}\r", "")),
        }
    }
}

fn state(account: &Account) -> String {
    let (computed, prompt) = (account.computed_tokens(), account.prompt_tokens());
    match (account.admitted(), account.prefilled()) {
        (None, _) => "waiting".to_owned(),
        (_, None) if prompt > 0 => {
            format!("reading the prompt: {computed} of {prompt} tokens ({} %)", u64::from(computed) * 100 / u64::from(prompt))
        }
        _ => format!("{} tokens", account.generated_tokens()),
    }
}

/// The speed of an answer in one line. None if the engine had nothing to do.
pub fn speed(account: &Account, now: Instant) -> Option<String> {
    let (arrived, admitted) = (account.arrived()?, account.admitted()?);
    let (prompt, cached, generated) = (account.prompt_tokens(), account.cached_tokens(), account.generated_tokens());
    let rate = |tokens: u32, time: Duration| f64::from(tokens) / time.as_secs_f64().max(1e-9);
    let found = if cached > 0 { format!(" ({cached} of them cached)") } else { String::new() };
    let Some(prefilled) = account.prefilled() else {
        return Some(format!("prompt: {prompt} tokens{found}, not all of them read"));
    };
    let (reading, last) = (prefilled - admitted, account.last().unwrap_or(now));
    let answering = last.saturating_duration_since(prefilled);
    let mut line = format!(
        "prompt: {prompt} tokens{found} in {:.2} s, {:.1} tokens/s; answer: {generated} tokens in {:.2} s",
        reading.as_secs_f64(),
        rate(prompt.saturating_sub(cached), reading),
        answering.as_secs_f64()
    );
    // The first token belongs to the prompt's last step.
    if generated > 1 {
        line += &format!(", {:.1} tokens/s", rate(generated - 1, answering));
    }
    let drafts = account.drafts();
    if drafts.drafted > 0 {
        line += &format!("; {} of {} drafted tokens were right", drafts.accepted, drafts.drafted);
    }
    Some(line + &format!("; first token after {:.2} s", (prefilled - arrived).as_secs_f64()))
}

//! The interactive chat on a terminal.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use outside::check_regular;
use rustyline::Editor;
use rustyline::config::{CompletionType, Configurer};
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;

use super::chat::Chat;
use super::command::{ChatLine, Command, HELP, parse, unknown};
use super::completion::Completion;
use super::echo_guard::EchoGuard;
use super::picture_paths::at_home;
use super::pictures::{Draft, Picture, attach, lines};
use super::saved::{load, save};
use super::wrap::in_columns;
use crate::cli::colour::Colour;
use crate::cli::output::{say, say_in, width_of_stderr};
use crate::registry::{ListedModel, ModelKind, Registry};

/// The most lines of the history.
const MAX_HISTORY: usize = 1000;
/// The most messages that `/show messages` shows.
const SHOWN_MESSAGES: usize = 20;

struct Repl<'a> {
    chat: &'a mut Chat,
    registry: &'a Arc<Registry>,
    editor: Editor<Completion, DefaultHistory>,
    history: Option<PathBuf>,
    /// Pictures for the next message.
    attached: Vec<Picture>,
}

enum Line {
    Text(String),
    /// Ctrl-C at the prompt.
    Dropped,
    /// Ctrl-D at the prompt.
    TurnEnd,
}

pub fn run(chat: &mut Chat, registry: &Arc<Registry>, runtime: &tokio::runtime::Runtime) -> anyhow::Result<()> {
    let mut editor = Editor::new().context("cannot use the terminal")?;
    editor.set_helper(Some(Completion::new(registry.clone())));
    editor.set_completion_type(CompletionType::List);
    editor.set_max_history_size(MAX_HISTORY)?;
    let history = history_file().filter(|path| read_history(&mut editor, path, chat.settings.history));
    tell(&format!("{}: type a message, or /? for help", chat.model.id));
    let mut repl = Repl { chat, registry, editor, history, attached: Vec::new() };
    loop {
        let text = match repl.read()? {
            Line::Text(text) if text.trim().is_empty() => continue,
            Line::Text(text) => text,
            Line::Dropped => continue,
            Line::TurnEnd => return Ok(()),
        };
        repl.remember(&text);
        match parse(&text) {
            Some(Command::Bye) => return Ok(()),
            Some(command) => repl.obey(command),
            None => repl.send(text.trim(), runtime),
        }
    }
}

/// Reads what was typed before, if it is wanted. Returns whether the file may be written to: not if it is something else than a file.
fn read_history(editor: &mut Editor<Completion, DefaultHistory>, path: &Path, is_wanted: bool) -> bool {
    let fault = match check_regular(path) {
        Ok(_) if !is_wanted => None,
        Ok(_) => editor.load_history(path).map_err(|error| error.to_string()).err(),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => {
            if is_wanted {
                say(&format!("the history {} is not used: {error}", path.display()));
            }
            return false;
        }
    };
    fault.iter().for_each(|fault| say(&format!("the history {} cannot be read: {fault}", path.display())));
    true
}

impl Repl<'_> {
    /// Sends a message. If that fails, attached pictures stay attached.
    fn send(&mut self, text: &str, runtime: &tokio::runtime::Runtime) {
        let quiet = EchoGuard::begin();
        let result = Draft::new(text, self.attached.clone()).and_then(|draft| runtime.block_on(self.chat.answer(&draft)));
        drop(quiet);
        match result {
            Ok(_) => self.attached.clear(),
            Err(error) if !self.attached.is_empty() => fail(&format!("{error:#} (/image clear drops the attached pictures)")),
            Err(error) => fail(&format!("{error:#} (/clear forgets the conversation)")),
        }
    }

    /// Reads a line, or several between quotes.
    fn read(&mut self) -> anyhow::Result<Line> {
        let mut entry = None;
        loop {
            let line = match self.editor.readline(if entry.is_none() { "> " } else { ". " }) {
                Ok(line) => line,
                Err(ReadlineError::Interrupted) => return Ok(Line::Dropped),
                Err(ReadlineError::Eof) if entry.is_none() => return Ok(Line::TurnEnd),
                Err(ReadlineError::Eof) => return Ok(Line::Dropped),
                Err(error) => return Err(error.into()),
            };
            let next = match entry.take() {
                None => ChatLine::begin(&line),
                Some(open) => ChatLine::add(open, &line),
            };
            match next {
                ChatLine::Complete(text) => return Ok(Line::Text(text)),
                open => entry = Some(open),
            }
        }
    }

    fn remember(&mut self, text: &str) {
        // It is no error if the history does not accept a line.
        let _ = self.editor.add_history_entry(text.trim());
        let Some(path) = self.history.clone().filter(|_| self.chat.settings.history) else { return };
        let kept = path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(ReadlineError::from);
        if let Err(error) = kept.and_then(|()| self.editor.append_history(&path)) {
            fail(&format!("the history {} cannot be written: {error}", path.display()));
            // The error is shown only once.
            self.history = None;
        }
    }

    fn obey(&mut self, command: Command) {
        let chat = &mut *self.chat;
        let result = match command {
            Command::Bye => Ok(String::new()),
            Command::Clear => {
                chat.messages.clear();
                Ok("the conversation is forgotten".to_owned())
            }
            Command::Help => Ok(HELP.to_owned()),
            Command::Set(text) => chat.set(text),
            Command::Show(what) => shown(chat, what),
            Command::Save("") | Command::Load("") => Err("the name of a file is missing: /save FILE, /load FILE".to_owned()),
            Command::Save(path) => save(chat, &at_home(path)).map(|()| format!("saved to {path}")).map_err(|error| format!("{error:#}")),
            Command::Load(path) => match load(chat, &at_home(path)) {
                Ok(model) => Ok(loaded(chat, path, &model)),
                Err(error) => Err(format!("{error:#}")),
            },
            Command::Model("") => Ok(models(self.registry, &chat.model.id)),
            Command::Model(name) => chat.change_model(self.registry, name),
            Command::Image("") if self.attached.is_empty() => Ok("no pictures are attached: /image FILE attaches one".to_owned()),
            Command::Image("") => Ok(lines(&self.attached)),
            Command::Image("clear") => {
                self.attached.clear();
                Ok("no pictures are attached".to_owned())
            }
            Command::Image(paths) => match attach(&mut self.attached, paths) {
                Ok(()) => Ok(lines(&self.attached)),
                Err(error) => Err(format!("{error:#}")),
            },
            Command::Unknown(name) => Err(unknown(name)),
        };
        match result {
            Ok(text) => tell(&text),
            Err(text) => fail(&text),
        }
    }
}

/// The models on disk, one per line.
fn models(registry: &Registry, current: &str) -> String {
    let line = |offered: ListedModel| {
        let kind = offered.kind.filter(|kind| *kind != ModelKind::Chat).map_or(String::new(), |kind| format!(" ({})", kind.name()));
        format!("{} {}{kind}", if offered.info.id == current { "*" } else { " " }, offered.info.id)
    };
    registry.offered().into_iter().map(line).collect::<Vec<_>>().join("\n")
}

fn loaded(chat: &Chat, path: &str, model: &str) -> String {
    let other = if model == chat.model.id { String::new() } else { format!(", which was held with {model}") };
    format!("{} messages of {path}{other}", chat.messages.len())
}

fn shown(chat: &Chat, what: &str) -> Result<String, String> {
    let model = &chat.model;
    match what {
        "" | "settings" | "parameters" => Ok(chat.settings.table(model.sampling).trim_end().to_owned()),
        "system" => Ok(chat.settings.system.clone().unwrap_or_else(|| "no system message is set".to_owned())),
        "messages" | "history" => {
            let left_out = chat.messages.len().saturating_sub(SHOWN_MESSAGES);
            let mut lines: Vec<String> = (left_out > 0).then(|| format!("({left_out} earlier messages)")).into_iter().collect();
            lines.extend(chat.messages[left_out..].iter().map(|message| format!("{}: {}", message.role.name(), message.text())));
            Ok(if lines.is_empty() { "there are no messages yet".to_owned() } else { lines.join("\n") })
        }
        "model" | "info" => {
            let (base, spec) = (&model.base, &model.base.spec);
            Ok(format!(
                "{}\narchitecture        {}\ncontext             {} of {} tokens\nlayers              {}\nvocabulary          {} tokens\n\
                 backend             {}",
                model.id,
                spec.arch.name,
                model.context(),
                spec.context_length,
                spec.layers.len(),
                spec.vocab_size,
                base.backend
            ))
        }
        "template" => match &model.template {
            Some(template) => Ok(template.source().to_owned()),
            None => Ok(format!("{} has no chat template", model.id)),
        },
        other => Err(format!("there is no `{other}` to show: expected settings, system, messages, model or template")),
    }
}

/// Shows a message of the program on stderr, wrapped at the terminal's width.
fn tell(text: &str) {
    say(&in_columns(text, width_of_stderr()));
}

fn fail(text: &str) {
    say_in(Colour::Red, text);
}

/// `$XDG_STATE_HOME/penstock/history`, or the same below `~/.local/state`. None if there is no home directory.
fn history_file() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local").join("state")))?;
    Some(state.join("penstock").join("history"))
}

//! A conversation with a model in this process.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Instant;

use tokio::signal::unix::{SignalKind, signal};

use super::pictures::{Draft, lines};
use super::screen::{Screen, TURN, speed};
use super::settings::Settings;
use crate::chat::{Conversation, Message, Piece, Role};
use crate::cli::colour::Colour;
use crate::cli::output::{say, say_in};
use crate::registry::{Registry, RegistryError};
use crate::serving::{Account, EndReason, Ledger, Model, Output, Prompt, ResponseRequest, StreamError, apply_template, reserve, submit};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnEnd {
    Complete,
    Interrupted,
}

pub struct Chat {
    pub model: Arc<Model>,
    pub settings: Settings,
    /// The messages, without the system message, which is a setting.
    pub messages: Vec<Message>,
}

/// An answer and its end.
struct Answer {
    text: String,
    end: TurnEnd,
    /// Whether the context is full.
    is_cut: bool,
}

impl Chat {
    pub fn new(model: Arc<Model>, settings: Settings) -> Self {
        Self { model, settings, messages: Vec::new() }
    }

    /// Changes a setting.
    ///
    /// # Errors
    /// There is no such setting, it does not take the value, or the model does not support it. Nothing changes then.
    pub fn set(&mut self, text: &str) -> Result<String, String> {
        let mut changed = self.settings.clone();
        let answer = changed.set(text)?;
        self.try_settings(&changed)?;
        self.settings = changed;
        Ok(answer)
    }

    /// Checks that the model's template supports the settings.
    pub fn try_settings(&self, settings: &Settings) -> Result<(), String> {
        let id = &self.model.id;
        if !self.has_turns() {
            return match (&settings.think, &settings.system) {
                (None, None) => Ok(()),
                _ => Err(format!("{id} continues texts without a chat template: it takes neither `system` nor `think`")),
            };
        }
        let template = self.model.template.as_ref();
        if settings.think.as_deref() == Some("on") && !template.is_some_and(|template| template.features().thinking_switch) {
            return Err(format!("the chat template of {id} has no switch for reasoning"));
        }
        let probe = conversation(settings, vec![Message::of_text(Role::User, "?")]);
        apply_template(&self.model, &probe).map(drop).map_err(|error| error.to_string())
    }

    /// Continues with another model, which is loaded first. The conversation stays.
    ///
    /// # Errors
    /// There is no such model on disk, it cannot be loaded, or it does not take the settings. Nothing changes then.
    pub fn change_model(&mut self, registry: &Arc<Registry>, name: &str) -> Result<String, String> {
        let near = |error: RegistryError| match &error {
            RegistryError::NotFound { near: Some(near), .. } => format!("{error} (did you mean {near}?): /model lists the models on disk"),
            RegistryError::NotFound { .. } => format!("{error}: /model lists the models on disk"),
            _ => error.to_string(),
        };
        let before = self.model.id.clone();
        // Without a lease, the current model may be unloaded to make room.
        self.model = Arc::new(self.model.leased(Box::new(())));
        let changed = registry.get(name).map_err(near).and_then(|model| {
            let changed = Self::new(model, Settings::default());
            changed.try_settings(&self.settings).map(|()| changed.model)
        });
        self.model = match changed {
            Ok(model) => model,
            Err(fault) => {
                self.model = registry.get(&before).map_err(|error| format!("{fault}; and {error}"))?;
                return Err(fault);
            }
        };
        let note = if self.has_turns() { "" } else { ": a base model, which continues each text and does not chat" };
        Ok(format!("{} answers from now on{note}", self.model.id))
    }

    /// Whether messages form a conversation. A base model only continues a text.
    pub fn has_turns(&self) -> bool {
        !self.model.only_continues && self.model.template.is_some()
    }

    /// Streams the answer to stdout. If the answer fails, the conversation does not change. An interrupted answer becomes part of the
    /// conversation.
    pub async fn answer(&mut self, draft: &Draft) -> anyhow::Result<TurnEnd> {
        let parts = draft.parts(&self.model.id, self.model.base.pictures.is_some())?;
        if !draft.pictures.is_empty() {
            say_in(Colour::Dim, &lines(&draft.pictures));
        }
        let before = self.messages.len();
        self.messages.push(Message { parts, ..Message::new(Role::User) });
        match self.generate(&draft.text).await {
            Ok(answer) => {
                if answer.is_cut {
                    say(&format!("the context of {} tokens is full: /clear forgets the conversation", self.model.context()));
                }
                self.messages.push(Message::of_text(Role::Assistant, answer.text));
                Ok(answer.end)
            }
            Err(error) => {
                self.messages.truncate(before);
                Err(error)
            }
        }
    }

    async fn generate(&self, text: &str) -> anyhow::Result<Answer> {
        // Registered first, so that no interrupt is lost while the prompt is encoded.
        let mut interrupts = signal(SignalKind::interrupt())?;
        let request = ResponseRequest::new(self.model.clone(), self.prompt(text), self.settings.options());
        let mut requests = request.validate()?;
        for request in &mut requests {
            tokio::select! {
                encoded = request.encode_pictures() => encoded?,
                _ = interrupts.recv() => anyhow::bail!("stopped before the pictures were read"),
            }
        }
        let places = reserve(&self.model, &requests)?;
        let mut response = submit(requests, places, Ledger::default(), pending::<Infallible>())?;
        let account = response.ledger().first().unwrap_or_default();
        let (mut screen, mut answer) = (Screen::new(&self.settings, self.has_turns()), String::new());
        let mut turns = tokio::time::interval(TURN);
        let (end, is_cut) = loop {
            let output = tokio::select! {
                output = response.next() => output,
                _ = interrupts.recv() => break (TurnEnd::Interrupted, false),
                _ = turns.tick() => {
                    screen.wait(&account);
                    continue;
                }
            };
            match output {
                Some(Ok((_, Output::Pieces(pieces)))) => {
                    for piece in pieces {
                        match piece {
                            Piece::Text(piece) => {
                                screen.text(&piece.text)?;
                                answer += &piece.text;
                            }
                            // Reasoning is shown, but it is not part of the conversation.
                            Piece::Reasoning(text) => screen.reasoning(&text)?,
                            _ => {}
                        }
                    }
                }
                Some(Err(StreamError::Failed(failure))) => {
                    screen.end()?;
                    return Err(failure.into());
                }
                Some(Err(StreamError::Interrupted(never))) => match never {},
                Some(Ok((_, Output::End(end)))) => {
                    let used = account.prompt_tokens() + account.generated_tokens();
                    break (TurnEnd::Complete, end.reason == EndReason::Length && used as usize >= self.model.context());
                }
                None => break (TurnEnd::Complete, false),
            }
        };
        screen.end()?;
        self.report(&account);
        Ok(Answer { text: answer, end, is_cut })
    }

    fn report(&self, account: &Account) {
        if self.settings.verbose
            && let Some(line) = speed(account, Instant::now())
        {
            say_in(Colour::Dim, &line);
        }
    }

    fn prompt(&self, text: &str) -> Prompt {
        match self.has_turns() {
            true => Prompt::Chat(conversation(&self.settings, self.messages.clone())),
            false => Prompt::Text(text.into()),
        }
    }
}

/// The conversation that the model answers.
fn conversation(settings: &Settings, messages: Vec<Message>) -> Conversation {
    let system = settings.system.iter().map(|text| Message::of_text(Role::System, text));
    let mut conversation = Conversation { messages: system.chain(messages).collect(), ..Conversation::default() };
    settings.apply_to(&mut conversation);
    conversation
}

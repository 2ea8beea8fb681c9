//! The start of a response: what the model sees of the conversation, and its generation.

use std::sync::Arc;

use actix_web::web;

use super::conversation_store::Conversation as StoredConversation;
use super::convert::responses::Responses;
use super::kept::Keepable;
use super::live::Live;
use super::response_draft::Draft;
use super::response_record::Record;
use super::shelves::Shelves;
use super::store::Stored;
use super::types::responses::{ConversationRef, Settings};
use super::{conversations, truncation};
use chat::{Conversation, Message, Role};
use http::budget::Held;
use http::caller::Caller;
use http::choices::{self, Ask, Choices};
use http::error::{ApiError, Kind, quoted};
use http::head::Head;
use http::state::{AppState, off_loop};
use serving::Prompt;

/// How much memory the texts of what came before may take at once: as messages, for the store, in what a template is given, in the prompt.
const COPIES: usize = 4;

/// Starts the answer of a request once its model is there. `begun`: the response's head and readers, if it is made in the background.
pub async fn start(
    state: web::Data<AppState>,
    shelves: web::Data<Shelves>,
    caller: &Caller,
    request: Responses,
    held: Arc<Held>,
    begun: Option<(Head, Arc<Live>)>,
) -> Result<(Choices, Record), ApiError> {
    let (tenant, journal) = (caller.tenant.clone(), caller.journal.clone());
    let model = caller.model(&state, &request.model).await?;
    let Responses { conversation, options, names, settings, input, .. } = request;
    let settings = settings.sampled_with(&model.sampling_of(&options));
    let Said { messages, kept, memory } = Said::new(&state, &shelves, tenant.name(), conversation.messages, &settings).await?;
    let held = Arc::new(memory.along(held));
    let conversation = shown(Conversation { messages, ..conversation }, &settings);
    let conversation = match settings.truncation == "auto" {
        true => truncation::fitted(model.clone(), conversation, settings.max_output_tokens).await?,
        false => conversation,
    };
    let (head, live) = match begun {
        Some((head, live)) => (head, Some(live)),
        None => (Head::new("resp", &model), None),
    };
    let draft = Draft::new(head, settings, options.logprobs.is_some());
    let answer = Record { draft, messages: kept, input, shelves, tenant: tenant.clone(), live, _held: held.clone() };
    let prompts = vec![Prompt::Chat(conversation)];
    let ask = Ask { model, prompts, options, num_choices: 1, best_of: 1, names, held, tenant, journal };
    Ok((choices::start(state, ask).await?, answer))
}

/// The conversation as the model sees it: with the instructions before it.
pub fn shown(conversation: Conversation, settings: &Settings) -> Conversation {
    let instructions = settings.instructions.iter().map(|text| Message::of_text(Role::System, text));
    let messages = instructions.chain(conversation.messages).collect();
    Conversation { messages, ..conversation }
}

/// What was said so far: the messages of the conversation or of the previous response, and the new ones.
pub struct Said {
    pub messages: Vec<Message>,
    /// The same, if the response is stored. Otherwise empty.
    pub kept: Vec<Message>,
    /// The memory that is held for both.
    pub memory: Held,
}

/// What comes before a response.
enum Earlier {
    Conversation(Arc<StoredConversation>),
    Response(Arc<Stored>),
}

impl Earlier {
    /// Finds what a request refers to. `None`: nothing.
    fn of(shelves: &Shelves, tenant: &str, settings: &Settings) -> Result<Option<Self>, ApiError> {
        if let Some(ConversationRef { id }) = &settings.conversation {
            let conversation = shelves.conversations.get(tenant, id).ok_or_else(|| conversations::gone(id))?;
            return Ok(Some(Self::Conversation(conversation)));
        }
        let Some(id) = settings.previous_response_id.as_deref() else { return Ok(None) };
        let gone = |why: &str| {
            let message = format!("the response `{}` {why}", quoted(id));
            ApiError::new(Kind::PreviousResponse, message).with_param("previous_response_id")
        };
        let stored = shelves.responses.get(tenant, id).ok_or_else(|| match shelves.lives.get(tenant, id) {
            Some(_) => gone("has not ended: wait until it is completed"),
            None => gone("is not there: it was not stored, was deleted, or is too old"),
        })?;
        match stored.messages {
            Some(_) => Ok(Some(Self::Response(stored))),
            None => Err(gone("failed or was cancelled, so that nothing can follow it")),
        }
    }

    /// The size of its texts. In bytes.
    fn num_bytes(&self) -> usize {
        match self {
            Self::Conversation(conversation) => conversation.num_bytes(),
            Self::Response(stored) => stored.messages.iter().flatten().map(Message::num_bytes).sum(),
        }
    }
}

/// Checks that what a request refers to is there.
pub fn check_earlier(shelves: &Shelves, tenant: &str, settings: &Settings) -> Result<(), ApiError> {
    Earlier::of(shelves, tenant, settings).map(drop)
}

impl Said {
    pub async fn new(state: &AppState, shelves: &Shelves, tenant: &str, new: Vec<Message>, settings: &Settings) -> Result<Self, ApiError> {
        let (mut memory, stores) = (state.bodies.share(), settings.store);
        let kept = move |messages: &Vec<Message>| if stores { messages.clone() } else { Vec::new() };
        let Some(earlier) = Earlier::of(shelves, tenant, settings)? else {
            return Ok(Self { kept: kept(&new), messages: new, memory });
        };
        let texts = COPIES * earlier.num_bytes();
        memory.set(texts)?;
        // It may be many megabytes, which the event loop has no time for.
        let read = move || {
            let mut messages = match earlier {
                Earlier::Conversation(conversation) => conversations::earlier(&conversation, &mut |weight| memory.set(texts + weight))?,
                Earlier::Response(stored) => stored.messages.clone().unwrap_or_default(),
            };
            memory.shrink_to(texts);
            messages.extend(new);
            Ok(Self { kept: kept(&messages), messages, memory })
        };
        off_loop(read).await?
    }
}

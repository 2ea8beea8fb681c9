//! The start of a response: its conversation, as the model sees it, and its generation.

use std::sync::Arc;

use actix_web::web;

use super::background_responses::BackgroundResponse;
use super::conversation_store::Conversation as StoredConversation;
use super::convert::responses::Responses;
use super::response_builder::ResponseBuilder;
use super::response_record::ResponseRecord;
use super::response_store::StoredResponse;
use super::stores::Stores;
use super::tenant_lru::LruValue;
use super::types::responses::{ConversationRef, Settings};
use super::{conversations, truncation};
use chat::{Conversation, Message, Role};
use http::caller::Caller;
use http::client_stream::{self, ClientStream};
use http::error::{ApiError, Kind, quoted};
use http::fetched_pictures;
use http::memory_budget::MemoryPermit;
use http::response_head::ResponseHead;
use http::state::{AppState, off_loop};
use serving::{Prompt, ResponseRequest};

/// The number of copies of the earlier texts that may exist at once: as messages, in the store, in the template's input and in the prompt.
const COPIES: usize = 4;

/// Starts the answer of a request, once its model is loaded. `begun` has the head and the readers of a background response.
pub async fn start(
    state: web::Data<AppState>,
    stores: web::Data<Stores>,
    caller: &Caller,
    request: Responses,
    held: Arc<MemoryPermit>,
    begun: Option<(ResponseHead, Arc<BackgroundResponse>)>,
) -> Result<(ClientStream, ResponseRecord), ApiError> {
    let tenant = caller.tenant.clone();
    let model = caller.model_with(&state, &request.model, request.lora.as_deref()).await?;
    let Responses { conversation, options, names, settings, input, .. } = request;
    let settings = settings.sampled_with(&model.sampling_of(&options));
    let ConversationSoFar { messages, kept, memory } =
        ConversationSoFar::new(&state, &stores, tenant.name(), conversation.messages, &settings).await?;
    let held = Arc::new(memory.along(held));
    let mut conversation = shown(Conversation { messages, ..conversation }, &settings);
    let held = fetched_pictures::fetch(&state, &model, &mut conversation, held).await?;
    let conversation = match settings.truncation == "auto" {
        true => truncation::fitted(model.clone(), conversation, settings.max_output_tokens).await?,
        false => conversation,
    };
    let (head, background) = match begun {
        Some((head, background)) => (head, Some(background)),
        None => (ResponseHead::new("resp", &model), None),
    };
    let draft = ResponseBuilder::new(head, settings, options.logprobs.is_some());
    let answer = ResponseRecord { draft, messages: kept, input, stores, tenant, background, _held: held.clone() };
    let asked = ResponseRequest::new(model, Prompt::Chat(conversation), options);
    Ok((client_stream::start(state, caller, asked, names, held).await?, answer))
}

/// Returns the conversation as the model sees it, preceded by the instructions.
pub fn shown(conversation: Conversation, settings: &Settings) -> Conversation {
    let instructions = settings.instructions.iter().map(|text| Message::of_text(Role::System, text));
    let messages = instructions.chain(conversation.messages).collect();
    Conversation { messages, ..conversation }
}

/// The conversation so far: the messages of the conversation or of the previous response, followed by the new ones.
pub struct ConversationSoFar {
    pub messages: Vec<Message>,
    /// A copy of the messages, if the response is stored. Otherwise empty.
    pub kept: Vec<Message>,
    /// The memory that is held for both.
    pub memory: MemoryPermit,
}

/// The conversation or the response that a response continues.
enum Predecessor {
    Conversation(Arc<StoredConversation>),
    Response(Arc<StoredResponse>),
}

impl Predecessor {
    /// Finds the predecessor that a request refers to. `None` if the request has none.
    fn of(stores: &Stores, tenant: &str, settings: &Settings) -> Result<Option<Self>, ApiError> {
        if let Some(ConversationRef { id }) = &settings.conversation {
            let conversation = stores.conversations.get(tenant, id).ok_or_else(|| conversations::gone(id))?;
            return Ok(Some(Self::Conversation(conversation)));
        }
        let Some(id) = settings.previous_response_id.as_deref() else { return Ok(None) };
        let gone = |why: &str| {
            let message = format!("the response `{}` {why}", quoted(id));
            ApiError::new(Kind::PreviousResponse, message).with_param("previous_response_id")
        };
        let stored = stores.responses.get(tenant, id).ok_or_else(|| match stores.background.get(tenant, id) {
            Some(_) => gone("has not ended: wait until it is completed"),
            None => gone("does not exist: it was not stored, was deleted, or is too old"),
        })?;
        match stored.messages {
            Some(_) => Ok(Some(Self::Response(stored))),
            None => Err(gone("failed or was cancelled, so that nothing can follow it")),
        }
    }

    /// The size of the texts [bytes].
    fn num_bytes(&self) -> usize {
        match self {
            Self::Conversation(conversation) => conversation.num_bytes(),
            Self::Response(stored) => stored.messages.iter().flatten().map(Message::num_bytes).sum(),
        }
    }
}

/// Checks that the predecessor of a request exists.
pub fn check_earlier(stores: &Stores, tenant: &str, settings: &Settings) -> Result<(), ApiError> {
    Predecessor::of(stores, tenant, settings).map(drop)
}

impl ConversationSoFar {
    pub async fn new(state: &AppState, stores: &Stores, tenant: &str, new: Vec<Message>, settings: &Settings) -> Result<Self, ApiError> {
        let (mut memory, is_stored) = (state.bodies.share(), settings.store);
        let kept = move |messages: &Vec<Message>| if is_stored { messages.clone() } else { Vec::new() };
        let Some(earlier) = Predecessor::of(stores, tenant, settings)? else {
            return Ok(Self { kept: kept(&new), messages: new, memory });
        };
        let texts = COPIES * earlier.num_bytes();
        memory.set(texts)?;
        // The predecessor may have many megabytes, which would block the event loop.
        let read = move || {
            let mut messages = match earlier {
                Predecessor::Conversation(conversation) => conversations::earlier(&conversation, &mut |weight| memory.set(texts + weight))?,
                Predecessor::Response(stored) => stored.messages.clone().unwrap_or_default(),
            };
            memory.shrink_to(texts);
            messages.extend(new);
            Ok(Self { kept: kept(&messages), messages, memory })
        };
        off_loop(read).await?
    }
}

//! A response that is stored when it has ended, if the client asked for that.

use std::sync::Arc;

use actix_web::web;
use serde_json::Value;

use super::background_responses::BackgroundResponse;
use super::error::response_code;
use super::response_builder::{ResponseBuilder, value};
use super::response_store::{StoredResponse, named};
use super::stores::Stores;
use super::types::responses::ResponseError;
use super::types::usage::Usage;
use chat::Message;
use http::error::ApiError;
use http::memory_budget::MemoryPermit;
use http::tenant::Tenant;

pub struct ResponseRecord {
    pub draft: ResponseBuilder,
    /// The conversation before the answer, without instructions. Empty unless the response is stored.
    pub messages: Vec<Message>,
    /// The new items of the request's input, as they are stored.
    pub input: Vec<Value>,
    pub stores: web::Data<Stores>,
    /// The tenant that the response belongs to.
    pub tenant: Tenant,
    /// The background response with its readers, if there is one.
    pub background: Option<Arc<BackgroundResponse>>,
    /// The memory that is held for the request, whose settings the response repeats.
    pub _held: Arc<MemoryPermit>,
}

impl ResponseRecord {
    /// Ends the response. Returns it as JSON.
    pub fn end(&mut self, usage: Usage) -> String {
        self.draft.usage = Some(usage);
        let response = self.draft.object();
        // Serialising our own types cannot fail, because all keys of their maps are strings.
        let text = serde_json::to_string(&response).expect("a response is JSON");
        let input = std::mem::take(&mut self.input);
        if let Some(conversation) = &self.draft.settings.conversation {
            let items: Vec<Value> = input.iter().cloned().chain(response.output.iter().map(value)).collect();
            self.stores.conversations.append(self.tenant.name(), &conversation.id, &items);
        }
        if self.draft.settings.store {
            let mut messages = std::mem::take(&mut self.messages);
            messages.push(self.draft.as_message());
            let stored = StoredResponse::new(&response, text.clone(), Some(messages));
            self.keep(StoredResponse { input: input.iter().map(named).collect(), ..stored });
        }
        text
    }

    /// Ends the response with an error. A background response is stored anyway, because clients ask for it later.
    pub fn fail(&mut self, error: &ApiError) {
        self.draft.status = "failed";
        self.draft.error = Some(ResponseError { code: response_code(error.kind).into(), message: error.message.clone() });
        if self.background.is_some() {
            let response = self.draft.object();
            let text = value(&response).to_string();
            let input = self.input.iter().map(named).collect();
            self.keep(StoredResponse { input, ..StoredResponse::new(&response, text, None) });
        }
    }

    fn keep(&self, stored: StoredResponse) {
        if let Some(background) = &self.background {
            background.set_response(stored.response.clone());
        }
        let stored = StoredResponse { background: self.background.clone(), ..stored };
        self.stores.responses.insert(self.tenant.name(), &self.draft.head.id, stored);
    }
}

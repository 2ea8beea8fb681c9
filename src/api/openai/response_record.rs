//! A response that the server keeps once it has ended, if the client asked for that.

use std::sync::Arc;

use actix_web::web;
use serde_json::Value;

use super::error::response_code;
use super::live::Live;
use super::response_draft::{Draft, value};
use super::shelves::Shelves;
use super::store::{Stored, named};
use super::types::responses::ResponseError;
use super::types::usage::Usage;
use chat::Message;
use http::budget::Held;
use http::error::ApiError;
use http::tenant::Tenant;

pub struct Record {
    pub draft: Draft,
    /// The conversation before the answer, without instructions. Empty unless the response is stored.
    pub messages: Vec<Message>,
    /// The new items of the request's input, as they are kept.
    pub input: Vec<Value>,
    pub shelves: web::Data<Shelves>,
    /// Whose response it is.
    pub tenant: Tenant,
    /// Whoever waits for it, if it is made in the background.
    pub live: Option<Arc<Live>>,
    /// The memory that is held for the request, whose settings the response repeats.
    pub _held: Arc<Held>,
}

impl Record {
    /// Ends the response. Returns it as JSON.
    pub fn end(&mut self, usage: Usage) -> String {
        self.draft.usage = Some(usage);
        let response = self.draft.object();
        // Our own types always serialize, because their maps have string keys.
        let text = serde_json::to_string(&response).expect("a response is JSON");
        let input = std::mem::take(&mut self.input);
        if let Some(conversation) = &self.draft.settings.conversation {
            let items: Vec<Value> = input.iter().cloned().chain(response.output.iter().map(value)).collect();
            self.shelves.conversations.append(self.tenant.name(), &conversation.id, &items);
        }
        if self.draft.settings.store {
            let mut messages = std::mem::take(&mut self.messages);
            messages.push(self.draft.as_message());
            let stored = Stored::new(&response, text.clone(), Some(messages));
            self.keep(Stored { input: input.iter().map(named).collect(), ..stored });
        }
        text
    }

    /// Ends the response with an error. It is kept only if someone may still ask for it.
    pub fn fail(&mut self, error: &ApiError) {
        self.draft.status = "failed";
        self.draft.error = Some(ResponseError { code: response_code(error.kind).into(), message: error.message.clone() });
        if self.live.is_some() {
            let response = self.draft.object();
            let text = value(&response).to_string();
            let input = self.input.iter().map(named).collect();
            self.keep(Stored { input, ..Stored::new(&response, text, None) });
        }
    }

    fn keep(&self, stored: Stored) {
        if let Some(live) = &self.live {
            live.set_response(stored.response.clone());
        }
        let stored = Stored { live: self.live.clone(), ..stored };
        self.shelves.responses.insert(self.tenant.name(), &self.draft.head.id, stored);
    }
}

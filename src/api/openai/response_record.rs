//! A response that the server keeps once it has ended, if the client asked for that.

use actix_web::web;

use super::response_draft::{Draft, value};
use super::store::{ResponseStore, Stored};
use super::types::responses::ResponseObject;
use super::types::usage::Usage;
use chat::Message;

pub struct Record {
    pub draft: Draft,
    /// The conversation before the answer, without instructions.
    pub messages: Vec<Message>,
    pub store: web::Data<ResponseStore>,
}

impl Record {
    pub fn end(&mut self, usage: Usage) -> ResponseObject {
        self.draft.usage = Some(usage);
        let response = self.draft.object();
        if self.draft.settings.store {
            let mut messages = std::mem::take(&mut self.messages);
            messages.push(self.draft.as_message());
            self.store.insert(&self.draft.head.id, Stored { response: value(&response), messages });
        }
        response
    }
}

//! A response that the server keeps once it has ended, if the client asked for that.

use std::sync::Arc;

use actix_web::web;

use super::response_draft::Draft;
use super::store::{ResponseStore, Stored};
use super::types::usage::Usage;
use crate::http::budget::Held;
use crate::http::tenant::Tenant;
use chat::Message;

pub struct Record {
    pub draft: Draft,
    /// The conversation before the answer, without instructions.
    pub messages: Vec<Message>,
    pub store: web::Data<ResponseStore>,
    /// Whose response it is.
    pub tenant: Tenant,
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
        if self.draft.settings.store {
            let mut messages = std::mem::take(&mut self.messages);
            messages.push(self.draft.as_message());
            self.store.insert(self.tenant.name(), &self.draft.head.id, Stored::new(&response, text.clone(), messages));
        }
        text
    }
}

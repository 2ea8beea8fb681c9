//! What clients keep in memory, of every kind.

use actix_web::web::Data;

use super::chat_store::ChatStore;
use super::conversation_store::ConversationStore;
use super::kept::Kept;
use super::live::Lives;
use super::store::ResponseStore;
use config::Config;

pub struct Shelves {
    pub responses: Data<ResponseStore>,
    pub chats: ChatStore,
    pub conversations: Data<ConversationStore>,
    /// Responses that are made in the background.
    pub lives: Lives,
}

impl Shelves {
    pub fn new(config: &Config) -> Self {
        Self {
            responses: Data::new(Kept::new(config.limits.max_stored_responses)),
            chats: Kept::new(config.storage.max_stored_chats),
            conversations: Data::new(Kept::new(config.storage.max_conversations)),
            lives: Lives::new(config.storage.max_background),
        }
    }
}

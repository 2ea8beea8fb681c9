//! The in-memory stores for clients' objects.

use actix_web::web::Data;

use super::background_responses::BackgroundResponses;
use super::chat_store::ChatStore;
use super::conversation_store::ConversationStore;
use super::response_store::ResponseStore;
use super::tenant_lru::TenantLru;
use config::Config;

pub struct Stores {
    pub responses: Data<ResponseStore>,
    pub chats: ChatStore,
    pub conversations: Data<ConversationStore>,
    /// The background responses that have not ended.
    pub background: BackgroundResponses,
}

impl Stores {
    pub fn new(config: &Config) -> Self {
        Self {
            responses: Data::new(TenantLru::new(config.limits.max_stored_responses)),
            chats: TenantLru::new(config.storage.max_stored_chats),
            conversations: Data::new(TenantLru::new(config.storage.max_conversations)),
            background: BackgroundResponses::new(config.storage.max_background),
        }
    }
}

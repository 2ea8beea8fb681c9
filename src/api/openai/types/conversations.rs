//! `/v1/conversations`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::response_items::InputItem;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"metadata": {"topic": "rivers"},
    "items": [{"type": "message", "role": "user", "content": "Name three rivers."}]}))]
pub struct ConversationRequest {
    /// Up to 16 texts.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Map<String, Value>>,
    /// Up to 20 initial items.
    #[schema(max_items = 20)]
    pub items: Option<Vec<InputItem>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"metadata": {"topic": "rivers"}}))]
pub struct MetadataRequest {
    /// Up to 16 texts, which replace the previous metadata.
    #[schema(value_type = Object)]
    pub metadata: Map<String, Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"items": [{"type": "message", "role": "user", "content": "Name three rivers."}]}))]
pub struct ItemsRequest {
    /// One to 20 items.
    #[schema(min_items = 1, max_items = 20)]
    pub items: Vec<InputItem>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ConversationObject {
    #[schema(example = "conv_6f1b0a9c4f5e4d0c8f3f5a3f0d1c2b4a")]
    pub id: String,
    #[schema(example = "conversation")]
    pub object: String,
    /// The time of creation [Unix seconds].
    pub created_at: u64,
    #[schema(value_type = Object)]
    pub metadata: Map<String, Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeletedConversation {
    pub id: String,
    #[schema(example = "conversation.deleted")]
    pub object: String,
    pub deleted: bool,
}

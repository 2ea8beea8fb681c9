//! The fields that say how a conversation goes through the model's chat template.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::tools::{ToolChoice, ToolDefinition};

/// How a conversation goes through the model's chat template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TemplateFields {
    /// Tools that the model may call.
    pub tools: Option<Vec<ToolDefinition>>,
    pub tool_choice: Option<ToolChoice>,
    /// Let the template open the assistant's turn.
    #[schema(default = true)]
    pub add_generation_prompt: Option<bool>,
    /// Continue the last message, which must be the assistant's, instead of answering it.
    pub continue_final_message: Option<bool>,
    /// An extension: a chat template in Jinja, in place of the model's own. It runs in the same sandbox. Only servers with
    /// `limits.request_templates` take it.
    pub chat_template: Option<String>,
    /// Further variables for the model's chat template.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
}

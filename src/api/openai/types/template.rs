//! Fields that control how the model's chat template renders a conversation.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::tools::{ToolChoice, ToolDefinition};

/// How the model's chat template renders a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TemplateFields {
    /// Tools that the model may call.
    pub tools: Option<Vec<ToolDefinition>>,
    pub tool_choice: Option<ToolChoice>,
    /// Let the template open the assistant's turn.
    #[schema(default = true)]
    pub add_generation_prompt: Option<bool>,
    /// Continue the last message, which must be the assistant's, and do not answer it.
    pub continue_final_message: Option<bool>,
    /// An extension: a Jinja chat template that replaces the model's own. It runs in the same sandbox. Only servers with
    /// `limits.request_templates` accept it.
    pub chat_template: Option<String>,
    /// Additional variables for the model's chat template.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
}

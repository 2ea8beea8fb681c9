//! The requests of `/v1/messages` and `/v1/messages/count_tokens`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::blocks::{CacheControl, InputMessage};
use super::tools::{MessagesTool, MessagesToolChoice};

/// A request to answer. Unknown fields are left out and named, or refused if they look like a mistake. A null field counts as absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"model": "smollm2:135m", "max_tokens": 40, "messages": [{"role": "user", "content": "Name three rivers."}]}))]
pub struct MessagesRequest {
    #[serde(flatten)]
    pub prompt: MessagesPrompt,
    /// The largest number of tokens to generate.
    #[schema(minimum = 1)]
    pub max_tokens: u32,
    /// 0 means greedy sampling. If absent, the model's own value.
    #[schema(minimum = 0, maximum = 1)]
    pub temperature: Option<f64>,
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f64>,
    /// 0 and -1 switch this off.
    #[schema(minimum = -1)]
    pub top_k: Option<i64>,
    /// Texts that end the answer. They are not included in it.
    pub stop_sequences: Option<Vec<String>>,
    pub stream: Option<bool>,
    pub metadata: Option<MessagesMetadata>,
    /// Both values mean the same, because there is one tier.
    pub service_tier: Option<ServiceTier>,
}

/// The prompt of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"model": "smollm2:135m", "messages": [{"role": "user", "content": "Name three rivers."}]}))]
pub struct MessagesPrompt {
    pub model: String,
    /// The conversation. If the last message is the assistant's, the answer continues it.
    #[schema(min_items = 1)]
    pub messages: Vec<InputMessage>,
    pub system: Option<SystemContent>,
    #[schema(max_items = 512)]
    pub tools: Option<Vec<MessagesTool>>,
    pub tool_choice: Option<MessagesToolChoice>,
    pub thinking: Option<MessagesThinking>,
    pub output_config: Option<OutputConfig>,
    pub cache_control: Option<CacheControl>,
    pub context_management: Option<ContextManagement>,
}

/// The edits that leave out parts of a long conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ContextManagement {
    pub edits: Option<Vec<ContextEdit>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type")]
pub enum ContextEdit {
    /// Keep reasoning in the last turns only.
    #[serde(rename = "clear_thinking_20251015")]
    ClearThinking {
        /// `all`, or a number of turns. If absent, one.
        keep: Option<KeptTurns>,
    },
    /// Once the trigger is exceeded, keep the results of the last tool uses only.
    #[serde(rename = "clear_tool_uses_20250919")]
    ClearToolUses {
        /// If absent, 100,000 input tokens.
        trigger: Option<Measure>,
        /// If absent, three uses.
        keep: Option<Measure>,
        clear_at_least: Option<Measure>,
        /// Whether arguments are cleared as well, or the tools whose arguments are.
        clear_tool_inputs: Option<ClearedInputs>,
        exclude_tools: Option<Vec<String>>,
    },
    /// Accepted unless the prompt exceeds the trigger.
    #[serde(rename = "compact_20260112")]
    Compact {
        /// If absent, 150,000 input tokens.
        trigger: Option<Measure>,
        instructions: Option<String>,
        pause_after_compaction: Option<bool>,
    },
}

/// `all`, or an object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = MessagesKeptTurns)]
#[serde(untagged)]
pub enum KeptTurns {
    All(String),
    Counted(CountedTurns),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = MessagesCountedTurns)]
pub struct CountedTurns {
    #[serde(rename = "type")]
    #[schema(pattern = "^(all|thinking_turns)$", example = "thinking_turns")]
    pub kind: String,
    #[schema(minimum = 1)]
    pub value: Option<u32>,
}

/// All arguments, or those of the named tools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = MessagesClearedInputs)]
#[serde(untagged)]
pub enum ClearedInputs {
    All(bool),
    Of(Vec<String>),
}

/// A number and its unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = MessagesMeasure)]
#[serde(tag = "type", content = "value", rename_all = "snake_case")]
pub enum Measure {
    InputTokens(u32),
    ToolUses(u32),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum SystemContent {
    Text(String),
    Blocks(Vec<SystemBlock>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SystemBlock {
    Text {
        text: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<CacheControl>,
    },
}

/// Whether the model reasons before it answers. If absent, as with `disabled`, unless the model's configuration on the server says
/// otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum MessagesThinking {
    Enabled {
        /// The most reasoning tokens, less than `max_tokens` unless `anthropic-beta` names `interleaved-thinking`.
        #[schema(minimum = 1024)]
        budget_tokens: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        display: Option<ThinkingDisplay>,
    },
    Adaptive {
        #[serde(skip_serializing_if = "Option::is_none")]
        display: Option<ThinkingDisplay>,
    },
    /// Read as `adaptive`.
    BetweenTools,
    Disabled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ThinkingDisplay {
    /// The reasoning is returned in full.
    Summarized,
    /// The reasoning is returned in full as well.
    Updates,
    /// The reasoning is returned in the block's signature only.
    Omitted,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OutputConfig {
    /// The level of reasoning. A chat template with levels gets the nearest one that it knows. Templates without levels have only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<MessagesEffort>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<OutputFormat>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MessagesEffort {
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

/// The required format of the answer's text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputFormat {
    JsonSchema {
        #[schema(value_type = Object)]
        schema: Map<String, Value>,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MessagesMetadata {
    /// The user. Users do not share the prefix cache. A session within the id does not count.
    pub user_id: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ServiceTier {
    Auto,
    StandardOnly,
}

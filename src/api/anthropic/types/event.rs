//! The events of a streamed answer. The `event:` line of each has its type.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::answer::{AnswerBlock, MessagesAnswer, MessagesUsage};

/// An event. The order is `message_start`, then `content_block_start`, deltas and `content_block_stop` for each block, then `message_delta`
/// and `message_stop`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum MessagesEvent {
    MessageStart { message: MessagesAnswer },
    ContentBlockStart { index: usize, content_block: AnswerBlock },
    ContentBlockDelta { index: usize, delta: BlockDelta },
    ContentBlockStop { index: usize },
    MessageDelta { delta: StopDelta, usage: MessagesUsage },
    MessageStop,
    Ping,
}

impl MessagesEvent {
    /// The name in the `event:` line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
            Self::Ping => "ping",
        }
    }
}

/// An addition to a block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(clippy::enum_variant_names, reason = "the names on the wire")]
pub enum BlockDelta {
    TextDelta {
        text: String,
    },
    ThinkingDelta {
        thinking: String,
    },
    /// The signature of a thinking block, just before the block stops.
    SignatureDelta {
        signature: String,
    },
    /// A part of a call's input. The parts concatenate to a JSON object.
    InputJsonDelta {
        partial_json: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StopDelta {
    #[schema(example = "end_turn")]
    pub stop_reason: String,
    #[schema(required = true)]
    pub stop_sequence: Option<String>,
}

//! OpenAI's names for what errors below `api` are about.

use crate::http::subject::FieldNames;

pub const CHAT: FieldNames = FieldNames {
    model: "model",
    prompt: "messages",
    suffix: "suffix",
    tools: "tools",
    tool_parameters: |index| format!("tools[{index}].function.parameters"),
    format: "response_format",
    effort: "reasoning_effort",
    stop_tokens: "stop_token_ids",
    logit_bias: "logit_bias",
};

pub const COMPLETIONS: FieldNames = FieldNames { prompt: "prompt", ..CHAT };

pub const RESPONSES: FieldNames = FieldNames {
    prompt: "input",
    tool_parameters: |index| format!("tools[{index}].parameters"),
    format: "text",
    effort: "reasoning",
    ..CHAT
};

pub const EMBEDDINGS: FieldNames = FieldNames { prompt: "input", ..CHAT };

pub const DETOKENIZE: FieldNames = FieldNames { prompt: "tokens", ..CHAT };

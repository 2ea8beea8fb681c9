//! Ollama's field names for the subjects of errors from below `api`.

use http::subject::FieldNames;

pub const CHAT: FieldNames = FieldNames {
    model: "model",
    prompt: "messages",
    suffix: "suffix",
    tools: "tools",
    tool_parameters: |index| format!("tools[{index}].function.parameters"),
    tool_input: |index| format!("tools[{index}]"),
    format: "format",
    effort: "think",
    stop_tokens: "options.stop",
    logit_bias: "options",
};

pub const GENERATE: FieldNames = FieldNames { prompt: "prompt", ..CHAT };

pub const EMBED: FieldNames = FieldNames { prompt: "input", ..CHAT };

pub const EMBEDDINGS: FieldNames = FieldNames { prompt: "prompt", ..CHAT };

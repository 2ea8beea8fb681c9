//! Anthropic's field names for the subjects of errors from below `api`.

use http::subject::FieldNames;

pub const MESSAGES: FieldNames = FieldNames {
    model: "model",
    prompt: "messages",
    suffix: "messages",
    tools: "tools",
    tool_parameters: |index| format!("tools[{index}].input_schema"),
    tool_input: |index| format!("tools[{index}]"),
    format: "output_config.format",
    effort: "output_config.effort",
    stop_tokens: "stop_sequences",
    logit_bias: "messages",
};

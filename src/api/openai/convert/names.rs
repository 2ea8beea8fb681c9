//! OpenAI's field names for the subjects of errors from below `api`.

use http::subject::FieldNames;

pub const CHAT: FieldNames = FieldNames {
    model: "model",
    prompt: "messages",
    suffix: "suffix",
    tools: "tools",
    tool_parameters: |index| format!("tools[{index}].function.parameters"),
    tool_input: |index| format!("tools[{index}].custom.format.grammar.definition"),
    format: "response_format",
    effort: "reasoning_effort",
    stop_tokens: "stop_token_ids",
    logit_bias: "logit_bias",
};

/// The names in a chat with `functions`.
pub const FUNCTIONS: FieldNames =
    FieldNames { tools: "functions", tool_parameters: |index| format!("functions[{index}].parameters"), ..CHAT };

pub const RERANK: FieldNames = FieldNames { prompt: "documents", ..CHAT };

pub const SCORE: FieldNames = FieldNames { prompt: "text_2", ..CHAT };

pub const COMPLETIONS: FieldNames = FieldNames { prompt: "prompt", ..CHAT };

pub const RESPONSES: FieldNames = FieldNames {
    prompt: "input",
    tool_parameters: |index| format!("tools[{index}].parameters"),
    tool_input: |index| format!("tools[{index}].format.definition"),
    format: "text",
    effort: "reasoning",
    ..CHAT
};

pub const EMBEDDINGS: FieldNames = FieldNames { prompt: "input", ..CHAT };

pub const INFILL: FieldNames = FieldNames { prompt: "input_prefix", suffix: "input_suffix", ..CHAT };

pub const DETOKENIZE: FieldNames = FieldNames { prompt: "tokens", ..CHAT };

#[cfg(test)]
mod tests {
    use super::*;
    use chat::{RenderError, RuleError, Subject};
    use grammar::GrammarError;
    use http::error::{ApiError, Kind};
    use serving::{ContextLimit, Failure, RequestError};

    #[test]
    fn an_error_names_the_dialect_s_field() {
        let rules = |error| RequestError::Rules(RuleError { subject: Subject::ToolParameters(1), error });
        let of = |error: RequestError| {
            let ApiError { kind, message, param, .. } = CHAT.request_error(&error);
            (kind, param.unwrap_or_default(), message)
        };
        let (kind, param, message) = of(rules(GrammarError::Invalid("no".into())));
        assert_eq!((kind, param.as_str(), message.as_str()), (Kind::InvalidValue, "tools", "`tools[1].function.parameters`: no"));
        assert_eq!(of(rules(GrammarError::Busy)).0, Kind::QueueFull);
        let (kind, param, message) = of(RequestError::Vocabulary { subject: Subject::StopTokens, id: 10, vocab_size: 10 });
        assert_eq!((kind, param.as_str()), (Kind::InvalidValue, "stop_token_ids"));
        assert!(message.starts_with("`stop_token_ids`: there is no token 10"), "{message}");
        let (kind, param, message) = of(RequestError::TooLong { most: 8, room: ContextLimit { context: 2, most: 2, by_name: false } });
        assert!(kind == Kind::ContextLength && param == "messages" && message.starts_with("context_length_exceeded: "), "{message}");
        assert_eq!(of(RequestError::Render(RenderError::NoEffort)).1, "reasoning_effort");
    }

    #[test]
    fn a_failure_tells_the_request_from_the_engine() {
        let kind = |failure: Failure| CHAT.failure(&failure).kind;
        assert_eq!(kind(Failure::Request("x".into())), Kind::GenerationFailed);
        assert_eq!(kind(Failure::Engine("x".into())), Kind::EngineStopped);
        let error = CHAT.failure(&Failure::Rules { subject: Subject::Format, message: "a dead end".into() });
        assert_eq!((error.param.as_deref(), error.message.as_str()), (Some("response_format"), "`response_format`: a dead end"));
    }
}

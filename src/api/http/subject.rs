//! The names of a request's fields, by which an error tells what it is about.

use super::error::{ApiError, Kind};
use chat::RenderError;
use chat::Subject;
use serving::{Failure, RequestError};

/// A dialect's names for what errors below `api` are about.
#[derive(Clone, Copy, Debug)]
pub struct FieldNames {
    pub model: &'static str,
    pub prompt: &'static str,
    pub suffix: &'static str,
    pub tools: &'static str,
    /// The path of the schema of a tool's arguments.
    pub tool_parameters: fn(usize) -> String,
    /// The path of the grammar of a tool's text.
    pub tool_input: fn(usize) -> String,
    pub format: &'static str,
    pub effort: &'static str,
    pub stop_tokens: &'static str,
    pub logit_bias: &'static str,
}

impl FieldNames {
    /// The field that an error names.
    fn field(&self, subject: Subject) -> &'static str {
        match subject {
            Subject::Model => self.model,
            Subject::Prompt => self.prompt,
            Subject::Suffix => self.suffix,
            Subject::Tools | Subject::ToolParameters(_) | Subject::ToolInput(_) => self.tools,
            Subject::Format => self.format,
            Subject::Effort => self.effort,
            Subject::StopTokens => self.stop_tokens,
            Subject::Template => "chat_template",
            Subject::LogitBias => self.logit_bias,
            Subject::AllowedIds => "allowed_token_ids",
        }
    }

    /// Where in the request the subject is.
    fn path(&self, subject: Subject) -> String {
        match subject {
            Subject::ToolParameters(index) => (self.tool_parameters)(index),
            Subject::ToolInput(index) => (self.tool_input)(index),
            other => self.field(other).to_owned(),
        }
    }

    /// The error of a request that the model refuses.
    pub fn request_error(&self, error: &RequestError) -> ApiError {
        let subject = error.subject();
        // The other messages say by themselves what they are about.
        let at_field = matches!(
            error,
            RequestError::Vocabulary { .. }
                | RequestError::Template(_)
                | RequestError::Rules(_)
                | RequestError::Render(RenderError::NoEffort)
        );
        let message = if at_field { format!("`{}`: {error}", self.path(subject)) } else { error.to_string() };
        if error.is_too_long() {
            let too_long = ApiError::new(Kind::ContextLength, format!("context_length_exceeded: {message}"));
            return ApiError { overflow: error.overflow(), ..too_long.with_param(self.field(subject)) };
        }
        if error.is_busy() {
            return ApiError::new(Kind::QueueFull, message);
        }
        ApiError::field(self.field(subject), message)
    }

    /// The error of a request that failed while it ran.
    pub fn failure(&self, failure: &Failure) -> ApiError {
        match failure {
            Failure::Request(message) => ApiError::new(Kind::GenerationFailed, message),
            Failure::Engine(message) => ApiError::new(Kind::EngineStopped, message),
            Failure::Rules { subject, message } => ApiError::field(self.field(*subject), format!("`{}`: {message}", self.path(*subject))),
        }
    }
}

//! Maps the subject of an error to the name of a request's field in the dialect.

use super::error::{ApiError, Kind};
use chat::{RenderError, Subject};
use serving::pictures::PictureError;
use serving::{Failure, RequestError};

/// A dialect's names for the subjects of errors from below `api`.
#[derive(Clone, Copy, Debug)]
pub struct FieldNames {
    pub model: &'static str,
    pub prompt: &'static str,
    pub suffix: &'static str,
    pub tools: &'static str,
    /// Returns the path of the schema of a tool's arguments.
    pub tool_parameters: fn(usize) -> String,
    /// Returns the path of the grammar of a tool's text.
    pub tool_input: fn(usize) -> String,
    pub format: &'static str,
    pub effort: &'static str,
    pub stop_tokens: &'static str,
    pub logit_bias: &'static str,
}

impl FieldNames {
    /// Returns the field that an error names.
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
            Subject::Truncation => "truncate_prompt_tokens",
        }
    }

    /// Returns the path of the subject in the request.
    fn path(&self, subject: Subject) -> String {
        match subject {
            Subject::ToolParameters(index) => (self.tool_parameters)(index),
            Subject::ToolInput(index) => (self.tool_input)(index),
            other => self.field(other).to_owned(),
        }
    }

    /// Converts the error of an invalid request.
    pub fn request_error(&self, error: &RequestError) -> ApiError {
        let subject = error.subject();
        // The other messages name their subject themselves.
        let at_field = matches!(
            error,
            RequestError::Vocabulary { .. }
                | RequestError::Truncation { .. }
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
        if let RequestError::Picture { field, error } = error {
            return ApiError::new(picture_kind(error), message).with_param(&**field);
        }
        ApiError::field(self.field(subject), message)
    }

    /// Converts the error of a request that failed while it ran.
    pub fn failure(&self, failure: &Failure) -> ApiError {
        match failure {
            Failure::Request(message) => ApiError::new(Kind::GenerationFailed, message),
            Failure::Engine(message) => ApiError::new(Kind::EngineStopped, message),
            Failure::Rules { subject, message } => ApiError::field(self.field(*subject), format!("`{}`: {message}", self.path(*subject))),
        }
    }
}

fn picture_kind(error: &PictureError) -> Kind {
    match error {
        PictureError::NoEncoder(_) | PictureError::OnlyText => Kind::Unsupported,
        PictureError::Stopped => Kind::EngineStopped,
        PictureError::Encoder(_) => Kind::GenerationFailed,
        error if error.is_too_large() => Kind::TooLarge,
        _ => Kind::InvalidValue,
    }
}

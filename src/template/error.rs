//! [`TemplateError`]: why a template is invalid or fails to render.

#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The template called `raise_exception` with this text.
    #[error("{0}")]
    Raised(String),
    /// The template is malformed, or a render failed or exceeded a limit.
    #[error("chat template: {0}")]
    Invalid(String),
}

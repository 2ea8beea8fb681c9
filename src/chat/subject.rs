//! What an error is about.

/// What part of a request an error below `api` is about. Each API dialect maps it to the name of its own field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    Model,
    /// What the model is to continue or to embed: messages, text or token ids.
    Prompt,
    /// The text behind the one that is to be filled in.
    Suffix,
    Tools,
    /// The schema of the arguments of the tool with this index.
    ToolParameters(usize),
    /// The grammar of the text that the tool with this index takes.
    ToolInput(usize),
    /// The form that the answer must have.
    Format,
    /// How much to reason.
    Effort,
    StopTokens,
    LogitBias,
    /// The request's own chat template.
    Template,
    /// The ids that an answer may consist of.
    AllowedIds,
}

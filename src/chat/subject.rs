//! [`Subject`]: the part of a request that an error is about.

/// The part of a request that an error below `api` is about. Each API dialect maps it to the name of its own field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    Model,
    /// The input that the model continues or embeds: messages, text or token ids.
    Prompt,
    /// The text after the gap that the model fills in.
    Suffix,
    Tools,
    /// The schema of the arguments of the tool with this index.
    ToolParameters(usize),
    /// The grammar of the text that the tool with this index takes.
    ToolInput(usize),
    /// The form that the answer must have.
    Format,
    /// The level of reasoning.
    Effort,
    StopTokens,
    LogitBias,
    /// The request's own chat template.
    Template,
    /// The ids that an answer may consist of.
    AllowedIds,
    /// The length to which a long prompt is cut.
    Truncation,
}

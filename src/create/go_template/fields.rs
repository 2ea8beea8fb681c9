//! The values that Ollama gives a template: their fields, and what they are called in the chat templates of this server.

/// The kind of a value, which decides the fields that it has and how it is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The values at the top.
    Root,
    Text,
    Number,
    Flag,
    Messages,
    Message,
    Calls,
    Call,
    CalledFunction,
    Tools,
    Tool,
    Function,
    /// A JSON Schema, or a part of one.
    Schema,
    /// The properties of a schema by name.
    Properties,
    /// A list of texts.
    Texts,
    /// A JSON value without known fields.
    Json,
    /// A value of more than one kind: printed as it is.
    Any,
}

/// How a template is rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Once, over all messages.
    Messages,
    /// Once per exchange.
    Exchanges,
}

/// The name of the namespace with the translation's own variables.
pub const OWN: &str = "go";
const EMPTY: &str = "''";

/// A value at the top of the data: its expression in Jinja and its kind. `None`: there is no such value.
pub fn of_root(name: &str, form: Form) -> Option<(String, Kind)> {
    let in_exchange = |name: &str| if form == Form::Exchanges { format!("{OWN}.{name}") } else { EMPTY.to_owned() };
    Some(match name {
        "Messages" => ("messages".to_owned(), Kind::Messages),
        "System" => (format!("{OWN}.system"), Kind::Text),
        "Prompt" => (in_exchange("prompt"), Kind::Text),
        "Response" => (in_exchange("response"), Kind::Text),
        // The text after a gap comes without a chat template here.
        "Suffix" => (EMPTY.to_owned(), Kind::Text),
        "Tools" => ("(tools or [])".to_owned(), Kind::Tools),
        "Think" => ("(enable_thinking is defined and enable_thinking)".to_owned(), Kind::Flag),
        "IsThinkSet" => ("(enable_thinking is defined)".to_owned(), Kind::Flag),
        "ThinkLevel" => ("(reasoning_effort | default(''))".to_owned(), Kind::Text),
        _ => return None,
    })
}

/// A field of a value: the expression in Jinja and the field's kind. `None`: a value of this kind has no such field.
pub fn of_value(value: &str, kind: Kind, name: &str) -> Option<(String, Kind)> {
    let plain = |key: &str| format!("{value}.{key}");
    let or = |key: &str, empty: &str| format!("({value}.{key} or {empty})");
    // A subscript, since `items` is also a method.
    let at = |key: &str| format!("{value}['{key}']");
    Some(match (kind, name) {
        (Kind::Message, "Role") => (plain("role"), Kind::Text),
        (Kind::Message, "Content") => (or("content", EMPTY), Kind::Text),
        (Kind::Message, "Thinking") => (or("reasoning_content", EMPTY), Kind::Text),
        (Kind::Message, "ToolName") => (or("name", EMPTY), Kind::Text),
        (Kind::Message, "ToolCallID") => (or("tool_call_id", EMPTY), Kind::Text),
        (Kind::Message, "ToolCalls") => (or("tool_calls", "[]"), Kind::Calls),
        // No model sees images here, so that no message has any.
        (Kind::Message, "Images") => ("[]".to_owned(), Kind::Texts),
        (Kind::Call, "ID") => (or("id", EMPTY), Kind::Text),
        (Kind::Call, "Function") => (plain("function"), Kind::CalledFunction),
        (Kind::CalledFunction, "Name") | (Kind::Function, "Name") => (plain("name"), Kind::Text),
        (Kind::CalledFunction, "Arguments") => (plain("arguments"), Kind::Json),
        (Kind::Tool, "Type") => (plain("type"), Kind::Text),
        (Kind::Tool, "Function") => (plain("function"), Kind::Function),
        (Kind::Function, "Description") => (or("description", EMPTY), Kind::Text),
        (Kind::Function, "Parameters") => (plain("parameters"), Kind::Schema),
        (Kind::Schema, "Type") => (at("type"), Kind::Text),
        (Kind::Schema, "Description") => (at("description"), Kind::Text),
        (Kind::Schema, "Properties") => (format!("({} or {{}})", at("properties")), Kind::Properties),
        (Kind::Schema, "Required") => (format!("({} or [])", at("required")), Kind::Texts),
        (Kind::Schema, "Enum") => (format!("({} or [])", at("enum")), Kind::Texts),
        (Kind::Schema, "Items") => (at("items"), Kind::Json),
        _ => return None,
    })
}

/// The kind of a list's items. `None`: a value of this kind is no list.
pub fn item(kind: Kind) -> Option<Kind> {
    Some(match kind {
        Kind::Messages => Kind::Message,
        Kind::Calls => Kind::Call,
        Kind::Tools => Kind::Tool,
        Kind::Properties => Kind::Schema,
        Kind::Texts => Kind::Text,
        _ => return None,
    })
}

/// The names of the fields of a kind, for errors.
pub fn names(kind: Kind) -> &'static str {
    match kind {
        Kind::Root => "Messages, System, Prompt, Response, Suffix, Tools, Think, ThinkLevel and IsThinkSet",
        Kind::Message => "Role, Content, Thinking, ToolCalls, ToolName, ToolCallID and Images",
        Kind::Call => "ID and Function",
        Kind::CalledFunction => "Name and Arguments",
        Kind::Tool => "Type and Function",
        Kind::Function => "Name, Description and Parameters",
        Kind::Schema => "Type, Description, Properties, Required, Enum and Items",
        _ => "none",
    }
}

/// How an expression prints: as text, or as JSON where Go would print a value's JSON. `None`: Go would print its own notation.
pub fn printed(value: &str, kind: Kind) -> Option<String> {
    match kind {
        Kind::Text | Kind::Number | Kind::Any => Some(value.to_owned()),
        Kind::Flag => Some(format!("('true' if {value} else 'false')")),
        Kind::Root | Kind::Messages | Kind::Message | Kind::Texts => None,
        _ => Some(json(value)),
    }
}

/// JSON without spaces, as Go writes it.
pub fn json(value: &str) -> String {
    format!("({value} | tojson(separators=(',', ':')))")
}

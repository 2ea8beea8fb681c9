//! The items of a conversation at `/v1/responses`: input items and output items.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::chat::Role;
use super::logprobs::ChatToken;

/// A message, a model's call, the result of a call, or a model's reasoning. Output items are valid input items.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum InputItem {
    Message(InputMessage),
    Call(InputCall),
    Result(CallResult),
    CustomCall(InputCustomCall),
    CustomResult(CustomCallResult),
    Reasoning(InputReasoning),
    Reference(ItemReference),
}

/// A reference to an item of a stored response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ItemReference {
    #[serde(rename = "type")]
    #[schema(pattern = "^item_reference$", example = "item_reference")]
    pub kind: String,
    pub id: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InputMessage {
    /// `message` or absent.
    #[serde(rename = "type")]
    #[schema(pattern = "^message$")]
    pub kind: Option<String>,
    pub role: Role,
    pub content: InputContent,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum InputContent {
    Text(String),
    Parts(Vec<InputPart>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InputPart {
    /// `input_text`, `output_text` or `input_image`
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// A picture for a model with the capability `vision`: a `data:` URL, or an address if `server.picture_hosts` has the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_url: Option<String>,
    /// `auto`, `low`, `high` or `original`. Has no effect: pictures are read in the size that the model was trained with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InputCall {
    #[serde(rename = "type")]
    #[schema(pattern = "^function_call$", example = "function_call")]
    pub kind: String,
    pub call_id: String,
    /// The namespace of the tool, if it is in one.
    pub namespace: Option<String>,
    pub name: String,
    /// A JSON object as text.
    pub arguments: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CallResult {
    #[serde(rename = "type")]
    #[schema(pattern = "^function_call_output$", example = "function_call_output")]
    pub kind: String,
    pub call_id: String,
    pub output: InputContent,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InputCustomCall {
    #[serde(rename = "type")]
    #[schema(pattern = "^custom_tool_call$", example = "custom_tool_call")]
    pub kind: String,
    pub call_id: String,
    /// The namespace of the tool, if it is in one.
    pub namespace: Option<String>,
    pub name: String,
    pub input: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CustomCallResult {
    #[serde(rename = "type")]
    #[schema(pattern = "^custom_tool_call_output$", example = "custom_tool_call_output")]
    pub kind: String,
    pub call_id: String,
    pub output: InputContent,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InputReasoning {
    #[serde(rename = "type")]
    #[schema(pattern = "^reasoning$", example = "reasoning")]
    pub kind: String,
    pub content: Option<Vec<ReasoningText>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputItem {
    Message(OutputMessage),
    FunctionCall(OutputCall),
    CustomToolCall(OutputCustomCall),
    Reasoning(OutputReasoning),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OutputMessage {
    #[schema(example = "msg_6f1b0a9c4f5e4d0c8f3f5a3f0d1c2b4a")]
    pub id: String,
    /// `in_progress`, `completed` or `incomplete`
    pub status: String,
    #[schema(example = "assistant")]
    pub role: String,
    pub content: Vec<OutputText>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OutputText {
    #[serde(rename = "type")]
    #[schema(example = "output_text")]
    pub kind: String,
    pub text: String,
    /// Always empty.
    #[schema(value_type = Vec<Object>)]
    pub annotations: Vec<Value>,
    /// Empty unless the request asks for log-probabilities.
    pub logprobs: Vec<ChatToken>,
}

/// A call of a function. The client makes the call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OutputCall {
    #[schema(example = "fc_6f1b0a9c4f5e4d0c8f3f5a3f0d1c2b4a")]
    pub id: String,
    /// `in_progress`, `completed` or `incomplete`
    pub status: String,
    /// The id of the call. The client sends the call's result with it.
    #[schema(example = "call_9f2c1e0d4b5a46c7a8b9c0d1e2f3a4b5")]
    pub call_id: String,
    /// The namespace of the tool, if it is in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
    /// A JSON object as text.
    pub arguments: String,
}

/// A call of a tool that takes a text. The client makes the call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OutputCustomCall {
    #[schema(example = "ctc_6f1b0a9c4f5e4d0c8f3f5a3f0d1c2b4a")]
    pub id: String,
    /// `in_progress`, `completed` or `incomplete`
    pub status: String,
    /// The id of the call. The client sends the call's result with it.
    #[schema(example = "call_9f2c1e0d4b5a46c7a8b9c0d1e2f3a4b5")]
    pub call_id: String,
    /// The namespace of the tool, if it is in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
    pub input: String,
}

/// The model's reasoning before the answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OutputReasoning {
    #[schema(example = "rs_6f1b0a9c4f5e4d0c8f3f5a3f0d1c2b4a")]
    pub id: String,
    /// `in_progress`, `completed` or `incomplete`
    pub status: String,
    /// Always empty.
    #[schema(value_type = Vec<Object>)]
    pub summary: Vec<Value>,
    pub content: Vec<ReasoningText>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReasoningText {
    #[serde(rename = "type")]
    #[schema(pattern = "^reasoning_text$", example = "reasoning_text")]
    pub kind: String,
    pub text: String,
}

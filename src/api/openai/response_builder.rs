//! Builds a response: its items, and the events that report them.

use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::convert::listed_tools::{self, ToolAddress};
use super::convert::tool_shape::joined;
use super::input_text::{InputText, arguments_of};
use super::types::logprobs::{ChatLogprobs, TokenNames};
use super::types::response_items::{OutputCall, OutputCustomCall, OutputItem, OutputMessage, OutputReasoning, OutputText, ReasoningText};
use super::types::responses::{IncompleteDetails, ResponseError, ResponseObject, ResponseUsage, Settings};
use super::types::usage::Usage;
use chat::{Call, Message, Piece, Role};
use http::response_head::ResponseHead;
use serving::EndReason;

/// An event: its type and its fields.
pub type Event = (&'static str, Value);

pub struct ResponseBuilder {
    pub head: ResponseHead,
    pub settings: Settings,
    pub has_logprobs: bool,
    /// The status, `in_progress` until the response has ended.
    pub status: &'static str,
    pub error: Option<ResponseError>,
    pub usage: Option<Usage>,
    items: Vec<OutputItem>,
    /// Whether the last item is still being written.
    open: bool,
    /// Extracts the text of the last item, if that is a custom tool's call.
    input: InputText,
}

pub fn value(of: &impl Serialize) -> Value {
    // Serialising our own types cannot fail, because all keys of their maps are strings.
    serde_json::to_value(of).expect("an event is JSON")
}

fn id(prefix: &str) -> String {
    format!("{prefix}_{}", Uuid::new_v4().simple())
}

fn output_text(text: String) -> OutputText {
    OutputText { kind: "output_text".into(), text, annotations: Vec::new(), logprobs: Vec::new() }
}

fn reasoning_text(text: String) -> ReasoningText {
    ReasoningText { kind: "reasoning_text".into(), text }
}

impl OutputItem {
    fn message() -> Self {
        Self::Message(OutputMessage { id: id("msg"), status: "in_progress".into(), role: "assistant".into(), content: Vec::new() })
    }

    fn reasoning() -> Self {
        Self::Reasoning(OutputReasoning { id: id("rs"), status: "in_progress".into(), summary: Vec::new(), content: Vec::new() })
    }

    fn call(ToolAddress { namespace, name, .. }: ToolAddress) -> Self {
        let (id, call_id, status) = (id("fc"), id("call"), "in_progress".into());
        Self::FunctionCall(OutputCall { id, status, call_id, namespace, name, arguments: String::new() })
    }

    fn custom_call(ToolAddress { namespace, name, .. }: ToolAddress) -> Self {
        let (id, call_id, status) = (id("ctc"), id("call"), "in_progress".into());
        Self::CustomToolCall(OutputCustomCall { id, status, call_id, namespace, name, input: String::new() })
    }

    fn id(&self) -> &str {
        match self {
            Self::Message(item) => &item.id,
            Self::CustomToolCall(item) => &item.id,
            Self::FunctionCall(item) => &item.id,
            Self::Reasoning(item) => &item.id,
        }
    }

    fn set_status(&mut self, status: &str) {
        let place = match self {
            Self::Message(item) => &mut item.status,
            Self::FunctionCall(item) => &mut item.status,
            Self::CustomToolCall(item) => &mut item.status,
            Self::Reasoning(item) => &mut item.status,
        };
        *place = status.into();
    }

    /// Adds an empty part to an item that has parts, and returns the part.
    fn add_part(&mut self) -> Option<Value> {
        match self {
            Self::Message(item) => {
                item.content.push(output_text(String::new()));
                item.content.last().map(value)
            }
            Self::Reasoning(item) => {
                item.content.push(reasoning_text(String::new()));
                item.content.last().map(value)
            }
            Self::FunctionCall(_) | Self::CustomToolCall(_) => None,
        }
    }
}

impl ResponseBuilder {
    pub fn new(head: ResponseHead, settings: Settings, has_logprobs: bool) -> Self {
        let head = ResponseHead { id: head.id.replacen('-', "_", 1), ..head };
        let (items, input) = (Vec::new(), InputText::default());
        Self { head, settings, has_logprobs, status: "in_progress", error: None, usage: None, items, open: false, input }
    }

    /// Ends the answer. Returns the events that report it.
    pub fn finish(&mut self, reason: EndReason) -> Vec<Event> {
        let mut events = if self.items.is_empty() { self.begin(OutputItem::message()) } else { Vec::new() };
        self.status = if reason == EndReason::Length { "incomplete" } else { "completed" };
        events.extend(self.end(self.status));
        events
    }

    /// Adds a piece of the answer. Returns the events that report it.
    pub fn add(&mut self, piece: Piece) -> Vec<Event> {
        match piece {
            Piece::Prompt(_) => Vec::new(),
            Piece::Text(piece) => {
                let mut events = match self.last_open() {
                    Some(OutputItem::Message(_)) => Vec::new(),
                    _ => self.begin(OutputItem::message()),
                };
                let logprobs = if self.has_logprobs { ChatLogprobs::new(piece.tokens, TokenNames::Texts).content } else { Vec::new() };
                let delta = json!({"delta": piece.text, "logprobs": logprobs});
                if let Some(OutputItem::Message(item)) = self.items.last_mut() {
                    item.content[0].text.push_str(&piece.text);
                    item.content[0].logprobs.extend(logprobs);
                }
                events.push(("response.output_text.delta", self.of_part(delta)));
                events
            }
            Piece::Reasoning(text) => {
                let mut events = match self.last_open() {
                    Some(OutputItem::Reasoning(_)) => Vec::new(),
                    _ => self.begin(OutputItem::reasoning()),
                };
                if let Some(OutputItem::Reasoning(item)) = self.items.last_mut() {
                    item.content[0].text.push_str(&text);
                }
                events.push(("response.reasoning_text.delta", self.of_part(json!({"delta": text}))));
                events
            }
            Piece::CallStart { name, .. } => {
                self.input = InputText::default();
                let address = listed_tools::address(&self.settings.tools, &name);
                self.begin(if address.takes_text { OutputItem::custom_call(address) } else { OutputItem::call(address) })
            }
            Piece::Arguments { text, .. } => self.add_arguments(&text),
        }
    }

    fn add_arguments(&mut self, text: &str) -> Vec<Event> {
        match self.items.last_mut() {
            Some(OutputItem::FunctionCall(item)) => {
                item.arguments.push_str(text);
                vec![("response.function_call_arguments.delta", self.of_item(json!({"delta": text})))]
            }
            Some(OutputItem::CustomToolCall(item)) => {
                let text = self.input.push(text);
                item.input.push_str(&text);
                let delta = (!text.is_empty()).then(|| self.of_item(json!({"delta": text})));
                delta.map(|delta| ("response.custom_tool_call_input.delta", delta)).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    fn last_open(&self) -> Option<&OutputItem> {
        self.items.last().filter(|_| self.open)
    }

    /// Ends the last item and starts the next one.
    fn begin(&mut self, mut item: OutputItem) -> Vec<Event> {
        let mut events = self.end("completed");
        let added = json!({"output_index": self.items.len(), "item": item});
        let part = item.add_part();
        self.items.push(item);
        self.open = true;
        events.push(("response.output_item.added", added));
        events.extend(part.map(|part| ("response.content_part.added", self.of_part(json!({"part": part})))));
        events
    }

    /// Ends the last item, if it is open.
    fn end(&mut self, status: &str) -> Vec<Event> {
        let Some(item) = self.items.last_mut().filter(|_| self.open) else { return Vec::new() };
        item.set_status(status);
        self.open = false;
        let done = json!({"output_index": self.items.len() - 1, "item": self.items.last()});
        let mut events = match self.items.last() {
            Some(OutputItem::Message(OutputMessage { content, .. })) => vec![
                ("response.output_text.done", self.of_part(json!({"text": content[0].text, "logprobs": content[0].logprobs}))),
                ("response.content_part.done", self.of_part(json!({"part": content[0]}))),
            ],
            Some(OutputItem::Reasoning(OutputReasoning { content, .. })) => vec![
                ("response.reasoning_text.done", self.of_part(json!({"text": content[0].text}))),
                ("response.content_part.done", self.of_part(json!({"part": content[0]}))),
            ],
            Some(OutputItem::FunctionCall(OutputCall { name, arguments, .. })) => {
                vec![("response.function_call_arguments.done", self.of_item(json!({"name": name, "arguments": arguments})))]
            }
            Some(OutputItem::CustomToolCall(OutputCustomCall { input, .. })) => {
                vec![("response.custom_tool_call_input.done", self.of_item(json!({"input": input})))]
            }
            None => Vec::new(),
        };
        events.push(("response.output_item.done", done));
        events
    }

    /// Adds the fields by which an event refers to the last item.
    fn of_item(&self, mut fields: Value) -> Value {
        fields["item_id"] = self.items.last().map_or("", OutputItem::id).into();
        fields["output_index"] = self.items.len().saturating_sub(1).into();
        fields
    }

    /// Adds the fields by which an event refers to the last item's only part.
    fn of_part(&self, fields: Value) -> Value {
        let mut fields = self.of_item(fields);
        fields["content_index"] = 0.into();
        fields
    }

    /// Returns the current response object. It has an output once the response has ended.
    pub fn object(&self) -> ResponseObject {
        let cut = self.status == "incomplete";
        ResponseObject {
            id: self.head.id.clone(),
            object: "response".into(),
            created_at: self.head.created,
            status: self.status.into(),
            error: self.error.clone(),
            incomplete_details: cut.then(|| IncompleteDetails { reason: "max_output_tokens".into() }),
            model: self.head.model.clone(),
            output: if matches!(self.status, "completed" | "incomplete") { self.items.clone() } else { Vec::new() },
            usage: self.usage.map(ResponseUsage::from),
            settings: self.settings.clone(),
        }
    }

    /// Returns the answer as a message of the conversation.
    pub fn as_message(&self) -> Message {
        let (mut text, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
        for item in &self.items {
            match item {
                OutputItem::Message(item) => item.content.iter().for_each(|part| text.push_str(&part.text)),
                OutputItem::Reasoning(item) => item.content.iter().for_each(|part| reasoning.push_str(&part.text)),
                OutputItem::FunctionCall(OutputCall { call_id, namespace, name, arguments, .. }) => {
                    let name = joined(namespace.as_deref(), name);
                    calls.push(Call { id: call_id.clone(), name, arguments: arguments.clone() });
                }
                OutputItem::CustomToolCall(OutputCustomCall { call_id, namespace, name, input, .. }) => {
                    let name = joined(namespace.as_deref(), name);
                    calls.push(Call { id: call_id.clone(), name, arguments: arguments_of(input) });
                }
            }
        }
        let reasoning = Some(reasoning).filter(|text| !text.is_empty());
        Message { reasoning, calls, ..Message::of_text(Role::Assistant, text) }
    }
}

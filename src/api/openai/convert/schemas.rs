//! The field schemas of each body: the fields that its type documents, those that are refused by name, and those that are known without
//! documentation.

use std::sync::LazyLock;

use super::super::types::{batches, chat, completions, conversations, embeddings, rerank, responses, tokens};
use super::listed_tools::HOSTED;
use super::refuse::{self, BOTH};
use super::response_input::ELSEWHERE;
use http::field_schema::{FieldSchema, SilentField};

const CHAT: &str = "ChatRequest";
const COMPLETION: &str = "CompletionRequest";
const RESPONSE: &str = "ResponseRequest";
const EMBEDDING: &str = "EmbeddingRequest";
const MESSAGE: &str = "Message";

/// Fields that are known but not documented. Each has its reason: the field has no effect here, or something else reads or refuses it.
#[rustfmt::skip]
const SILENT: &[SilentField] = &[
    SilentField { schema: CHAT, field: "service_tier", reason: "there is one tier" },
    SilentField { schema: CHAT, field: "prompt_cache_key", reason: "the prefix cache finds prompts by their tokens" },
    SilentField { schema: CHAT, field: "prompt_cache_retention", reason: "the prefix cache keeps what it has room for" },
    SilentField { schema: CHAT, field: "prompt_cache_options", reason: "the prefix cache finds prompts by their tokens" },
    SilentField { schema: CHAT, field: "cache_prompt", reason: "llama.cpp's name of what engine.prefix_cache switches" },
    SilentField { schema: CHAT, field: "safety_identifier", reason: "honoured: the newer name of `user`" },
    SilentField { schema: CHAT, field: "prediction", reason: "a hint that may make an answer faster and never changes it" },
    SilentField { schema: CHAT, field: "guided_decoding_backend", reason: "there is one implementation of grammars" },
    SilentField { schema: CHAT, field: "request_id", reason: "the header x-request-id names a request" },
    SilentField { schema: COMPLETION, field: "service_tier", reason: "there is one tier" },
    SilentField { schema: COMPLETION, field: "prompt_cache_key", reason: "the prefix cache finds prompts by their tokens" },
    SilentField { schema: COMPLETION, field: "cache_prompt", reason: "llama.cpp's name of what engine.prefix_cache switches" },
    SilentField { schema: COMPLETION, field: "safety_identifier", reason: "honoured: the newer name of `user`" },
    SilentField { schema: COMPLETION, field: "guided_decoding_backend", reason: "there is one implementation of grammars" },
    SilentField { schema: COMPLETION, field: "request_id", reason: "the header x-request-id names a request" },
    SilentField { schema: RESPONSE, field: "prompt_cache_key", reason: "the prefix cache finds prompts by their tokens" },
    SilentField { schema: RESPONSE, field: "prompt_cache_retention", reason: "the prefix cache keeps what it has room for" },
    SilentField { schema: RESPONSE, field: "prompt_cache_options", reason: "the prefix cache finds prompts by their tokens" },
    SilentField { schema: RESPONSE, field: "safety_identifier", reason: "honoured: the newer name of `user`" },
    SilentField { schema: RESPONSE, field: "chat_template_kwargs", reason: "honoured, and not part of OpenAI's type" },
    SilentField { schema: RESPONSE, field: "client_metadata", reason: "what a client tells of itself changes no answer" },
    SilentField { schema: EMBEDDING, field: "service_tier", reason: "there is one tier" },
    SilentField { schema: EMBEDDING, field: "safety_identifier", reason: "honoured: the newer name of `user`" },
    // vLLM's older names for a format are honoured, and errors suggest `structured_outputs` in their place.
    SilentField { schema: "Sampling", field: "guided_json", reason: "honoured: the older name of structured_outputs.json" },
    SilentField { schema: "Sampling", field: "guided_regex", reason: "honoured: the older name of structured_outputs.regex" },
    SilentField { schema: "Sampling", field: "guided_choice", reason: "honoured: the older name of structured_outputs.choice" },
    SilentField { schema: "Sampling", field: "guided_grammar", reason: "honoured: the older name of structured_outputs.grammar" },
    SilentField { schema: "Sampling", field: "metadata", reason: "checked, and kept with what is stored" },
    SilentField { schema: "NamedTool", field: "name", reason: "honoured: the form of /v1/responses" },
    SilentField { schema: "NamedFunction", field: "description", reason: "the declaration stands in `tools`" },
    SilentField { schema: "NamedFunction", field: "parameters", reason: "the declaration stands in `tools`" },
    SilentField { schema: "NamedFunction", field: "strict", reason: "the declaration stands in `tools`" },
    SilentField { schema: "ReasoningSettings", field: "summary", reason: "reasoning is returned in full, which serves as any summary" },
    SilentField { schema: "ReasoningSettings", field: "generate_summary", reason: "the older name of summary" },
    SilentField { schema: "ReasoningSettings", field: "context", reason: "a hint of what earlier reasoning is for" },
    SilentField { schema: "TextSettings", field: "verbosity", reason: "no model here has another length of answers" },
    SilentField { schema: "StructuredOutputs", field: "structural_tag", reason: "refused by name" },
    SilentField { schema: "StructuredOutputs", field: "whitespace_pattern", reason: "refused by name" },
    SilentField { schema: "StructuredOutputs", field: "disable_any_whitespace", reason: "refused unless it asks for nothing" },
    SilentField { schema: "StructuredOutputs", field: "disable_additional_properties", reason: "refused unless it asks for nothing" },
    SilentField { schema: CHAT, field: "mode", reason: "text-generation-webui's choice between templates" },
    SilentField { schema: CHAT, field: "models", reason: "a router tries them if `model` fails" },
    // Clients send these back with an earlier answer.
    SilentField { schema: MESSAGE, field: "annotations", reason: "citations of an earlier answer, which no template shows" },
    SilentField { schema: MESSAGE, field: "audio", reason: "refused unless it is null" },
    SilentField { schema: MESSAGE, field: "parsed", reason: "the client's own reading of `content`" },
    SilentField { schema: MESSAGE, field: "reasoning_details", reason: "another server's form of `reasoning_content`" },
    SilentField { schema: MESSAGE, field: "thinking_blocks", reason: "another server's form of `reasoning_content`" },
    SilentField { schema: MESSAGE, field: "provider_specific_fields", reason: "a proxy's notes on an earlier answer" },
    SilentField { schema: MESSAGE, field: "context", reason: "what another server had found for an earlier answer" },
    SilentField { schema: MESSAGE, field: "cache_control", reason: "the prefix cache finds prompts by their tokens" },
    SilentField { schema: "Part", field: "cache_control", reason: "the prefix cache finds prompts by their tokens" },
    SilentField { schema: "Part", field: "prompt_cache_breakpoint", reason: "the prefix cache finds prompts by their tokens" },
    SilentField { schema: "Part", field: "annotations", reason: "citations of an earlier answer, which no template shows" },
    SilentField { schema: "Part", field: "image_url", reason: "its `type` is refused" },
    SilentField { schema: "Part", field: "input_audio", reason: "its `type` is refused" },
    SilentField { schema: "Part", field: "audio_url", reason: "its `type` is refused" },
    SilentField { schema: "Part", field: "video_url", reason: "its `type` is refused" },
    SilentField { schema: "Part", field: "image", reason: "its `type` is refused" },
    SilentField { schema: "Part", field: "file", reason: "its `type` is refused" },
    SilentField { schema: "ToolCall", field: "index", reason: "clients that join a stream's chunks leave it there" },
    SilentField { schema: "ToolCall", field: "extra_content", reason: "another server's notes on an earlier answer" },
    SilentField { schema: "ToolCall", field: "provider_specific_fields", reason: "a proxy's notes on an earlier answer" },
    SilentField { schema: "FunctionCall", field: "parsed_arguments", reason: "the client's own reading of `arguments`" },
    SilentField { schema: "ToolDefinition", field: "cache_control", reason: "the prefix cache finds prompts by their tokens" },
    SilentField { schema: "FunctionDefinition", field: "return", reason: "templates print it with the declaration" },
    SilentField { schema: "FunctionDefinition", field: "returns", reason: "templates print it with the declaration" },
    SilentField { schema: "FunctionDefinition", field: "response", reason: "templates print it with the declaration" },
    SilentField { schema: "StructuredOutputs", field: "disable_fallback", reason: "there is one implementation of grammars" },
    SilentField { schema: "StructuredOutputs", field: "_backend", reason: "there is one implementation of grammars" },
    SilentField { schema: "StructuredOutputs", field: "_backend_was_auto", reason: "there is one implementation of grammars" },
    // Items of a response, which clients send back unchanged.
    SilentField { schema: "InputItem", field: "id", reason: "what is kept has ids of the server's own" },
    SilentField { schema: "InputItem", field: "status", reason: "it says how an earlier answer ended" },
    SilentField { schema: "InputItem", field: "phase", reason: "no model here tells commentary from answers" },
    SilentField { schema: "InputItem", field: "summary", reason: "it is no part of the reasoning" },
    SilentField { schema: "InputItem", field: "encrypted_content", reason: "only the server that has encrypted it can read it" },
    SilentField { schema: "InputPart", field: "refusal", reason: "honoured: what the assistant said to refuse" },
    SilentField { schema: "InputPart", field: "annotations", reason: "citations of an earlier answer, which no template shows" },
    SilentField { schema: "InputPart", field: "logprobs", reason: "they belong to an earlier answer" },
    SilentField { schema: "InputPart", field: "prompt_cache_breakpoint", reason: "the prefix cache finds prompts by their tokens" },
    SilentField { schema: "InputPart", field: "image_url", reason: "its `type` is refused, or left out of a result" },
    SilentField { schema: "InputPart", field: "detail", reason: "its `type` is refused, or left out of a result" },
    SilentField { schema: "InputPart", field: "file_id", reason: "its `type` is refused, or left out of a result" },
    SilentField { schema: "InputPart", field: "file_data", reason: "its `type` is refused, or left out of a result" },
    SilentField { schema: "InputPart", field: "file_url", reason: "its `type` is refused, or left out of a result" },
    SilentField { schema: "InputPart", field: "filename", reason: "its `type` is refused, or left out of a result" },
    SilentField { schema: "InputPart", field: "input_audio", reason: "its `type` is refused" },
    SilentField { schema: "ResponseTool", field: "defer_loading", reason: "the model is told of all tools at once" },
];

/// The reason for refusing the fields in the tables of `refuse`.
const NOT_YET: &str = "is not supported yet";

type Schema = LazyLock<FieldSchema>;

pub static CHATS: Schema = LazyLock::new(|| FieldSchema::of::<chat::ChatRequest>(SILENT).refusing(&[BOTH, refuse::CHAT], NOT_YET));
pub static COMPLETIONS: Schema =
    LazyLock::new(|| FieldSchema::of::<completions::CompletionRequest>(SILENT).refusing(&[BOTH, refuse::COMPLETIONS], NOT_YET));
pub static RESPONSES: Schema = LazyLock::new(|| {
    let schema = FieldSchema::of::<responses::ResponseRequest>(SILENT).refusing(&[BOTH, refuse::OF_CHOICES, refuse::RESPONSES], NOT_YET);
    schema.passing("tools", &HOSTED).passing("input", &ELSEWHERE).keeping("input")
});
pub static EMBEDDINGS: Schema = LazyLock::new(|| {
    FieldSchema::of::<embeddings::EmbeddingRequest>(SILENT).refusing(&[refuse::EMBEDDINGS], "has no meaning for an embedding")
});
pub static RERANKS: Schema = LazyLock::new(|| FieldSchema::of::<rerank::RerankRequest>(SILENT));
pub static SCORES: Schema = LazyLock::new(|| FieldSchema::of::<rerank::ScoreRequest>(SILENT));
pub static TOKENIZES: Schema = LazyLock::new(|| FieldSchema::of::<tokens::TokenizeRequest>(SILENT));
pub static DETOKENIZES: Schema = LazyLock::new(|| FieldSchema::of::<tokens::DetokenizeRequest>(SILENT));
pub static TEMPLATES: Schema = LazyLock::new(|| FieldSchema::of::<tokens::TemplateRequest>(SILENT));
pub static BATCHES: Schema = LazyLock::new(|| FieldSchema::of::<batches::BatchRequest>(SILENT));
pub static CONVERSATIONS: Schema = LazyLock::new(|| of_items(FieldSchema::of::<conversations::ConversationRequest>(SILENT)));
pub static NEW_ITEMS: Schema = LazyLock::new(|| of_items(FieldSchema::of::<conversations::ItemsRequest>(SILENT)));
pub static METADATA: Schema = LazyLock::new(|| FieldSchema::of::<conversations::MetadataRequest>(SILENT));

fn of_items(schema: FieldSchema) -> FieldSchema {
    schema.passing("items", &ELSEWHERE).keeping("items")
}

//! The field schemas of each body: the fields that its type documents, those that are refused by name, and those that are known without
//! documentation.

use super::super::types::{adapters, batches, chat, completions, conversations, embeddings, infill, native, rerank, responses, tokens};
use super::listed_tools::HOSTED;
use super::refuse::{self, BOTH};
use super::response_input::ELSEWHERE;
use http::field_schema::SilentFields;

const CHAT: &str = "ChatRequest";
const COMPLETION: &str = "CompletionRequest";
const RESPONSE: &str = "ResponseRequest";
const EMBEDDING: &str = "EmbeddingRequest";
const MESSAGE: &str = "Message";

/// Fields that are known but not documented. A field has no effect here, or something else reads or refuses it, as its reason says.
#[rustfmt::skip]
const SILENT: &[SilentFields] = &[
    (&[CHAT, COMPLETION, EMBEDDING], &["service_tier"], "there is one tier"),
    (&[CHAT, COMPLETION, RESPONSE], &["prompt_cache_key"], "the prefix cache finds prompts by their tokens"),
    (&[CHAT, RESPONSE], &["prompt_cache_options"], "the prefix cache finds prompts by their tokens"),
    (&[MESSAGE, "Part", "ToolDefinition"], &["cache_control"], "the prefix cache finds prompts by their tokens"),
    (&["Part", "InputPart"], &["prompt_cache_breakpoint"], "the prefix cache finds prompts by their tokens"),
    (&[CHAT, RESPONSE], &["prompt_cache_retention"], "the prefix cache keeps what it has room for"),
    (&["LoadAdapterRequest"], &["is_3d_lora_weight"], "the file tells how its experts are stored"),
    (&["UnloadAdapterRequest"], &["lora_int_id"], "the number that another server gives an adapter"),
    (&["NativeOptions"], &["samplers"], "the server has one order of samplers"),
    (&["NativeOptions"], &["cache_prompt"], "the name of what engine.prefix_cache switches"),
    (&["NativeOptions"], &["max_tokens"], "honoured: another name of n_predict"),
    (&["NativeOptions"], &["n_keep"], "nothing of a prompt is ever dropped"),
    (&["RerankRequest"], &["texts", "raw_scores", "return_text", "truncate"], "honoured: the form of text-embeddings-inference"),
    (&["NativeEmbeddingRequest"], &["input"], "honoured: another name of content"),
    (&[CHAT, COMPLETION], &["cache_prompt"], "llama.cpp's name of what engine.prefix_cache switches"),
    (&[CHAT, COMPLETION, RESPONSE, EMBEDDING], &["safety_identifier"], "honoured: the newer name of `user`"),
    (&[CHAT], &["return_progress"], "honoured: llama.cpp's name of stream_options.include_progress"),
    (&[CHAT, COMPLETION], &["guided_decoding_backend"], "there is one implementation of grammars"),
    (&["StructuredOutputs"], &["disable_fallback", "_backend", "_backend_was_auto"], "there is one implementation of grammars"),
    (&[CHAT, COMPLETION], &["request_id"], "the header x-request-id names a request"),
    (&[RESPONSE], &["chat_template_kwargs"], "honoured, and not part of OpenAI's type"),
    (&[RESPONSE], &["client_metadata"], "what a client tells of itself changes no answer"),
    // vLLM's older names for a format are honoured, and errors suggest `structured_outputs` in their place.
    (&["Sampling"], &["guided_json"], "honoured: the older name of structured_outputs.json"),
    (&["Sampling"], &["guided_regex"], "honoured: the older name of structured_outputs.regex"),
    (&["Sampling"], &["guided_choice"], "honoured: the older name of structured_outputs.choice"),
    (&["Sampling"], &["guided_grammar"], "honoured: the older name of structured_outputs.grammar"),
    (&["Sampling"], &["metadata"], "checked, and kept with what is stored"),
    (&["NamedTool"], &["name"], "honoured: the form of /v1/responses"),
    (&["NamedFunction"], &["description", "parameters", "strict"], "the declaration stands in `tools`"),
    (&["ReasoningSettings"], &["summary"], "reasoning is returned in full, which serves as any summary"),
    (&["ReasoningSettings"], &["generate_summary"], "the older name of summary"),
    (&["ReasoningSettings"], &["context"], "a hint of what earlier reasoning is for"),
    (&["TextSettings"], &["verbosity"], "no model here has another length of answers"),
    (&["StructuredOutputs"], &["structural_tag", "whitespace_pattern"], "refused by name"),
    (&["StructuredOutputs"], &["disable_any_whitespace", "disable_additional_properties"], "refused unless it asks for nothing"),
    (&[CHAT], &["mode"], "text-generation-webui's choice between templates"),
    (&[CHAT], &["models"], "a router tries them if `model` fails"),
    // Clients send these back with an earlier answer.
    (&[MESSAGE, "Part", "InputPart"], &["annotations"], "citations of an earlier answer, which no template shows"),
    (&[MESSAGE], &["audio"], "refused unless it is null"),
    (&[MESSAGE], &["parsed"], "the client's own reading of `content`"),
    (&[MESSAGE], &["reasoning_details", "thinking_blocks"], "another server's form of `reasoning_content`"),
    (&[MESSAGE, "ToolCall"], &["provider_specific_fields"], "a proxy's notes on an earlier answer"),
    (&[MESSAGE], &["context"], "what another server had found for an earlier answer"),
    (&["Part"], &["audio_url", "video_url", "image", "file"], "its `type` is refused"),
    (&["Part"], &["detail"], "checked: `input_image` has it beside the picture"),
    (&["Part", "InputPart"], &["input_audio"], "its `type` is refused"),
    (&["ToolCall"], &["index"], "clients that join a stream's chunks leave it there"),
    (&["ToolCall"], &["extra_content"], "another server's notes on an earlier answer"),
    (&["FunctionCall"], &["parsed_arguments"], "the client's own reading of `arguments`"),
    (&["FunctionDefinition"], &["return", "returns", "response"], "templates print it with the declaration"),
    // Items of a response, which clients send back unchanged.
    (&["InputItem"], &["id"], "what is kept has ids of the server's own"),
    (&["InputItem"], &["status"], "it says how an earlier answer ended"),
    (&["InputItem"], &["phase"], "no model here tells commentary from answers"),
    (&["InputItem"], &["summary"], "it is no part of the reasoning"),
    (&["InputItem"], &["encrypted_content"], "only the server that has encrypted it can read it"),
    (&["InputPart"], &["refusal"], "honoured: what the assistant said to refuse"),
    (&["InputPart"], &["logprobs"], "they belong to an earlier answer"),
    (&["InputPart"], &["file_id", "file_data", "file_url", "filename"],
        "its `type` is refused, or left out of a result"),
    (&["ResponseTool"], &["defer_loading"], "the model is told of all tools at once"),
];

/// The reason for refusing the fields in the tables of `refuse`.
const NOT_YET: &str = "is not supported yet";

http::field_schemas! { SILENT;
    CHATS: chat::ChatRequest => .refusing(&[BOTH, refuse::CHAT], NOT_YET);
    COMPLETIONS: completions::CompletionRequest => .refusing(&[BOTH, refuse::COMPLETIONS], NOT_YET);
    RESPONSES: responses::ResponseRequest => .refusing(&[BOTH, refuse::OF_CHOICES, refuse::RESPONSES], NOT_YET)
        .passing("tools", &HOSTED).passing("input", &ELSEWHERE).keeping("input");
    EMBEDDINGS: embeddings::EmbeddingRequest => .refusing(&[refuse::EMBEDDINGS], "has no meaning for an embedding");
    INFILLS: infill::InfillRequest;
    NATIVE_COMPLETIONS: native::NativeCompletionRequest;
    NATIVE_EMBEDDINGS: native::NativeEmbeddingRequest;
    RERANKS: rerank::RerankRequest;
    SCORES: rerank::ScoreRequest;
    TOKENIZES: tokens::TokenizeRequest;
    DETOKENIZES: tokens::DetokenizeRequest;
    TEMPLATES: tokens::TemplateRequest;
    BATCHES: batches::BatchRequest;
    CONVERSATIONS: conversations::ConversationRequest => .passing("items", &ELSEWHERE).keeping("items");
    NEW_ITEMS: conversations::ItemsRequest => .passing("items", &ELSEWHERE).keeping("items");
    LOAD_ADAPTERS: adapters::LoadAdapterRequest;
    UNLOAD_ADAPTERS: adapters::UnloadAdapterRequest;
    METADATA: conversations::MetadataRequest;
}

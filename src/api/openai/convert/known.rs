//! The fields of each body: what its type documents, what is refused by name, and what is known and means nothing here.

use std::sync::LazyLock;

use serde_json::Value;

use super::super::types::{chat, completions, embeddings, rerank, responses, tokens};
use super::refuse;
use crate::http::error::ApiError;
use crate::http::known::{Alias, Also, Shape};
use config::{Limits, UnknownFields};

const CHAT: &str = "ChatRequest";
const COMPLETION: &str = "CompletionRequest";
const RESPONSE: &str = "ResponseRequest";
const EMBEDDING: &str = "EmbeddingRequest";
const MESSAGE: &str = "Message";

/// Fields that are known and mean nothing here, or that another rule refuses. Each has its reason.
#[rustfmt::skip]
const ALSO: &[Also] = &[
    Also { schema: CHAT, field: "service_tier", reason: "there is one tier" },
    Also { schema: CHAT, field: "prompt_cache_key", reason: "the prefix cache finds prompts by their tokens" },
    Also { schema: CHAT, field: "prompt_cache_retention", reason: "the prefix cache keeps what it has room for" },
    Also { schema: CHAT, field: "prompt_cache_options", reason: "the prefix cache finds prompts by their tokens" },
    Also { schema: CHAT, field: "cache_prompt", reason: "llama.cpp's name of what engine.prefix_cache switches" },
    Also { schema: CHAT, field: "safety_identifier", reason: "honoured: the newer name of `user`" },
    Also { schema: CHAT, field: "prediction", reason: "a hint that may make an answer faster and never changes it" },
    Also { schema: CHAT, field: "guided_decoding_backend", reason: "there is one implementation of grammars" },
    Also { schema: CHAT, field: "request_id", reason: "the header x-request-id names a request" },
    Also { schema: COMPLETION, field: "service_tier", reason: "there is one tier" },
    Also { schema: COMPLETION, field: "prompt_cache_key", reason: "the prefix cache finds prompts by their tokens" },
    Also { schema: COMPLETION, field: "cache_prompt", reason: "llama.cpp's name of what engine.prefix_cache switches" },
    Also { schema: COMPLETION, field: "safety_identifier", reason: "honoured: the newer name of `user`" },
    Also { schema: COMPLETION, field: "guided_decoding_backend", reason: "there is one implementation of grammars" },
    Also { schema: COMPLETION, field: "request_id", reason: "the header x-request-id names a request" },
    Also { schema: RESPONSE, field: "prompt_cache_key", reason: "the prefix cache finds prompts by their tokens" },
    Also { schema: RESPONSE, field: "prompt_cache_retention", reason: "the prefix cache keeps what it has room for" },
    Also { schema: RESPONSE, field: "prompt_cache_options", reason: "the prefix cache finds prompts by their tokens" },
    Also { schema: RESPONSE, field: "safety_identifier", reason: "honoured: the newer name of `user`" },
    Also { schema: RESPONSE, field: "chat_template_kwargs", reason: "honoured, and not part of OpenAI's type" },
    Also { schema: RESPONSE, field: "client_metadata", reason: "what a client tells of itself changes no answer" },
    Also { schema: EMBEDDING, field: "service_tier", reason: "there is one tier" },
    Also { schema: EMBEDDING, field: "safety_identifier", reason: "honoured: the newer name of `user`" },
    // Older names of vLLM for a format. They are honoured, and `structured_outputs` is offered in their place.
    Also { schema: "Sampling", field: "guided_json", reason: "honoured: the older name of structured_outputs.json" },
    Also { schema: "Sampling", field: "guided_regex", reason: "honoured: the older name of structured_outputs.regex" },
    Also { schema: "Sampling", field: "guided_choice", reason: "honoured: the older name of structured_outputs.choice" },
    Also { schema: "Sampling", field: "guided_grammar", reason: "honoured: the older name of structured_outputs.grammar" },
    Also { schema: "Sampling", field: "metadata", reason: "checked, and kept with what is stored" },
    Also { schema: "NamedTool", field: "name", reason: "honoured: the form of /v1/responses" },
    Also { schema: "NamedFunction", field: "description", reason: "the declaration stands in `tools`" },
    Also { schema: "NamedFunction", field: "parameters", reason: "the declaration stands in `tools`" },
    Also { schema: "NamedFunction", field: "strict", reason: "the declaration stands in `tools`" },
    Also { schema: "ReasoningSettings", field: "summary", reason: "reasoning is returned in full, which serves as any summary" },
    Also { schema: "ReasoningSettings", field: "generate_summary", reason: "the older name of summary" },
    Also { schema: "ReasoningSettings", field: "context", reason: "a hint of what earlier reasoning is for" },
    Also { schema: "TextSettings", field: "verbosity", reason: "refused unless it asks for nothing" },
    Also { schema: "StructuredOutputs", field: "structural_tag", reason: "refused by name" },
    Also { schema: "StructuredOutputs", field: "whitespace_pattern", reason: "refused by name" },
    Also { schema: "StructuredOutputs", field: "disable_any_whitespace", reason: "refused unless it asks for nothing" },
    Also { schema: "StructuredOutputs", field: "disable_additional_properties", reason: "refused unless it asks for nothing" },
    // What clients send back with an earlier answer.
    Also { schema: MESSAGE, field: "annotations", reason: "citations of an earlier answer, which no template shows" },
    Also { schema: MESSAGE, field: "audio", reason: "refused unless it is null" },
    Also { schema: MESSAGE, field: "parsed", reason: "the client's own reading of `content`" },
    Also { schema: MESSAGE, field: "reasoning_details", reason: "another server's form of `reasoning_content`" },
    Also { schema: MESSAGE, field: "thinking_blocks", reason: "another server's form of `reasoning_content`" },
    Also { schema: MESSAGE, field: "provider_specific_fields", reason: "a proxy's notes on an earlier answer" },
    Also { schema: MESSAGE, field: "cache_control", reason: "the prefix cache finds prompts by their tokens" },
    Also { schema: "Part", field: "cache_control", reason: "the prefix cache finds prompts by their tokens" },
    Also { schema: "Part", field: "prompt_cache_breakpoint", reason: "the prefix cache finds prompts by their tokens" },
    Also { schema: "Part", field: "annotations", reason: "citations of an earlier answer, which no template shows" },
    Also { schema: "Part", field: "image_url", reason: "its `type` is refused" },
    Also { schema: "Part", field: "input_audio", reason: "its `type` is refused" },
    Also { schema: "Part", field: "audio_url", reason: "its `type` is refused" },
    Also { schema: "Part", field: "video_url", reason: "its `type` is refused" },
    Also { schema: "Part", field: "image", reason: "its `type` is refused" },
    Also { schema: "Part", field: "file", reason: "its `type` is refused" },
    Also { schema: "ToolCall", field: "index", reason: "clients that join a stream's chunks leave it there" },
    Also { schema: "ToolCall", field: "extra_content", reason: "another server's notes on an earlier answer" },
    Also { schema: "ToolCall", field: "provider_specific_fields", reason: "a proxy's notes on an earlier answer" },
    Also { schema: "FunctionCall", field: "parsed_arguments", reason: "the client's own reading of `arguments`" },
    Also { schema: "ToolDefinition", field: "cache_control", reason: "the prefix cache finds prompts by their tokens" },
    Also { schema: "FunctionDefinition", field: "return", reason: "templates print it with the declaration" },
    Also { schema: "FunctionDefinition", field: "returns", reason: "templates print it with the declaration" },
    Also { schema: "FunctionDefinition", field: "response", reason: "templates print it with the declaration" },
    Also { schema: "StructuredOutputs", field: "disable_fallback", reason: "there is one implementation of grammars" },
    Also { schema: "StructuredOutputs", field: "_backend", reason: "there is one implementation of grammars" },
    Also { schema: "StructuredOutputs", field: "_backend_was_auto", reason: "there is one implementation of grammars" },
];

/// Names of other servers for what has another name here.
const ALIASES: &[Alias] = &[
    ("ebnf", "grammar"),
    ("gbnf", "grammar"),
    ("repeat_penalty", "repetition_penalty"),
    ("presence", "presence_penalty"),
    ("frequency", "frequency_penalty"),
    ("n_predict", "max_tokens"),
    ("num_predict", "max_tokens"),
    ("max_new_tokens", "max_tokens"),
    ("max_length", "max_tokens"),
    ("max_gen_len", "max_tokens"),
    ("stop_sequences", "stop"),
    ("stop_words", "stop"),
    ("num_return_sequences", "n"),
    ("n_probs", "logprobs"),
    ("random_seed", "seed"),
    ("thinking", "reasoning_effort"),
    ("enable_thinking", "chat_template_kwargs"),
    ("think", "reasoning_effort"),
    ("format", "response_format"),
    ("schema", "json_schema"),
    ("text", "input"),
    ("texts", "documents"),
    ("passages", "documents"),
];

static CHATS: LazyLock<Shape> = LazyLock::new(|| Shape::of::<chat::ChatRequest>(ALSO).with(refuse::chat_names()));
static COMPLETIONS: LazyLock<Shape> = LazyLock::new(|| Shape::of::<completions::CompletionRequest>(ALSO).with(refuse::completion_names()));
static RESPONSES: LazyLock<Shape> = LazyLock::new(|| {
    // The items of a conversation are checked where they are read: a client sends back whatever an answer held.
    Shape::of::<responses::ResponseRequest>(ALSO).with(refuse::response_names()).leaving(&["input", "tools", "tool_choice"])
});
static EMBEDDINGS: LazyLock<Shape> = LazyLock::new(|| Shape::of::<embeddings::EmbeddingRequest>(ALSO).with(refuse::embedding_names()));
static RERANKS: LazyLock<Shape> = LazyLock::new(|| Shape::of::<rerank::RerankRequest>(ALSO));
static SCORES: LazyLock<Shape> = LazyLock::new(|| Shape::of::<rerank::ScoreRequest>(ALSO));
static TOKENIZES: LazyLock<Shape> = LazyLock::new(|| Shape::of::<tokens::TokenizeRequest>(ALSO));
static DETOKENIZES: LazyLock<Shape> = LazyLock::new(|| Shape::of::<tokens::DetokenizeRequest>(ALSO));
static TEMPLATES: LazyLock<Shape> = LazyLock::new(|| Shape::of::<tokens::TemplateRequest>(ALSO));

/// Whose fields a body has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    Chat,
    Completion,
    Response,
    Embedding,
    Rerank,
    Score,
    Tokenize,
    Detokenize,
    Template,
}

impl Body {
    fn shape(self) -> &'static Shape {
        match self {
            Self::Chat => &CHATS,
            Self::Completion => &COMPLETIONS,
            Self::Response => &RESPONSES,
            Self::Embedding => &EMBEDDINGS,
            Self::Rerank => &RERANKS,
            Self::Score => &SCORES,
            Self::Tokenize => &TOKENIZES,
            Self::Detokenize => &DETOKENIZES,
            Self::Template => &TEMPLATES,
        }
    }

    /// Refuses a field that the body does not have, unless the configuration says otherwise.
    pub fn check(self, value: &Value, limits: &Limits) -> Result<(), ApiError> {
        self.check_as(value, limits.unknown_fields)
    }

    fn check_as(self, value: &Value, unknown: UnknownFields) -> Result<(), ApiError> {
        self.shape().check(value, ALIASES, unknown)
    }
}

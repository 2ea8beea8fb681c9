//! Reads client input as the handlers do, without a server. The fuzz targets call this.

use bytes::Bytes;
use chat::Conversation;
use config::Limits;
use serving::Prompt;

use ::anthropic::convert::{request as messages, schemas as anthropic};
use http::error::ApiError;
use http::field_schema::FieldSchema;
use http::inflate::Encoding;
use http::parse::{Meter, parse};
use ollama::convert as ollama;
use openai::convert::{chat as chats, completions, embeddings, infill, native, rerank, responses, schemas, tokens};

/// The endpoints whose requests have a body.
pub const ENDPOINTS: [&str; 17] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/v1/messages",
    "/v1/rerank",
    "/v1/score",
    "/api/chat",
    "/api/generate",
    "/api/embed",
    "/api/create",
    "/infill",
    "/completion",
    "/embedding",
];

/// The largest tree of a body [bytes of memory].
const MAX_WEIGHT: usize = 8 << 20;

/// Reads a request to one of [`ENDPOINTS`]. Returns its conversation, if it has one.
///
/// # Errors
/// The message that the client gets.
pub fn request(endpoint: &str, body: &[u8], limits: &Limits) -> Result<Option<Conversation>, String> {
    read(endpoint, body, limits).map_err(|error| error.message)
}

/// Returns the field schema of an endpoint's requests.
fn schema(endpoint: &str) -> &'static FieldSchema {
    match endpoint {
        "/v1/chat/completions" => &schemas::CHATS,
        "/v1/completions" => &schemas::COMPLETIONS,
        "/v1/embeddings" => &schemas::EMBEDDINGS,
        "/v1/responses" => &schemas::RESPONSES,
        "/tokenize" => &schemas::TOKENIZES,
        "/detokenize" => &schemas::DETOKENIZES,
        "/v1/messages" => &anthropic::MESSAGES,
        "/v1/rerank" => &schemas::RERANKS,
        "/v1/score" => &schemas::SCORES,
        "/api/chat" => &ollama::schemas::CHATS,
        "/api/generate" => &ollama::schemas::GENERATES,
        "/api/embed" => &ollama::schemas::EMBEDS,
        "/api/create" => &ollama::schemas::CREATES,
        "/infill" => &schemas::INFILLS,
        "/completion" => &schemas::NATIVE_COMPLETIONS,
        "/embedding" => &schemas::NATIVE_EMBEDDINGS,
        _ => &schemas::TEMPLATES,
    }
}

fn read(endpoint: &str, body: &[u8], limits: &Limits) -> Result<Option<Conversation>, ApiError> {
    let mut value = parse(body, &Meter::new(MAX_WEIGHT, &mut |_| Ok(())))?;
    schema(endpoint).admit(&mut value, limits.unknown_fields)?;
    let of_prompt = |prompt| if let Prompt::Chat(conversation) = prompt { Some(conversation) } else { None };
    Ok(match endpoint {
        "/v1/chat/completions" => of_prompt(chats::parse(&value, limits)?.prompt),
        "/v1/completions" => completions::parse(&value, limits)?.prompts.into_iter().find_map(of_prompt),
        "/v1/embeddings" => embeddings::parse(&value)?.inputs.into_iter().find_map(of_prompt),
        "/infill" => infill::parse(&value, limits).map(|_| None)?,
        "/completion" => native::parse(&value, limits).map(|_| None)?,
        "/embedding" => native::embedding(&value).map(|_| None)?,
        "/v1/responses" => Some(responses::parse(&value, limits, &|_| None)?.conversation),
        "/tokenize" => match tokens::tokenize(&value, limits)?.of {
            tokens::Text::Chat { conversation, .. } => Some(*conversation),
            tokens::Text::Plain { .. } => None,
        },
        "/v1/messages" => Some(messages::parse(&value, limits, false)?.prompt.conversation),
        "/v1/rerank" => rerank::rerank(&value).map(|_| None)?,
        "/v1/score" => rerank::score(&value).map(|_| None)?,
        "/api/chat" => Some(ollama::chat::parse(&value, limits)?.conversation),
        "/api/generate" => ollama::generate::parse(&value, limits).map(|_| None)?,
        "/api/embed" => ollama::embed::embed(&value, limits).map(|_| None)?,
        "/api/create" => ollama::make::create(&value).map(|_| None)?,
        "/detokenize" => tokens::detokenize(&value).map(|_| None)?,
        _ => Some(tokens::apply_template(&value, limits)?.conversation),
    })
}

/// Decompresses a body with a `content-encoding` (0: gzip, 1: deflate, otherwise zstd), to at most `limit` bytes.
///
/// # Errors
/// The message that the client gets.
pub fn unpacked(packed: &[u8], kind: u8, limit: usize) -> Result<Bytes, String> {
    let encoding = [Encoding::Gzip, Encoding::Deflate, Encoding::Zstd][usize::from(kind.min(2))];
    let size = encoding.unpacked_size(packed, limit).map_err(|error| error.message)?;
    encoding.unpack(Bytes::copy_from_slice(packed), size).map_err(|error| error.message)
}

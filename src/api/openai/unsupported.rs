//! Endpoints of OpenAI, vLLM, llama.cpp and LM Studio that this server does not have: sound, pictures, moderation, training, classes of
//! texts, prompts in vLLM's own form, sleep, the cache of a slot, LM Studio's own API. They answer with what the server lacks, so that a
//! client does not take them for a wrong address. The OpenAPI document omits them, because operations that always fail are of no use there.

use actix_web::web::{self, ServiceConfig};
use actix_web::{HttpRequest, ResponseError};

use http::error::{ApiError, Kind, quoted};

const CLASSIFY: &str = "name the classes of texts. `/v1/score` says how well two texts fit, and `/v1/rerank` orders texts";
const RENDER: &str = "write prompts in vLLM's form. `/apply-template` returns the text of a conversation's prompt, and `/tokenize` its ids";
const SLEEP: &str = "sleep. `POST /models/unload` and `penstock stop MODEL` give a model's memory back";
const LM_STUDIO: &str = "have LM Studio's own API. Use the paths below `/v1`, `/models` and `/admin/models`";

/// The paths, and what their requests ask for.
const PATHS: [(&str, &str); 20] = [
    ("/v1/audio/speech", "speak texts"),
    ("/v1/audio/transcriptions", "write down speech"),
    ("/v1/audio/{rest:.*}", "hear or speak"),
    ("/v1/images/{rest:.*}", "make or change pictures"),
    ("/v1/videos", "make films"),
    ("/v1/moderations", "moderate texts"),
    ("/v1/fine_tuning/{rest:.*}", "train models"),
    ("/v1/realtime", "speak over a WebSocket"),
    ("/classify", CLASSIFY),
    ("/v1/classify", CLASSIFY),
    ("/v1/chat/completions/render", RENDER),
    ("/v1/completions/render", RENDER),
    ("/sleep", SLEEP),
    ("/wake_up", SLEEP),
    ("/is_sleeping", SLEEP),
    ("/reset_prefix_cache", "empty its prefix cache: prompts of other users are never found in it, see `cache_salt`"),
    ("/slots/{id}", "save or restore the cache of a slot: all sequences share one prefix cache"),
    ("/api/v0/{rest:.*}", LM_STUDIO),
    ("/api/v1/models{rest:.*}", LM_STUDIO),
    ("/api/v1/chat", LM_STUDIO),
];

/// Must come before the routes with variable parts, which some of these paths match.
pub fn routes(config: &mut ServiceConfig) {
    for (path, what) in PATHS {
        let refuse = move |request: HttpRequest| async move {
            let message = format!("{} is not supported: this server does not {what}", quoted(request.path()));
            ApiError::new(Kind::NotImplemented, message).error_response()
        };
        config.service(web::resource(path).to(refuse));
    }
}

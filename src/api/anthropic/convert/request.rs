//! `/v1/messages` and `/v1/messages/count_tokens`: the requests.

use std::collections::HashSet;

use actix_web::HttpRequest;
use serde_json::{Map, Value};

use super::cache_control::cache_control;
use super::edits::{self, Edit};
use super::thinking::{self, Thinking};
use super::{messages, options, tools};
use chat::Conversation;
use config::Limits;
use http::error::ApiError;
use http::fields::Fields;
use serving::{Model, Options};

/// What the name of the beta of interleaved reasoning begins with.
const INTERLEAVED: &str = "interleaved-thinking";

/// The prompt of a request, valid by itself. `serving` checks what depends on the model.
#[derive(Debug)]
pub struct Prompt {
    pub model: String,
    pub conversation: Conversation,
    /// `None`: the request does not say whether the model is to reason.
    pub thinking: Option<Thinking>,
    /// What is to be left out of a long conversation.
    pub edits: Vec<Edit>,
}

/// Whether a request's header says that the model may reason between its calls.
pub fn interleaves(http: &HttpRequest) -> bool {
    let betas = http.headers().get_all("anthropic-beta").filter_map(|value| value.to_str().ok());
    betas.flat_map(|betas| betas.split(',')).any(|beta| beta.trim().starts_with(INTERLEAVED))
}

#[derive(Debug)]
pub struct Messages {
    pub prompt: Prompt,
    pub max_tokens: u32,
    pub options: Options,
    pub stream: bool,
}

impl Prompt {
    /// The conversation for `model`. Without a word in the request, the model does not reason unless its configuration says so.
    pub fn for_model(mut self, model: &Model) -> Conversation {
        let defaults = &model.defaults;
        if self.thinking.is_none() && defaults.effort.is_none() {
            thinking::switch(&mut self.conversation.variables, false, &defaults.variables);
        }
        self.conversation
    }
}

/// A request to generate.
pub fn parse(body: &Value, limits: &Limits, interleaved: bool) -> Result<Messages, ApiError> {
    let fields = Fields::root(body)?;
    let max_tokens = fields.required("max_tokens", fields.count("max_tokens", 1)?)?;
    let output = output(&fields)?;
    let mut options = options::options(&fields, limits, max_tokens)?;
    options.format = options::format(&fields, output.as_ref())?;
    let stream = fields.bool("stream")?.unwrap_or(false);
    Ok(Messages { prompt: prompt(&fields, output.as_ref(), Some(max_tokens), interleaved)?, max_tokens, options, stream })
}

/// A request to count. It may hold what a request to generate holds, whose fields are checked as they are there.
pub fn parse_count(body: &Value, limits: &Limits, interleaved: bool) -> Result<Prompt, ApiError> {
    let fields = Fields::root(body)?;
    let max_tokens = fields.count("max_tokens", 1)?;
    let output = output(&fields)?;
    options::options(&fields, limits, max_tokens.unwrap_or(1))?;
    options::format(&fields, output.as_ref())?;
    fields.bool("stream")?;
    prompt(&fields, output.as_ref(), max_tokens, interleaved)
}

fn output<'a>(fields: &Fields<'a>) -> Result<Option<Fields<'a>>, ApiError> {
    let Some(value) = fields.get("output_config") else { return Ok(None) };
    let inner = fields.within(value, "output_config")?;
    // A budget of a whole session is the client's to keep: no session is known here.
    inner.object("task_budget")?;
    Ok(Some(inner))
}

fn prompt(fields: &Fields, output: Option<&Fields>, max_tokens: Option<u32>, interleaved: bool) -> Result<Prompt, ApiError> {
    let model = fields.required("model", fields.string("model")?)?.to_owned();
    options::check_neutral(fields)?;
    cache_control(fields)?;
    let thinking = thinking::thinking(fields, max_tokens, interleaved)?;
    let mut conversation = Conversation::default();
    output.map_or(Ok(()), |output| thinking::effort(output, &mut conversation))?;
    if let Some(thinking) = thinking {
        thinking::switch(&mut conversation.variables, thinking.is_on, &Map::new());
    }
    let tools = tools::tools(fields)?;
    let names: HashSet<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
    (conversation.messages, conversation.ending) = messages::messages(fields, &names)?;
    drop(names);
    conversation.tools = tools::choice(fields, tools)?;
    let edits = edits::edits(fields, &mut conversation.messages)?;
    Ok(Prompt { model, conversation, thinking, edits })
}

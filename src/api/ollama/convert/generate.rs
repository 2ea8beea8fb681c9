//! Conversion of requests to `/api/generate`.

use serde_json::Value;

use super::common::{self, Common};
use super::messages;
use chat::Part;
use config::Limits;
use http::error::ApiError;
use http::fields::Fields;
use http::pictures::PicturePlace;

/// The largest template [bytes].
const MAX_TEMPLATE: usize = 1 << 18;

/// A generation request whose fields are each valid.
#[derive(Debug)]
pub struct Generate {
    pub common: Common,
    pub prompt: String,
    pub kind: Kind,
}

/// How the prompt is used.
#[derive(Debug, PartialEq)]
pub enum Kind {
    /// There is no prompt, so the model is loaded or unloaded.
    Empty,
    /// The model continues the prompt as it is.
    Raw,
    /// The model fills in the text between the prompt and this suffix.
    Infill(String),
    /// The prompt is the user's message in a chat.
    ChatTurn(ChatTurn),
}

#[derive(Debug, Default, PartialEq)]
pub struct ChatTurn {
    pub system: Option<String>,
    /// A template that replaces the model's chat template.
    pub template: Option<String>,
    /// The ids of the conversation so far.
    pub context: Vec<u32>,
    /// The pictures of the prompt.
    pub images: Vec<Part>,
}

pub fn parse(body: &Value, limits: &Limits) -> Result<Generate, ApiError> {
    let fields = Fields::root(body)?;
    for name in ["width", "height", "steps"] {
        if fields.integer(name, 0..=i64::MAX)?.is_some_and(|number| number > 0) {
            return Err(ApiError::unsupported(name, format!("`{name}` is not supported: no served model makes images")));
        }
    }
    let prompt = fields.string("prompt")?.unwrap_or_default().to_owned();
    Ok(Generate { common: common::common(&fields, limits)?, kind: kind(&fields, &prompt)?, prompt })
}

fn kind(fields: &Fields, prompt: &str) -> Result<Kind, ApiError> {
    let text = |name: &str| Ok::<_, ApiError>(fields.string(name)?.filter(|text| !text.is_empty()).map(str::to_owned));
    let (raw, suffix) = (fields.bool("raw")?.unwrap_or(false), text("suffix")?);
    let context = fields.ids("context")?.unwrap_or_default();
    let images = messages::images(fields, PicturePlace::Message)?;
    let turn = ChatTurn { system: text("system")?, template: text("template")?, context, images };
    if turn.template.as_ref().is_some_and(|template| template.len() > MAX_TEMPLATE) {
        return Err(fields.invalid("template", format_args!("has more than {MAX_TEMPLATE} bytes")));
    }
    let of_turn = [
        ("system", turn.system.is_some()),
        ("template", turn.template.is_some()),
        ("context", !turn.context.is_empty()),
        ("images", !turn.images.is_empty()),
    ];
    let turned = of_turn.into_iter().find(|(_, asked)| *asked).map(|(name, _)| name);
    match (raw, suffix, turned) {
        (true, _, Some(name)) => Err(fields.invalid(name, "is not allowed with `raw`, which continues the prompt as it is")),
        (_, Some(_), Some(name)) => Err(fields.invalid(name, "is not allowed with `suffix`, which no chat template takes")),
        (_, Some(suffix), None) => Ok(Kind::Infill(suffix)),
        (_, None, _) if prompt.is_empty() && !turn.context.is_empty() => {
            Err(fields.invalid("prompt", "must not be empty with `context`, which it continues"))
        }
        (_, None, _) if prompt.is_empty() && turn.images.is_empty() => Ok(Kind::Empty),
        (true, None, None) => Ok(Kind::Raw),
        (false, None, _) => Ok(Kind::ChatTurn(turn)),
    }
}

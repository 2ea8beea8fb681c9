//! `/api/generate`: the request.

use serde_json::Value;

use super::ask::{self, Common};
use super::messages;
use config::Limits;
use http::error::ApiError;
use http::fields::Fields;

/// The largest template, in bytes.
const MAX_TEMPLATE: usize = 1 << 18;

/// A request whose fields are valid by themselves.
#[derive(Debug)]
pub struct Generate {
    pub common: Common,
    pub prompt: String,
    pub kind: Kind,
}

/// What becomes of the prompt.
#[derive(Debug, PartialEq)]
pub enum Kind {
    /// There is none: the model is to be loaded or unloaded.
    Empty,
    /// It is continued as it is.
    Raw,
    /// The answer stands between the prompt and this text.
    Infill(String),
    /// It is what the user says.
    Turn(Turn),
}

#[derive(Debug, Default, PartialEq)]
pub struct Turn {
    pub system: Option<String>,
    /// In place of the model's chat template.
    pub template: Option<String>,
    /// The ids of the conversation so far.
    pub context: Vec<u32>,
}

pub fn parse(body: &Value, limits: &Limits) -> Result<Generate, ApiError> {
    let fields = Fields::root(body)?;
    messages::refuse_images(&fields)?;
    for name in ["width", "height", "steps"] {
        if fields.integer(name, 0..=i64::MAX)?.is_some_and(|number| number > 0) {
            return Err(ApiError::unsupported(name, format!("`{name}` is not supported: no served model makes images")));
        }
    }
    let prompt = fields.string("prompt")?.unwrap_or_default().to_owned();
    Ok(Generate { common: ask::common(&fields, limits)?, kind: kind(&fields, &prompt)?, prompt })
}

fn kind(fields: &Fields, prompt: &str) -> Result<Kind, ApiError> {
    let text = |name: &str| Ok::<_, ApiError>(fields.string(name)?.filter(|text| !text.is_empty()).map(str::to_owned));
    let (raw, suffix) = (fields.bool("raw")?.unwrap_or(false), text("suffix")?);
    let turn = Turn { system: text("system")?, template: text("template")?, context: fields.ids("context")?.unwrap_or_default() };
    if turn.template.as_ref().is_some_and(|template| template.len() > MAX_TEMPLATE) {
        return Err(fields.invalid("template", format_args!("has more than {MAX_TEMPLATE} bytes")));
    }
    let of_turn = [("system", turn.system.is_some()), ("template", turn.template.is_some()), ("context", !turn.context.is_empty())];
    let turned = of_turn.into_iter().find(|(_, asked)| *asked).map(|(name, _)| name);
    match (raw, suffix, turned) {
        (true, _, Some(name)) => Err(fields.invalid(name, "is not allowed with `raw`, which continues the prompt as it is")),
        (_, Some(_), Some(name)) => Err(fields.invalid(name, "is not allowed with `suffix`, which no chat template takes")),
        (_, Some(suffix), None) => Ok(Kind::Infill(suffix)),
        (_, None, _) if prompt.is_empty() && !turn.context.is_empty() => {
            Err(fields.invalid("prompt", "must not be empty with `context`, which it continues"))
        }
        (_, None, _) if prompt.is_empty() => Ok(Kind::Empty),
        (true, None, None) => Ok(Kind::Raw),
        (false, None, _) => Ok(Kind::Turn(turn)),
    }
}

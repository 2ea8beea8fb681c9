//! Saves conversations to files and loads them.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use outside::{Output, read_regular};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::chat::Chat;
use super::exported::{Branch, Exported};
use super::settings::Settings;
use crate::chat::{Message, Part, Picture, PictureSource, Role};

/// The largest file that is read [bytes].
const MAX_BYTES: u64 = 64 << 20;
const FORMAT: &str = "penstock-chat";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedChat {
    format: String,
    model: String,
    #[serde(default)]
    settings: Settings,
    messages: Vec<SavedMessage>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedMessage {
    role: Speaker,
    content: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pictures: Vec<SavedPicture>,
}

/// A picture before the message's text.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedPicture {
    name: String,
    /// The bytes of its file in base64.
    data: String,
}

impl SavedPicture {
    fn of(part: &Part) -> Option<Self> {
        let picture = part.as_picture()?;
        let PictureSource::File(bytes) = &picture.source else { return None };
        Some(Self { name: picture.field.to_string(), data: STANDARD.encode(bytes) })
    }

    fn part(self) -> anyhow::Result<Part> {
        let bytes = STANDARD.decode(&self.data).with_context(|| format!("the picture `{}` is not base64", self.name.escape_debug()))?;
        Ok(Part::Picture(Picture { source: PictureSource::File(bytes.into()), field: self.name.into(), substitute: None }))
    }
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Speaker {
    User,
    Assistant,
}

/// Writes a conversation. The file is replaced atomically. A file that holds something else is not replaced.
pub fn save(chat: &Chat, path: &Path) -> anyhow::Result<()> {
    if path.exists() {
        read(path).context("the file is not replaced, because it holds no conversation")?;
    }
    let message = |message: &Message| {
        let role = if message.role == Role::Assistant { Speaker::Assistant } else { Speaker::User };
        SavedMessage { role, content: message.text(), pictures: message.parts.iter().filter_map(SavedPicture::of).collect() }
    };
    let messages = chat.messages.iter().map(message).collect();
    let saved = SavedChat { format: FORMAT.into(), model: chat.model.id.clone(), settings: chat.settings.clone(), messages };
    let text = serde_json::to_string_pretty(&saved)? + "\n";
    ensure!(text.len() as u64 <= MAX_BYTES, "its pictures take {} MiB, and /load reads at most {}", text.len() >> 20, MAX_BYTES >> 20);
    let written = Output::create(path).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.finish()
    });
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Loads a conversation from a file that `/save` or the chat page wrote. Returns the name of its model. On failure, the chat does not
/// change.
pub fn load(chat: &mut Chat, path: &Path) -> anyhow::Result<String> {
    let saved = read_any(path)?;
    let Settings { verbose, wordwrap, history, plain, .. } = chat.settings;
    let settings = Settings { verbose, wordwrap, history, plain, ..saved.settings };
    settings.check().and_then(|()| chat.try_settings(&settings)).map_err(|fault| anyhow::anyhow!("{}: {fault}", path.display()))?;
    chat.messages = saved.messages;
    chat.settings = settings;
    Ok(saved.model)
}

/// Reads a conversation that `/save` or the chat page wrote.
fn read_any(path: &Path) -> anyhow::Result<Branch> {
    let is_export = |value: &Value| value["format"] == FORMAT && value["conversations"].is_array();
    let value: Option<Value> = serde_json::from_slice(&bytes_of(path)?).ok().filter(is_export);
    if let Some(value) = value {
        let named = || path.display().to_string();
        return serde_json::from_value::<Exported>(value).with_context(named)?.branch().with_context(named);
    }
    let SavedChat { model, settings, messages, .. } = read(path)?;
    let message = |message: SavedMessage| {
        let role = if matches!(message.role, Speaker::Assistant) { Role::Assistant } else { Role::User };
        let pictures = message.pictures.into_iter().map(SavedPicture::part).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Message { parts: pictures.into_iter().chain([Part::Text(message.content)]).collect(), ..Message::new(role) })
    };
    let messages = messages.into_iter().map(message).collect::<anyhow::Result<_>>();
    Ok(Branch { model, settings, messages: messages.with_context(|| path.display().to_string())? })
}

fn bytes_of(path: &Path) -> anyhow::Result<Vec<u8>> {
    read_regular(path, MAX_BYTES).with_context(|| format!("cannot read {}", path.display()))
}

/// Reads a conversation that `/save` wrote.
fn read(path: &Path) -> anyhow::Result<SavedChat> {
    let named = || path.display().to_string();
    let bytes = bytes_of(path)?;
    let saved: SavedChat = serde_json::from_slice(&bytes).with_context(|| format!("{}: not a conversation that /save wrote", named()))?;
    if saved.format != FORMAT {
        bail!("{}: its format is `{}`, expected `{FORMAT}`", named(), saved.format);
    }
    Ok(saved)
}

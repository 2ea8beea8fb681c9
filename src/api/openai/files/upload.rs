//! Uploads. The parts of a form are read as they arrive, and the file is written to disk piece by piece.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use actix_multipart::{Field, Multipart, MultipartError};
use actix_web::error::PayloadError;
use actix_web::http::header;
use actix_web::{HttpRequest, web};
use futures_util::StreamExt;

use super::super::disk;
use super::record::FileRecord;
use super::storage_folder::StorageFolder;
use super::store::Reserved;
use config::Storage;
use http::error::{ApiError, Kind, quoted};
use http::state::{AppState, off_loop};
use http::tenant::Tenant;

/// The purposes of files. The server itself reads only those for batches.
const PURPOSES: [&str; 6] = ["batch", "user_data", "assistants", "evals", "fine-tune", "vision"];
/// The longest value of a part that is not a file [bytes].
const MAX_VALUE: usize = 512;
const MAX_NAME: usize = 255;
/// The most parts of an upload, which usually has a few.
const MAX_PARTS: usize = 16;
/// The number of bytes that are written to disk at a time.
const PIECE: usize = 1 << 20;
/// The shortest and the longest time until a file expires [s].
const EXPIRY: std::ops::RangeInclusive<u64> = 3600..=30 * 86400;

/// The parts of an upload that have been read.
#[derive(Default)]
struct Parts {
    purpose: Option<String>,
    anchor: Option<String>,
    seconds: Option<u64>,
    file: Option<Written>,
}

/// A file on disk that is not in the store yet. Dropping this value removes the file.
struct Written {
    path: PathBuf,
    name: String,
    bytes: u64,
    reserved: Reserved,
}

impl Drop for Written {
    fn drop(&mut self) {
        // Once the file has its final name, there is nothing to remove. If this fails, the next start removes the file.
        let _ = fs::remove_file(&self.path);
    }
}

/// Receives an upload and adds it to the store.
pub async fn receive(
    state: &AppState,
    http: &HttpRequest,
    body: web::Payload,
    folder: Arc<StorageFolder>,
    storage: &Storage,
) -> Result<FileRecord, ApiError> {
    check_head(state, http, storage)?;
    let tenant = Tenant::of(http);
    let mut multipart = Multipart::new(http.headers(), body);
    let patience = Duration::from_secs(state.limits().body_timeout_seconds);
    let mut parts = Parts::default();
    let mut entry = FileRecord::new(tenant.name(), String::new(), "");
    let mut num_parts = 0;
    while let Some(field) = in_time(patience, multipart.next()).await? {
        let mut field = field.map_err(|error| malformed(&error))?;
        num_parts += 1;
        if num_parts > MAX_PARTS {
            let message = format!("the upload has more than {MAX_PARTS} parts: send one file per request");
            return Err(ApiError::new(Kind::MalformedForm, message));
        }
        let name = field.name().unwrap_or_default().to_owned();
        match name.as_str() {
            "file" if parts.file.is_some() => return Err(ApiError::field("file", "`file` occurs twice: upload one file per request")),
            "file" => parts.file = Some(write(&mut field, folder.clone(), &entry, storage, patience).await?),
            "purpose" | "expires_after[anchor]" | "expires_after[seconds]" => {
                let value = text(&mut field, &name, patience).await?;
                parts.set(&name, value)?;
            }
            other => {
                let known = "file, purpose, expires_after[anchor] and expires_after[seconds]";
                return Err(ApiError::field(other, format!("the part `{}` is not known: an upload has {known}", quoted(other))));
            }
        }
    }
    let purpose = parts.purpose.take().ok_or_else(|| ApiError::field("purpose", "`purpose` is required"))?;
    let file = parts.file.take().ok_or_else(|| ApiError::field("file", "`file` is required: a part with a file name"))?;
    entry.expires_at = parts.expiry()?.map(|seconds| entry.created_at + seconds);
    (entry.purpose, entry.filename, entry.bytes) = (purpose, file.name.clone(), file.bytes);
    off_loop(move || folder.files.take(entry, &file.path)).await?.map_err(|error| disk::refused(&error, "keeping the file"))
}

impl Parts {
    fn set(&mut self, name: &str, value: String) -> Result<(), ApiError> {
        match name {
            "purpose" => {
                if !PURPOSES.contains(&value.as_str()) {
                    let message = format!("`purpose` must be one of {}, not `{}`", PURPOSES.join(", "), quoted(&value));
                    return Err(ApiError::field("purpose", message));
                }
                self.purpose = Some(value);
            }
            "expires_after[anchor]" => self.anchor = Some(value),
            _ => {
                let seconds = value.parse().ok().filter(|seconds| EXPIRY.contains(seconds));
                let (least, most) = (EXPIRY.start(), EXPIRY.end());
                self.seconds = Some(seconds.ok_or_else(|| {
                    ApiError::field(name, format!("`{name}` must be an integer from {least} to {most}, not `{}`", quoted(&value)))
                })?);
            }
        }
        Ok(())
    }

    /// Returns the time until the file is deleted [s].
    fn expiry(&self) -> Result<Option<u64>, ApiError> {
        match (self.anchor.as_deref(), self.seconds) {
            (None, None) => Ok(None),
            (Some("created_at"), Some(seconds)) => Ok(Some(seconds)),
            (Some("created_at"), None) => {
                Err(ApiError::field("expires_after[seconds]", "`expires_after[seconds]` is required with an anchor"))
            }
            (None, Some(_)) => Err(ApiError::field("expires_after[anchor]", "`expires_after[anchor]` is required: `created_at`")),
            (Some(other), _) => Err(ApiError::field(
                "expires_after[anchor]",
                format!("`expires_after[anchor]` must be created_at, not `{}`", quoted(other)),
            )),
        }
    }
}

fn check_head(state: &AppState, http: &HttpRequest, storage: &Storage) -> Result<(), ApiError> {
    let kind = http.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !kind.to_ascii_lowercase().starts_with("multipart/form-data") {
        return Err(ApiError::new(Kind::MediaType, format!("content-type must be `multipart/form-data`, not `{}`", quoted(kind))));
    }
    if http.headers().contains_key(header::CONTENT_ENCODING) {
        return Err(ApiError::new(Kind::MediaType, "an upload must not have a content-encoding"));
    }
    // Another origin's page can send a form without a preflight request.
    if http.headers().contains_key(header::ORIGIN) && !state.cors.lists(http.headers()) && !is_same_origin(http) {
        let message = "pages of this origin may not upload files: the server's operator can add it to server.cors_origins";
        return Err(ApiError::new(Kind::ForbiddenHost, message));
    }
    let length = http.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    // The heads of the parts add to the file's size.
    match length.is_some_and(|length| length > storage.max_file_bytes + (MAX_PARTS * PIECE) as u64) {
        true => Err(too_large(storage)),
        false => Ok(()),
    }
}

/// Whether the page that sent the request came from this server.
fn is_same_origin(http: &HttpRequest) -> bool {
    let text = |name| http.headers().get(name).and_then(|value| value.to_str().ok());
    let (origin, host) = (text(header::ORIGIN), text(header::HOST));
    origin.and_then(|origin| origin.split_once("://")).is_some_and(|(_, authority)| Some(authority) == host)
}

fn too_large(storage: &Storage) -> ApiError {
    let most = storage.max_file_bytes;
    ApiError::new(Kind::TooLarge, format!("the file is larger than {most} bytes (storage.max_file_bytes): split it")).with_param("file")
}

/// The error for a body that is not the multipart form announced by its content type.
fn malformed(error: &MultipartError) -> ApiError {
    use MultipartError::*;
    let message = match error {
        ContentTypeMissing | ContentTypeParse | ContentTypeIncompatible | BoundaryMissing => {
            "the content-type of the upload names no boundary: send `multipart/form-data; boundary=BOUNDARY`".into()
        }
        ContentDispositionMissing | ContentDispositionNameMissing => {
            "a part of the upload has no name: each begins with `content-disposition: form-data; name=\"NAME\"`".into()
        }
        Nested => "a part of the upload is a form itself: send the file as a part of its own".into(),
        Incomplete | Payload(PayloadError::Incomplete(_)) => {
            "the upload ends too early: send all of the form, which ends with `--BOUNDARY--`".into()
        }
        Parse(error) => format!("the head of a part of the upload cannot be read: {error}"),
        other => format!("the upload cannot be read as a multipart form: {other}"),
    };
    ApiError::new(Kind::MalformedForm, message)
}

async fn in_time<T>(patience: Duration, next: impl Future<Output = T>) -> Result<T, ApiError> {
    let late = |_| ApiError::new(Kind::Timeout, format!("nothing of the body arrived within {} s", patience.as_secs()));
    tokio::time::timeout(patience, next).await.map_err(late)
}

/// Reads the value of a part that is not a file.
async fn text(field: &mut Field, name: &str, patience: Duration) -> Result<String, ApiError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = in_time(patience, field.next()).await? {
        bytes.extend_from_slice(&chunk.map_err(|error| malformed(&error))?);
        if bytes.len() > MAX_VALUE {
            return Err(ApiError::field(name, format!("`{name}` has more than {MAX_VALUE} bytes")));
        }
    }
    String::from_utf8(bytes).map_err(|_| ApiError::field(name, format!("`{name}` is not UTF-8")))
}

/// Writes the content of a file to disk as it arrives.
async fn write(
    field: &mut Field,
    folder: Arc<StorageFolder>,
    entry: &FileRecord,
    storage: &Storage,
    patience: Duration,
) -> Result<Written, ApiError> {
    let name = field.content_disposition().and_then(|disposition| disposition.get_filename()).unwrap_or_default();
    if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        return Err(ApiError::field("file", format!("`file` must have a file name of 1 to {MAX_NAME} bytes without control characters")));
    }
    let path = folder.files.unfinished(&entry.id);
    let mut written = Written { path: path.clone(), name: name.to_owned(), bytes: 0, reserved: folder.files.reserve(&entry.tenant, 1)? };
    let mut file = off_loop(move || File::create(path)).await?.map_err(|error| disk::refused(&error, "keeping the file"))?;
    let mut piece = Vec::new();
    loop {
        let chunk = in_time(patience, field.next()).await?.transpose().map_err(|error| malformed(&error))?;
        let is_end = chunk.is_none();
        piece.extend_from_slice(&chunk.unwrap_or_default());
        if written.bytes + piece.len() as u64 > storage.max_file_bytes {
            return Err(too_large(storage));
        }
        if is_end || piece.len() >= PIECE {
            written.reserved.grow(piece.len() as u64)?;
            written.bytes += piece.len() as u64;
            let whole = std::mem::take(&mut piece);
            let work = move || file.write_all(&whole).and_then(|()| if is_end { file.sync_all() } else { Ok(()) }).map(|()| file);
            file = off_loop(work).await?.map_err(|error| disk::refused(&error, "keeping the file"))?;
        }
        if is_end {
            return Ok(written);
        }
    }
}

//! Fetches the pictures of conversations that clients name by URL.

use std::sync::Arc;

use futures_util::future::try_join_all;

use super::error::{ApiError, Kind};
use super::memory_budget::MemoryPermit;
use super::picture_url::{self, FetchError};
use super::state::AppState;
use chat::{Conversation, Part, Picture, PictureSource};
use serving::Model;
use serving::pictures::MAX_PICTURES;

/// Fetches the pictures of a conversation that are named by URL, if the model takes pictures. They come at the same time, and take at most
/// as many bytes as a body may have. Returns the memory that is held for the request, with theirs.
///
/// # Errors
/// Names the picture that cannot be had. [`Kind::Overloaded`]: the server has no memory for them.
pub async fn fetch(
    state: &AppState,
    model: &Model,
    conversation: &mut Conversation,
    held: Arc<MemoryPermit>,
) -> Result<Arc<MemoryPermit>, ApiError> {
    let parts = conversation.messages.iter_mut().flat_map(|message| &mut message.parts);
    let pictures = parts.filter_map(|part| match part {
        Part::Picture(picture) if matches!(picture.source, PictureSource::Url(_)) => Some(picture),
        _ => None,
    });
    let mut pictures: Vec<_> = pictures.collect();
    // More pictures than a prompt may have are refused later.
    if model.pictures().is_none() || pictures.is_empty() || pictures.len() > MAX_PICTURES {
        return Ok(held);
    }
    let one = |(url, picture): (Arc<str>, &Picture)| {
        let (field, may_be_left_out) = (picture.field.clone(), picture.substitute.is_some());
        async move {
            match picture_url::fetch(&url, &state.picture_urls).await {
                Ok(file) => Ok(PictureSource::File(file.into())),
                Err(error) if may_be_left_out => Ok(PictureSource::Invalid(error.to_string().into())),
                Err(error) => {
                    let kind = if matches!(error, FetchError::TooLarge(_)) { Kind::TooLarge } else { Kind::InvalidValue };
                    Err(ApiError::new(kind, format!("`{field}`: {error}")).with_param(&*field))
                }
            }
        }
    };
    let urls = pictures.iter().filter_map(|picture| match &picture.source {
        PictureSource::Url(url) => Some((url.clone(), &**picture)),
        _ => None,
    });
    let sources = try_join_all(urls.map(one)).await?;
    let size = |source: &PictureSource| if let PictureSource::File(file) = source { file.len() } else { 0 };
    let (size, most) = (sources.iter().map(size).sum::<usize>(), state.limits().max_body_bytes);
    if size > most {
        let message =
            format!("the pictures of the request's URLs have {size} bytes, and a body may have {most}: send fewer or smaller ones");
        return Err(ApiError::new(Kind::TooLarge, message));
    }
    let mut memory = state.bodies.share();
    memory.set(size)?;
    for (picture, source) in pictures.iter_mut().zip(sources) {
        picture.source = source;
    }
    Ok(Arc::new(memory.along(held)))
}

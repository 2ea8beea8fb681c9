//! The endpoints of `/v1/files`.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use actix_web::body::SizedStream;
use actix_web::http::header;
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use futures_util::stream;

use super::super::disk;
use super::super::list::{Page, Query};
use super::super::types::error::ErrorBody;
use super::super::types::files::{DeletedFile, FileObject, FileUpload};
use super::record::FileRecord;
use super::storage_folder::{LazyStorage, StorageFolder};
use super::upload;
use http::error::{ApiError, Kind, quoted};
use http::state::{AppState, off_loop};
use http::tenant::Tenant;

/// The default and the largest number of files per page.
const PAGE: (usize, usize) = (10_000, 10_000);
/// The number of bytes that are read from a file at a time.
const PIECE: usize = 1 << 18;

/// Upload a file
#[utoipa::path(post, path = "/v1/files", operation_id = "createFile", tag = "files",
    request_body(content = FileUpload, content_type = "multipart/form-data"), responses(
    (status = 200, description = "the file", body = FileObject),
    (status = 400, description = "a part is wrong, or the server holds too many files", body = ErrorBody),
    (status = 413, description = "the file is too large", body = ErrorBody),
    (status = 507, description = "the disk is full", body = ErrorBody)))]
pub async fn create(
    state: web::Data<AppState>,
    storage: web::Data<LazyStorage>,
    http: HttpRequest,
    body: web::Payload,
) -> Result<HttpResponse, ApiError> {
    let folder = storage.clone().into_inner().need().await?;
    let entry = upload::receive(&state, &http, body, folder, &storage.storage).await?;
    Ok(HttpResponse::Ok().json(entry.object()))
}

/// List the files
#[utoipa::path(get, path = "/v1/files", operation_id = "listFiles", tag = "files",
    params(("after" = Option<String>, Query, description = "the id of the previous page's last file"),
        ("limit" = Option<u32>, Query, description = "the page size, from 1 to 10000"),
        ("order" = Option<String>, Query, description = "asc or desc by time; the default is desc"),
        ("purpose" = Option<String>, Query, description = "only files of this purpose")),
    responses(
        (status = 200, description = "a page of files", body = Page<FileObject>),
        (status = 400, description = "a parameter is wrong", body = ErrorBody)))]
pub async fn list(storage: web::Data<LazyStorage>, http: HttpRequest) -> Result<HttpResponse, ApiError> {
    let query = Query::of(&http, PAGE, &["purpose"])?;
    let folder = storage.into_inner().need().await?;
    let files = folder.files.list(Tenant::of(&http).name());
    let is_wanted = |entry: &&FileRecord| query.other("purpose").is_none_or(|purpose| entry.purpose == purpose);
    let files = files.iter().filter(is_wanted).map(FileRecord::object).collect();
    Ok(HttpResponse::Ok().json(query.page(files, |file: &FileObject| file.id.clone())?))
}

/// Returns the file that a request names, if it belongs to the request's tenant.
async fn found(storage: web::Data<LazyStorage>, http: &HttpRequest) -> Result<(Arc<StorageFolder>, FileRecord), ApiError> {
    let id = http.match_info().query("id");
    let folder = storage.into_inner().need().await?;
    let entry = folder.files.get(Tenant::of(http).name(), id);
    let entry = entry.ok_or_else(|| ApiError::new(Kind::NotFound, format!("the file `{}` does not exist", quoted(id))).with_param("id"))?;
    Ok((folder, entry))
}

/// Describe a file
#[utoipa::path(get, path = "/v1/files/{id}", operation_id = "retrieveFile", tag = "files",
    params(("id" = String, Path, description = "the id of the file")),
    responses(
        (status = 200, description = "the file", body = FileObject),
        (status = 404, description = "not found", body = ErrorBody)))]
pub async fn retrieve(storage: web::Data<LazyStorage>, http: HttpRequest) -> Result<HttpResponse, ApiError> {
    Ok(HttpResponse::Ok().json(found(storage, &http).await?.1.object()))
}

/// Delete a file
///
/// A batch that uses the file continues.
#[utoipa::path(delete, path = "/v1/files/{id}", operation_id = "deleteFile", tag = "files",
    params(("id" = String, Path, description = "the id of the file")),
    responses(
        (status = 200, description = "it is deleted", body = DeletedFile),
        (status = 404, description = "not found", body = ErrorBody)))]
pub async fn delete(storage: web::Data<LazyStorage>, http: HttpRequest) -> Result<HttpResponse, ApiError> {
    let (folder, FileRecord { id, .. }) = found(storage, &http).await?;
    let gone = id.clone();
    off_loop(move || folder.files.delete(&gone)).await?.map_err(|error| disk::refused(&error, "deleting the file"))?;
    Ok(HttpResponse::Ok().json(DeletedFile { id, object: "file".into(), deleted: true }))
}

/// Download a file
#[utoipa::path(get, path = "/v1/files/{id}/content", operation_id = "downloadFile", tag = "files",
    params(("id" = String, Path, description = "the id of the file")),
    responses(
        (status = 200, description = "the content", content_type = "application/octet-stream"),
        (status = 404, description = "not found", body = ErrorBody)))]
pub async fn content(storage: web::Data<LazyStorage>, http: HttpRequest) -> Result<HttpResponse, ApiError> {
    let (folder, entry) = found(storage, &http).await?;
    let of_file = entry.clone();
    let file = off_loop(move || folder.files.read(&of_file)).await?.map_err(|error| disk::refused(&error, "reading the file"))?;
    // A browser must neither display an uploaded file nor guess its type.
    let mut response = HttpResponse::Ok();
    response.content_type("application/octet-stream");
    response.insert_header((header::CONTENT_DISPOSITION, "attachment")).insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"));
    Ok(response.body(SizedStream::new(entry.bytes, pieces(file))))
}

/// Reads the content of a file piece by piece.
fn pieces(file: File) -> impl stream::Stream<Item = Result<Bytes, actix_web::Error>> {
    stream::try_unfold(file, |mut file| async move {
        let read = move || {
            let mut piece = vec![0; PIECE];
            let length = file.read(&mut piece)?;
            piece.truncate(length);
            Ok::<_, std::io::Error>((piece, file))
        };
        let (piece, file) = off_loop(read).await?.map_err(|error| disk::refused(&error, "reading the file"))?;
        Ok((!piece.is_empty()).then(|| (Bytes::from(piece), file)))
    })
}

//! The endpoints of `/v1/batches`.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::Value;
use uuid::Uuid;

use super::super::convert::metadata::metadata;
use super::super::convert::schemas::BATCHES;
use super::super::disk::{self, now};
use super::super::files::record::new_id;
use super::super::files::storage_folder::{LazyStorage, StorageFolder};
use super::super::list::{Page, Query};
use super::super::types::batches::{BatchObject, BatchRequest};
use super::super::types::error::ErrorBody;
use super::check::ENDPOINTS;
use super::state::Batch;
use super::store::OUTPUTS;
use http::error::{ApiError, Kind, quoted};
use http::fields::Fields;
use http::json::JsonBody;
use http::state::off_loop;
use http::tenant::Tenant;

/// The default and the largest number of batches per page.
const PAGE: (usize, usize) = (20, 100);
const DAY: u64 = 86400;
/// The longest completion window [s].
const MAX_WINDOW: u64 = 30 * DAY;
/// The shortest and the longest time until an output file expires [s].
const EXPIRY: std::ops::RangeInclusive<i64> = 3600..=30 * DAY as i64;

/// Run a file of requests
///
/// The whole input is checked before anything runs. Its lines then run at the lowest priority, within the limits of the key.
#[utoipa::path(post, path = "/v1/batches", operation_id = "createBatch", tag = "files", request_body = BatchRequest, responses(
    (status = 200, description = "the batch, before its input is checked", body = BatchObject),
    (status = 400, description = "a field is wrong, the file does not exist, or the server holds too many files", body = ErrorBody),
    (status = 429, description = "too many batches are unfinished", body = ErrorBody),
    (status = 507, description = "the disk is full", body = ErrorBody)))]
pub async fn create(storage: web::Data<LazyStorage>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let (tenant, storage) = (Tenant::of(&http), storage.into_inner());
    let keep = storage.storage.batch_days * DAY;
    let (mut batch, _held) = body.read(&BATCHES, move |value| parse(value, keep)).await?;
    (batch.tenant, batch.key) = (tenant.name().to_owned(), tenant.key_name().map(str::to_owned));
    let folder = storage.need().await?;
    let input = folder.files.get(tenant.name(), &batch.object.input_file_id).ok_or_else(|| {
        let message =
            format!("`input_file_id` names `{}`, which does not exist: upload it to /v1/files", quoted(&batch.object.input_file_id));
        ApiError::field("input_file_id", message)
    })?;
    if input.purpose != "batch" {
        let message = format!("`input_file_id` names a file for `{}`: upload it with the purpose `batch`", quoted(&input.purpose));
        return Err(ApiError::field("input_file_id", message));
    }
    // The batch keeps its input if the file is deleted, and its output becomes files, so both need room.
    let mut held = folder.files.reserve(tenant.name(), OUTPUTS)?;
    held.grow(input.bytes)?;
    let path = folder.files.path(&input.id);
    let batch = off_loop(move || folder.batches.create(batch, &path, held)).await??;
    storage.wake.notify_one();
    Ok(HttpResponse::Ok().json(batch.object))
}

/// Reads a request. `keep` is the default time until the output is deleted [s].
fn parse(body: &Value, keep: u64) -> Result<Batch, ApiError> {
    let fields = Fields::root(body)?;
    let text = |name: &str| fields.required(name, fields.string(name)?).map(str::to_owned);
    let (input_file_id, endpoint, window) = (text("input_file_id")?, text("endpoint")?, text("completion_window")?);
    if !ENDPOINTS.contains(&endpoint.as_str()) {
        return Err(fields.invalid("endpoint", format_args!("must be one of {}, not `{}`", ENDPOINTS.join(", "), quoted(&endpoint))));
    }
    let seconds = seconds_of(&window).ok_or_else(|| {
        fields.invalid("completion_window", format_args!("must be a time such as 24h, of 1 s to 30 d, not `{}`", quoted(&window)))
    })?;
    let keep_output = expiry(&fields)?.unwrap_or(keep);
    let created_at = now();
    let object = BatchObject {
        id: format!("batch_{}", Uuid::new_v4().simple()),
        object: "batch".into(),
        endpoint,
        input_file_id,
        completion_window: window,
        status: "validating".into(),
        created_at,
        expires_at: Some(created_at + seconds),
        metadata: fields.has("metadata").then(|| metadata(&fields)).transpose()?,
        ..BatchObject::default()
    };
    let (tenant, key, serial, ending) = (String::new(), None, 0, None);
    Ok(Batch { object, tenant, key, serial, keep_output, ending, output_id: new_id(), errors_id: new_id() })
}

fn expiry(fields: &Fields) -> Result<Option<u64>, ApiError> {
    let Some(value) = fields.get("output_expires_after") else { return Ok(None) };
    let inner = Fields::at(value, "output_expires_after")?;
    match inner.required("anchor", inner.string("anchor")?)? {
        "created_at" => {}
        other => return Err(inner.invalid("anchor", format_args!("must be created_at, not `{}`", quoted(other)))),
    }
    Ok(Some(inner.required("seconds", inner.integer("seconds", EXPIRY)?)? as u64))
}

/// Parses a time such as `24h` [s].
fn seconds_of(window: &str) -> Option<u64> {
    let (number, unit) = window.split_at_checked(window.len().checked_sub(1)?)?;
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => DAY,
        _ => return None,
    };
    let plain = number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse::<u64>().ok().filter(|_| plain)?.checked_mul(unit).filter(|seconds| (1..=MAX_WINDOW).contains(seconds))
}

/// List the batches
#[utoipa::path(get, path = "/v1/batches", operation_id = "listBatches", tag = "files",
    params(("after" = Option<String>, Query, description = "the id of the previous page's last batch"),
        ("limit" = Option<u32>, Query, description = "the page size, from 1 to 100"),
        ("order" = Option<String>, Query, description = "asc or desc by time; the default is desc")),
    responses(
        (status = 200, description = "a page of batches", body = Page<BatchObject>),
        (status = 400, description = "a parameter is wrong", body = ErrorBody)))]
pub async fn list(storage: web::Data<LazyStorage>, http: HttpRequest) -> Result<HttpResponse, ApiError> {
    let query = Query::of(&http, PAGE, &[])?;
    let folder = storage.into_inner().need().await?;
    let batches = folder.batches.list(Tenant::of(&http).name()).into_iter().map(|batch| batch.object).collect();
    Ok(HttpResponse::Ok().json(query.page(batches, |batch: &BatchObject| batch.id.clone())?))
}

/// Returns the batch that a request names, if it belongs to the request's tenant.
async fn found(storage: Arc<LazyStorage>, http: &HttpRequest) -> Result<(Arc<StorageFolder>, Batch), ApiError> {
    let id = http.match_info().query("id");
    let folder = storage.need().await?;
    let batch = folder.batches.get(id).filter(|batch| batch.tenant == Tenant::of(http).name());
    let batch =
        batch.ok_or_else(|| ApiError::new(Kind::NotFound, format!("the batch `{}` does not exist", quoted(id))).with_param("id"))?;
    Ok((folder, batch))
}

/// Describe a batch
#[utoipa::path(get, path = "/v1/batches/{id}", operation_id = "retrieveBatch", tag = "files",
    params(("id" = String, Path, description = "the id of the batch")),
    responses(
        (status = 200, description = "the batch", body = BatchObject),
        (status = 404, description = "not found", body = ErrorBody)))]
pub async fn retrieve(storage: web::Data<LazyStorage>, http: HttpRequest) -> Result<HttpResponse, ApiError> {
    Ok(HttpResponse::Ok().json(found(storage.into_inner(), &http).await?.1.object))
}

/// Cancel a batch
///
/// Running lines are dropped. The answers so far become the batch's output file.
#[utoipa::path(post, path = "/v1/batches/{id}/cancel", operation_id = "cancelBatch", tag = "files",
    params(("id" = String, Path, description = "the id of the batch")),
    responses(
        (status = 200, description = "the batch, which is being cancelled", body = BatchObject),
        (status = 400, description = "the batch has ended", body = ErrorBody),
        (status = 404, description = "not found", body = ErrorBody)))]
pub async fn cancel(storage: web::Data<LazyStorage>, http: HttpRequest) -> Result<HttpResponse, ApiError> {
    let storage = storage.into_inner();
    let (folder, batch) = found(storage.clone(), &http).await?;
    let id = batch.object.id.clone();
    let change = move |batch: &mut Batch| {
        let may = batch.ending.is_none() && !batch.has_ended();
        if may {
            batch.cancel();
        }
        may
    };
    let (of_change, of_id) = (folder.clone(), id.clone());
    let changed = off_loop(move || of_change.batches.change(&of_id, change)).await?;
    let batch = changed.map_err(|error| disk::refused(&error, "cancelling the batch"))?.unwrap_or(batch);
    if batch.object.cancelling_at.is_none() {
        let message = format!("the batch `{id}` is {} and cannot be cancelled", batch.object.status);
        return Err(ApiError::new(Kind::InvalidValue, message).with_param("id"));
    }
    folder.batches.cancelled.notify_waiters();
    storage.wake.notify_one();
    Ok(HttpResponse::Ok().json(batch.object))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_numbers_with_a_unit() {
        assert_eq!(["24h", "5s", "90m", "30d"].map(seconds_of), [Some(86400), Some(5), Some(5400), Some(MAX_WINDOW)]);
        for bad in ["", "h", "24", "0s", "31d", "-1h", "+1h", "1.5h", "24 h", "99999999999999999999d", "5µ"] {
            assert_eq!(seconds_of(bad), None, "{bad}");
        }
    }
}

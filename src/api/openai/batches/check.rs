//! The check of a batch's input, all of it before anything runs.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use super::super::conversations::any_item;
use super::super::convert::{chat, completions, embeddings, responses, schemas};
use super::super::types::batches::BatchError;
use super::lines::{Lines, Raw};
use config::Limits;
use http::error::{ApiError, quoted};
use http::field_schema::FieldSchema;
use http::fields::Fields;
use http::parse::{Meter, parse};
use http::tenant::Tenant;
use registry::Registry;

/// The endpoints that a batch may be for.
pub const ENDPOINTS: [&str; 4] = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"];
/// The most errors that are listed. A last entry tells how many more there are.
const MAX_ERRORS: usize = 100;
const MAX_CUSTOM_ID: usize = 512;
/// The largest weight of a line's tree, in lines of the largest size.
const MAX_WEIGHT: usize = 8;
const FIELDS: [&str; 4] = ["custom_id", "method", "url", "body"];

/// What lines are checked against.
pub struct Check<'a> {
    pub endpoint: &'a str,
    pub limits: &'a Limits,
    pub registry: &'a Registry,
    pub tenant: &'a Tenant,
    pub max_lines: usize,
    /// The server ends.
    pub stop: &'a AtomicBool,
}

fn of_file(code: &str, message: String) -> BatchError {
    BatchError { code: code.into(), message, param: None, line: None }
}

fn of_line(number: usize, code: &str, error: ApiError) -> BatchError {
    BatchError { code: code.into(), message: error.message, param: error.param, line: Some(number) }
}

impl Check<'_> {
    /// The number of lines, or what is wrong with them. `None`: the server ends first.
    pub fn file(&self, path: &Path) -> std::io::Result<Option<Result<usize, Vec<BatchError>>>> {
        let mut lines = Lines::open(path, self.limits.max_body_bytes)?;
        let (mut ids, mut errors, mut num_errors, mut count) = (HashSet::new(), Vec::new(), 0, 0);
        while let Some(raw) = lines.next()? {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            count += 1;
            if count > self.max_lines {
                let most = self.max_lines;
                let message = format!("the file has more than {most} lines (storage.max_batch_lines): make several batches of it");
                return Ok(Some(Err(vec![of_file("too_many_tasks", message)])));
            }
            if let Err(error) = self.line(&raw, &mut ids) {
                num_errors += 1;
                if errors.len() < MAX_ERRORS {
                    errors.push(error);
                }
            }
        }
        if count == 0 {
            errors.push(of_file("empty_file", "the file has no lines: each holds one request".into()));
        }
        if num_errors > MAX_ERRORS {
            errors.push(of_file("too_many_errors", format!("{} more lines are wrong", num_errors - MAX_ERRORS)));
        }
        Ok(Some(if errors.is_empty() { Ok(count) } else { Err(errors) }))
    }

    fn line(&self, raw: &Raw, ids: &mut HashSet<String>) -> Result<(), BatchError> {
        let most = self.limits.max_body_bytes;
        if raw.is_too_long {
            let error = ApiError::field("body", format!("the line has more than {most} bytes (limits.max_body_bytes)"));
            return Err(of_line(raw.number, "line_too_long", ApiError { param: None, ..error }));
        }
        let value = parse(&raw.bytes, &Meter::new(MAX_WEIGHT * most, &mut |_| Ok(())));
        let mut value = value.map_err(|error| of_line(raw.number, "invalid_json_line", error))?;
        let fields = Fields::root(&value).map_err(|error| of_line(raw.number, "invalid_json_line", error))?;
        let id = self.head(&fields, &value).map_err(|(code, error)| of_line(raw.number, code, error))?;
        if !ids.insert(id.to_owned()) {
            let error = fields.invalid("custom_id", format_args!("`{}` stands in an earlier line, too: it must be unique", quoted(id)));
            return Err(of_line(raw.number, "duplicate_custom_id", error));
        }
        self.body(value["body"].take()).map_err(|error| {
            let param = error.param.as_ref().map_or_else(|| "body".into(), |param| format!("body.{param}"));
            let code = error.kind.code();
            of_line(raw.number, code, error.with_param(param))
        })
    }

    /// The id of a line, which has a body.
    fn head<'v>(&self, fields: &Fields<'v>, value: &'v Value) -> Result<&'v str, (&'static str, ApiError)> {
        let wrong = |error| ("invalid_value", error);
        if let Some(name) = value.as_object().into_iter().flat_map(|map| map.keys()).find(|name| !FIELDS.contains(&name.as_str())) {
            let error = ApiError::field(name, format!("`{}` is not known: a line has {}", quoted(name), FIELDS.join(", ")));
            return Err(("unknown_parameter", error));
        }
        for name in FIELDS {
            fields.required(name, fields.get(name)).map_err(|error| ("missing_required_parameter", error))?;
        }
        let id = fields.string("custom_id").map_err(wrong)?.unwrap_or_default();
        if id.is_empty() || id.len() > MAX_CUSTOM_ID {
            return Err(wrong(fields.invalid("custom_id", format_args!("must have 1 to {MAX_CUSTOM_ID} bytes"))));
        }
        let method = fields.string("method").map_err(wrong)?.unwrap_or_default();
        if method != "POST" {
            return Err(("invalid_method", fields.invalid("method", format_args!("must be POST, not `{}`", quoted(method)))));
        }
        let url = fields.string("url").map_err(wrong)?.unwrap_or_default();
        if url != self.endpoint {
            let error = fields.invalid("url", format_args!("must be {}, as the batch's endpoint, not `{}`", self.endpoint, quoted(url)));
            return Err(("invalid_url", error));
        }
        fields.object("body").map_err(wrong)?;
        Ok(id)
    }

    /// Reads a body as the endpoint would.
    fn body(&self, mut body: Value) -> Result<(), ApiError> {
        let schema: &FieldSchema = match self.endpoint {
            "/v1/chat/completions" => &schemas::CHATS,
            "/v1/completions" => &schemas::COMPLETIONS,
            "/v1/embeddings" => &schemas::EMBEDDINGS,
            _ => &schemas::RESPONSES,
        };
        // They are named when the line runs.
        schema.admit(&mut body, self.limits.unknown_fields)?;
        let body = &body;
        let fields = Fields::root(body)?;
        for name in ["stream", "background"] {
            if fields.bool(name).is_ok_and(|value| value == Some(true)) {
                return Err(fields.invalid(name, "must not be true in a batch, whose answers are whole"));
            }
        }
        let model = match self.endpoint {
            "/v1/chat/completions" => chat::parse(body, self.limits)?.model,
            "/v1/completions" => completions::parse(body, self.limits)?.model,
            "/v1/embeddings" => embeddings::parse(body)?.model,
            // Whether what it refers to is there is known when it runs.
            _ => responses::parse(body, self.limits, &any_item)?.model,
        };
        self.tenant.check_model(self.registry, &model)
    }
}

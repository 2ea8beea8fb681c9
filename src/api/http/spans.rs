//! OpenTelemetry spans of a request, made when it ends: one for the server, and below it one each for the queue, prefill and decode of
//! every generation. Without a tracer (`traces.endpoint`), none are made.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use opentelemetry::trace::{
    Span, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer, TracerProvider,
};
use opentelemetry::{Context, KeyValue, global};

use super::request_record::{Outcome, RequestRecord};
use serving::{Account, Counts};

/// The most generations of one request that get spans.
const MAX_GENERATIONS: usize = 16;

static ON: AtomicBool = AtomicBool::new(false);

/// Enables spans, which go to the process's tracer.
pub fn switch_on() {
    ON.store(true, Ordering::Relaxed);
}

/// Makes the spans of a request that ends `now`. Returns the id of its trace, unless the sampler drops the trace.
pub fn write(record: &RequestRecord, now: Instant) -> Option<String> {
    if !ON.load(Ordering::Relaxed) {
        return None;
    }
    let tracer = global::tracer_provider().tracer("penstock");
    let at = |moment: Instant| record.started_at + moment.saturating_duration_since(record.started);
    let route = record.route.as_deref().unwrap_or("unmatched");
    let builder = tracer
        .span_builder(format!("{} {route}", record.method))
        .with_kind(SpanKind::Server)
        .with_start_time(record.started_at)
        .with_attributes(attributes(record));
    let parent = record.traceparent.as_deref().and_then(remote_parent).map(|parent| Context::new().with_remote_span_context(parent));
    let mut span = builder.start_with_context(&tracer, &parent.unwrap_or_default());
    if record.outcome() == Outcome::Failed {
        span.set_status(Status::error(record.reason().unwrap_or_default()));
    }
    let context = span.span_context().clone();
    span.end_with_timestamp(at(now));
    if !context.is_sampled() {
        return None;
    }
    let below = Context::new().with_remote_span_context(context.clone());
    for (index, account) in record.ledger.accounts().iter().take(MAX_GENERATIONS).enumerate() {
        for Phase { name, start, end } in phases(account, now) {
            let attributes = attributes_of(name, index, account);
            let builder = tracer.span_builder(name).with_start_time(at(start)).with_attributes(attributes);
            builder.start_with_context(&tracer, &below).end_with_timestamp(at(end));
        }
    }
    Some(context.trace_id().to_string())
}

/// A phase of a generation.
#[derive(Debug, PartialEq)]
struct Phase {
    name: &'static str,
    start: Instant,
    end: Instant,
}

/// Returns the phases that a generation has begun. A phase without an end is given `now`.
fn phases(account: &Account, now: Instant) -> Vec<Phase> {
    let (arrived, admitted, prefilled, last) = (account.arrived(), account.admitted(), account.prefilled(), account.last());
    let phase = |name, start: Option<Instant>, end: Option<Instant>| Some(Phase { name, start: start?, end: end.unwrap_or(now) });
    let decodes = prefilled.filter(|_| account.generated_tokens() > 0);
    [phase("queue", arrived, admitted), phase("prefill", admitted, prefilled), phase("decode", decodes, last)]
        .into_iter()
        .flatten()
        .collect()
}

fn attributes_of(phase: &str, index: usize, account: &Account) -> Vec<KeyValue> {
    let mut attributes = vec![KeyValue::new("penstock.generation", index as i64)];
    match phase {
        "prefill" => {
            attributes.push(KeyValue::new("gen_ai.usage.input_tokens", i64::from(account.prompt_tokens())));
            attributes.push(KeyValue::new("penstock.cached_tokens", i64::from(account.cached_tokens())));
        }
        "decode" => attributes.push(KeyValue::new("gen_ai.usage.output_tokens", i64::from(account.generated_tokens()))),
        _ => {}
    }
    attributes
}

/// Returns the attributes of the server's span, named by OpenTelemetry's conventions where these have a name.
fn attributes(record: &RequestRecord) -> Vec<KeyValue> {
    let mut attributes = vec![
        KeyValue::new("http.request.method", record.method.clone()),
        KeyValue::new("url.path", record.path.clone()),
        KeyValue::new("http.response.status_code", i64::from(record.status())),
        KeyValue::new("penstock.outcome", record.outcome().name()),
        KeyValue::new("penstock.request.id", record.id.clone()),
    ];
    let texts = [
        ("http.route", record.route.clone()),
        ("gen_ai.request.model", record.model.clone()),
        ("penstock.tenant", record.tenant.clone()),
        ("gen_ai.response.finish_reasons", record.finish()),
        ("error.type", record.reason().map(str::to_owned)),
        ("penstock.refused_field", record.refusal.as_ref().and_then(|refusal| refusal.field.clone())),
    ];
    attributes.extend(texts.into_iter().filter_map(|(key, text)| Some(KeyValue::new(key, text?))));
    if let Some(Counts { prompt, cached, generated, .. }) = record.counts() {
        let counts = [("gen_ai.usage.input_tokens", prompt), ("gen_ai.usage.output_tokens", generated), ("penstock.cached_tokens", cached)];
        attributes.extend(counts.map(|(key, count)| KeyValue::new(key, i64::from(count))));
    }
    attributes
}

/// Returns the client's span, if the `traceparent` header follows version 00 of the W3C's format, or a later version that begins like it.
fn remote_parent(header: &str) -> Option<SpanContext> {
    let mut parts = header.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |text: &str, len| text.len() == len && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let known = is_hex(version, 2) && version != "ff" && (version != "00" || parts.next().is_none());
    if !known || !is_hex(trace, 32) || !is_hex(span, 16) || !is_hex(flags, 2) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let context = SpanContext::new(TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?, flags, true, TraceState::default());
    context.is_valid().then_some(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_well_formed_traceparent_is_followed() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = remote_parent(good).unwrap();
        assert_eq!((context.trace_id().to_string().as_str(), context.is_sampled()), ("0af7651916cd43dd8448eb211c80319c", true));
        assert!(!remote_parent(&good.replace("-01", "-00")).unwrap().is_sampled());
        assert!(remote_parent(&good.replacen("00", "01", 1)).is_some_and(|context| context.is_sampled()), "a later version");
        for bad in ["", "00", "hello", &good.replacen("00", "ff", 1), &good.to_uppercase(), &format!("{good}-x"), &good.replace('b', "g")] {
            assert!(remote_parent(bad).is_none(), "{bad}");
        }
        assert!(remote_parent("00-00000000000000000000000000000000-b7ad6b7169203331-01").is_none());
        assert!(remote_parent("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01").is_none());
    }

    #[test]
    fn a_generation_that_the_engine_never_saw_has_no_phases() {
        assert_eq!(phases(&Account::default(), Instant::now()), []);
    }
}

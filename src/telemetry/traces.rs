//! Sends OpenTelemetry spans to a collector, as OTLP over HTTP. A separate thread sends them in batches. Spans that do not fit its queue or
//! that the collector refuses are lost, and no request waits for them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry::global;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use ureq::Agent;

use config::Traces;

/// The most that is read of a collector's answer [bytes].
const MAX_ANSWER: u64 = 1 << 20;
/// Time for sending the last spans when the process ends.
const LAST: Duration = Duration::from_secs(3);

/// Sends spans, until dropped.
pub struct Sending(SdkTracerProvider);

impl Drop for Sending {
    fn drop(&mut self) {
        // Spans that are not sent by then are lost, and counted by the client.
        let _ = self.0.shutdown_with_timeout(LAST);
    }
}

/// Starts sending spans to the configured endpoint. None if no endpoint is configured.
pub fn start(traces: &Traces) -> anyhow::Result<Option<Sending>> {
    if traces.endpoint.is_empty() {
        return Ok(None);
    }
    let timeout = Duration::from_secs(traces.timeout_seconds);
    let headers: HashMap<_, _> = traces.header_pairs().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Client::new(timeout, traces.endpoint.clone()))
        .with_endpoint(&traces.endpoint)
        .with_timeout(timeout)
        .with_headers(headers)
        .build()
        .map_err(|error| anyhow::anyhow!("traces.endpoint: {error}"))?;
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(traces.sample))))
        .with_resource(resource(&traces.service))
        .build();
    global::set_tracer_provider(provider.clone());
    tracing::info!(endpoint = traces.endpoint, sample = traces.sample, "sending spans of requests");
    Ok(Some(Sending(provider)))
}

fn resource(service: &str) -> Resource {
    let version = opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    Resource::builder_empty().with_service_name(service.to_owned()).with_attribute(version).build()
}

/// An HTTP client for the collector. It blocks, and only the thread that sends spans calls it.
#[derive(Debug)]
struct Client {
    agent: Agent,
    endpoint: String,
    /// Whether the last batch failed. The log reports changes of this, not every batch.
    fails: AtomicBool,
}

impl Client {
    fn new(timeout: Duration, endpoint: String) -> Self {
        let config = Agent::config_builder().timeout_global(Some(timeout)).http_status_as_error(false).max_redirects(0).build();
        Self { agent: config.into(), endpoint, fails: AtomicBool::new(false) }
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let answer = self.agent.run(request.map(|body| body.to_vec()))?;
        let (head, mut body) = answer.into_parts();
        let body = body.with_config().limit(MAX_ANSWER).read_to_vec()?;
        Ok(Response::from_parts(head, body.into()))
    }

    fn note(&self, fault: Option<String>) {
        let failed = self.fails.swap(fault.is_some(), Ordering::Relaxed);
        match fault {
            Some(fault) => {
                metrics::trace_exports_failed().inc();
                if !failed {
                    tracing::warn!(endpoint = self.endpoint, "spans are lost: {}", fault.escape_debug());
                }
            }
            None if failed => tracing::info!(endpoint = self.endpoint, "spans are sent again"),
            None => {}
        }
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = self.send(request);
        self.note(match &sent {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("the endpoint answers {}", answer.status())),
            Err(error) => Some(error.to_string()),
        });
        Ok(sent?)
    }
}

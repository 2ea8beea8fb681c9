//! The times at which a sequence arrived, started and got its tokens, for the model's latency metrics.

use std::sync::Arc;
use std::time::Instant;

use crate::progress::Progress;
use metrics::ModelMetrics;

#[derive(Debug)]
pub struct Timeline {
    /// The part that other threads may read.
    progress: Arc<Progress>,
    arrived: Instant,
    admitted: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    num_delivered: u32,
}

impl Timeline {
    pub fn new(num_prompt: usize) -> Self {
        let progress = Arc::new(Progress::new(num_prompt));
        Self { arrived: progress.arrived(), progress, admitted: None, first_token: None, last_token: None, num_delivered: 0 }
    }

    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Records that the sequence starts to run. False if it resumes after a preemption.
    pub fn admit(&mut self, now: Instant, metrics: &ModelMetrics) -> bool {
        let is_first = self.admitted.is_none();
        if is_first {
            self.admitted = Some(now);
            self.progress.admit(now);
            metrics.request_queue_time_seconds.observe((now - self.arrived).as_secs_f64());
        }
        is_first
    }

    /// Records the end of the prefill: the first token, or a stop before any token. True the first time.
    pub fn end_prefill(&mut self, now: Instant, metrics: &ModelMetrics) -> bool {
        if self.first_token.is_some() {
            return false;
        }
        self.first_token = Some(now);
        self.progress.end_prefill(now);
        metrics.time_to_first_token_seconds.observe((now - self.arrived).as_secs_f64());
        if let Some(admitted) = self.admitted {
            metrics.request_prefill_time_seconds.observe((now - admitted).as_secs_f64());
        }
        true
    }

    /// Counts and records the delivery of a token. False for the first token, which has no gap before it.
    pub fn deliver(&mut self, now: Instant, metrics: &ModelMetrics) -> bool {
        self.num_delivered += 1;
        metrics.generation_tokens_total.inc();
        let last = self.last_token.replace(now);
        self.progress.deliver(now);
        if let Some(last) = last {
            metrics.inter_token_latency_seconds.observe((now - last).as_secs_f64());
        }
        last.is_some()
    }

    pub fn finish(&self, now: Instant, metrics: &ModelMetrics) {
        self.progress.deliver(now);
        metrics.e2e_request_latency_seconds.observe((now - self.arrived).as_secs_f64());
        let first = self.first_token.unwrap_or(now);
        metrics.request_inference_time_seconds.observe((now - self.admitted.unwrap_or(self.arrived)).as_secs_f64());
        let num_gaps = self.num_delivered.saturating_sub(1);
        if let Some(last) = self.last_token.filter(|_| num_gaps > 0) {
            let mean = last.saturating_duration_since(first).as_secs_f64() / f64::from(num_gaps);
            metrics.request_time_per_output_token_seconds.observe(mean);
        }
        metrics.request_decode_time_seconds.observe((now - first).as_secs_f64());
    }
}

//! The access log: one line per request, written when the request ends.

use std::time::{Duration, Instant};

use tracing::field::display;

use super::error::Kind;
use super::request_record::{Outcome, RequestRecord};
use serving::{Counts, DraftCounts};

/// The longest text of a client that is logged whole. Longer ones are cut [characters].
const MAX_TEXT: usize = 200;

/// Writes one line. The log's format escapes client-supplied texts, which are recorded as strings. Other values come from closed sets or
/// are plain.
macro_rules! line {
    ($level:expr, $line:expr) => {
        tracing::event!(
            target: "penstock::access",
            $level,
            outcome = display($line.outcome.name()),
            status = $line.record.status(),
            method = display(&$line.record.method),
            path = $line.path,
            route = $line.record.route.as_deref().map(display),
            model = $line.record.model.as_deref().map(display),
            adapters = $line.record.adapters.as_deref().map(display),
            tenant = $line.record.tenant.as_deref(),
            reason = $line.record.reason().map(display),
            field = $line.field,
            ignored_fields = $line.record.ignored.list(),
            finish = $line.record.finish().map(display),
            prompt_tokens = $line.counts.map(|counts| counts.prompt),
            cached_tokens = $line.counts.map(|counts| counts.cached),
            generated_tokens = $line.counts.map(|counts| counts.generated),
            drafted_tokens = $line.drafts.map(|drafts| drafts.drafted),
            accepted_tokens = $line.drafts.map(|drafts| drafts.accepted),
            queue_ms = $line.record.queued($line.now).map(ms),
            ttft_ms = $line.record.time_to_first_token().map(ms),
            total_ms = ms($line.now.saturating_duration_since($line.record.started)),
            id = display(&$line.record.id),
            trace = $line.record.trace.as_deref().map(display),
            traceparent = $line.record.traceparent.as_deref().map(display),
            peer = display(&$line.record.peer),
        )
    };
}

/// Fields of the line that the record does not hold in the form that is logged.
struct AccessLine<'a> {
    record: &'a RequestRecord,
    outcome: Outcome,
    path: &'a str,
    field: Option<&'a str>,
    counts: Option<Counts>,
    /// None if nothing was drafted.
    drafts: Option<DraftCounts>,
    now: Instant,
}

/// Writes the line: at `debug` for probes, at `warn` if the request was refused or its response was cut, at `error` if the server was at
/// fault, else at `info`.
pub fn write(record: &RequestRecord, now: Instant) {
    let field = record.refusal.as_ref().and_then(|refusal| refusal.field.as_deref()).map(cut);
    let counts = record.counts();
    let drafts = counts.map(|counts| counts.drafts).filter(|drafts| drafts.drafted > 0);
    let line = AccessLine { record, outcome: record.outcome(), path: cut(&record.path), field, counts, drafts, now };
    match line.outcome {
        _ if record.is_probe => line!(tracing::Level::DEBUG, line),
        Outcome::Ok | Outcome::Left => line!(tracing::Level::INFO, line),
        Outcome::Refused | Outcome::Aborted => line!(tracing::Level::WARN, line),
        Outcome::Failed => line!(tracing::Level::ERROR, line),
    }
}

/// Writes the line of a request whose head could not be read.
pub fn write_unreadable(id: &str, kind: Kind, peer: &str) {
    let (outcome, status, reason) = (display(Outcome::Refused.name()), kind.status().as_u16(), display(kind.code()));
    tracing::warn!(target: "penstock::access", outcome, status, reason, id = display(id), peer = display(peer));
}

/// Converts a time to milliseconds, with one decimal.
fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}

fn cut(text: &str) -> &str {
    text.char_indices().nth(MAX_TEXT).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_one_digit_and_texts_an_end() {
        assert_eq!(ms(Duration::from_micros(12_345)), 12.3);
        assert_eq!(cut(&"ä".repeat(1000)).chars().count(), MAX_TEXT);
        assert_eq!(cut("ä"), "ä");
    }
}

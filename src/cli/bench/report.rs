//! The report of a benchmark, as JSON and as tables.

use outside::in_line;

use super::mixed::Loaded;
use crate::cli::output::{human_bytes, right_columns};

/// The measurements of a model, and the device that they were made on.
#[derive(Debug, serde::Serialize)]
pub struct Report {
    /// The model's name in its file.
    pub model: String,
    /// The name on the command line, without folder and suffix.
    pub name: String,
    /// `decode`, `context` or `mixed`.
    pub mode: &'static str,
    pub version: &'static str,
    pub backend: &'static str,
    pub device: String,
    /// How the KV cache stores keys and values.
    pub cache_type: &'static str,
    /// Tokens of each prompt. None if contexts are measured instead.
    pub prompt: Option<u32>,
    pub generated: u32,
    pub prefill_chunk: Option<u32>,
    /// The most rows per step of the scheduler.
    pub step_tokens: Option<usize>,
    pub seed: Option<u64>,
    /// All weights in the device's memory [bytes].
    pub weight_bytes: u64,
    /// Speed of copying the file to the device.
    pub load_gigabytes_per_second: Option<f64>,
    /// Speed of a copy within the device's memory, counting bytes read and written.
    pub copy_gigabytes_per_second: Option<f64>,
    /// Time of a step of one sequence that starts from the host, and of one in a loop on the device, if they were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loop_step_microseconds: Option<[f64; 2]>,
    /// Steps between two points where a loop may end. 0: there are no loops.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loop_turn: Option<usize>,
    pub rows: Vec<Row>,
}

#[derive(Debug, serde::Serialize)]
#[serde(untagged)]
pub enum Row {
    Steps(Measurement),
    Mixed(Loaded),
}

/// The medians of one measurement.
#[derive(Debug, serde::Serialize)]
pub struct Measurement {
    /// Tokens in the cache before the first step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<u32>,
    pub batch: u32,
    pub prefill_tokens_per_second: f64,
    pub decode_step_milliseconds: f64,
    pub decode_tokens_per_second: f64,
    /// Weights and KV cache that a step reads, divided by its time. GPUs only.
    pub decode_gigabytes_per_second: Option<f64>,
    /// The same, as a share of the copy speed.
    pub decode_bandwidth_share: Option<f64>,
}

pub fn text(reports: &[Report]) -> String {
    let mut text: String = reports.iter().map(head).collect();
    let named = reports.len() > 1;
    let mut cells = Vec::new();
    for report in reports {
        if cells.is_empty() {
            cells.push(titles(report, named));
        }
        for row in &report.rows {
            let name = named.then(|| report.name.clone());
            cells.push(name.into_iter().chain(values(row)).collect());
        }
    }
    text += &right_columns(&cells, usize::from(named));
    text
}

fn head(report: &Report) -> String {
    let Report { model, name, backend, device, weight_bytes, generated, .. } = report;
    let of = if model == name { String::new() } else { format!(" ({name})") };
    let named = format!("{model}{of}, {backend} backend on {device}");
    let mut text = format!("{}, {} of weights\n", in_line(&named), human_bytes(*weight_bytes));
    let (prompt, chunk) = (report.prompt.unwrap_or(0), report.prefill_chunk.unwrap_or(0));
    text += &match report.mode {
        "mixed" => {
            let rows = report.step_tokens.unwrap_or(0);
            format!("requests of {prompt} tokens with answers of {generated}, at most {rows} tokens per step\n")
        }
        "context" => format!("contexts in chunks of {chunk}, then {generated} decode steps\n"),
        _ => format!("prompts of {prompt} tokens in chunks of {chunk}, then {generated} decode steps\n"),
    };
    if let Some(load) = report.load_gigabytes_per_second {
        text += &format!("loaded at {load:.1} GB/s\n");
    }
    if let Some([from_host, in_loop]) = report.loop_step_microseconds {
        let runs = if report.loop_turn == Some(0) { "from the host" } else { "in loops" };
        text += &format!("a step of one sequence: {from_host:.1} µs from the host, {in_loop:.1} µs in a loop; steps run {runs}\n");
    }
    if let Some(copy) = report.copy_gigabytes_per_second {
        text += &format!("a copy within the device's memory: {copy:.0} GB/s\n");
    }
    text
}

fn titles(report: &Report, named: bool) -> Vec<String> {
    let model = named.then_some("model");
    let of_mode: &[&str] = match report.mode {
        "mixed" => &["at once", "output tok/s", "first ms p50", "p99", "between ms p50", "p99", "requests/s", "drafted", "right"],
        "context" => &["context", "batch", "prefill tok/s", "decode ms", "decode tok/s", "decode GB/s", "of copy"],
        _ => &["batch", "prefill tok/s", "decode ms", "decode tok/s", "decode GB/s", "of copy"],
    };
    model.into_iter().chain(of_mode.iter().copied()).map(str::to_owned).collect()
}

fn values(row: &Row) -> Vec<String> {
    let dash = || "-".to_owned();
    match row {
        Row::Steps(r) => {
            let steps = [
                r.batch.to_string(),
                format!("{:.1}", r.prefill_tokens_per_second),
                format!("{:.4}", r.decode_step_milliseconds),
                format!("{:.1}", r.decode_tokens_per_second),
                r.decode_gigabytes_per_second.map_or_else(dash, |read| format!("{read:.0}")),
                r.decode_bandwidth_share.map_or_else(dash, |share| format!("{:.1} %", share * 100.0)),
            ];
            r.context.map(|context| context.to_string()).into_iter().chain(steps).collect()
        }
        Row::Mixed(r) => {
            let (first, between) = (r.first_token_milliseconds, r.between_tokens_milliseconds);
            vec![
                r.at_once.to_string(),
                format!("{:.1}", r.output_tokens_per_second),
                format!("{:.1}", first.p50),
                format!("{:.1}", first.p99),
                format!("{:.2}", between.p50),
                format!("{:.2}", between.p99),
                format!("{:.2}", r.requests_per_second),
                r.drafted_tokens.map_or_else(dash, |[drafted, _]| drafted.to_string()),
                r.drafted_tokens.map_or_else(dash, |[_, right]| right.to_string()),
            ]
        }
    }
}

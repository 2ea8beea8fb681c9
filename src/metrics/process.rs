//! Memory, descriptors, threads and processor time of this process, under the names of Prometheus' own clients. The values are read at each
//! scrape. Values that the system does not provide are left out.

use std::collections::HashMap;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge};

/// Clock ticks per second in `/proc`, which the kernel fixes for programs.
const TICKS: f64 = 100.0;

pub struct Process {
    cpu: Counter,
    gauges: Vec<(&'static str, Gauge)>,
}

impl Process {
    pub fn new() -> Self {
        let gauge = |name, help| (name, Gauge::new(name, help).expect("a valid metric name"));
        Self {
            cpu: Counter::new("process_cpu_seconds_total", "Processor time used, of all threads").expect("a valid metric name"),
            gauges: vec![
                gauge("process_resident_memory_bytes", "Memory of the process that is not swapped out, mapped files included"),
                gauge("process_anonymous_memory_bytes", "Memory of the process that is neither swapped out nor a mapped file"),
                gauge("process_virtual_memory_bytes", "Address space of the process"),
                gauge("process_open_fds", "Open file descriptors"),
                gauge("process_max_fds", "The most file descriptors that may be open"),
                gauge("process_threads", "Threads of the process"),
                gauge("process_start_time_seconds", "When the process was started, in Unix time"),
            ],
        }
    }

    fn measure(&self) -> HashMap<&'static str, f64> {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{name}")).unwrap_or_default();
        let (status, limits, stat, system) = (read("self/status"), read("self/limits"), read("self/stat"), read("stat"));
        let bytes = |key: &str| Some(1024.0 * number(field(&status, key)?.split_whitespace().next()?)?);
        // The process name, which precedes the other fields, may hold spaces and brackets.
        let times: Vec<&str> = stat.rsplit_once(')').map_or(Vec::new(), |(_, rest)| rest.split_whitespace().collect());
        let ticks = |index: usize| number(times.get(index)?);
        let descriptors = std::fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count().saturating_sub(1) as f64);
        let boot = || number(system.lines().find_map(|line| line.strip_prefix("btime "))?.trim());
        let started = || Some(boot()? + ticks(19)? / TICKS);
        let cpu = || Some((ticks(11)? + ticks(12)?) / TICKS);
        let values = [
            ("process_cpu_seconds_total", cpu()),
            ("process_resident_memory_bytes", bytes("VmRSS:")),
            ("process_anonymous_memory_bytes", bytes("RssAnon:")),
            ("process_virtual_memory_bytes", bytes("VmSize:")),
            ("process_open_fds", descriptors),
            ("process_max_fds", field(&limits, "Max open files").and_then(|rest| number(rest.split_whitespace().next()?))),
            ("process_threads", field(&status, "Threads:").and_then(|rest| number(rest.trim()))),
            ("process_start_time_seconds", started()),
        ];
        values.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key))
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok()
}

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        self.cpu.desc().into_iter().chain(self.gauges.iter().flat_map(|(_, gauge)| gauge.desc())).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let values = self.measure();
        let mut families = Vec::with_capacity(values.len());
        if let Some(&seconds) = values.get("process_cpu_seconds_total") {
            self.cpu.inc_by((seconds - self.cpu.get()).max(0.0));
            families.extend(self.cpu.collect());
        }
        for (name, gauge) in &self.gauges {
            if let Some(&value) = values.get(name) {
                gauge.set(value);
                families.extend(gauge.collect());
            }
        }
        families
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_knows_itself() {
        let measured = Process::new().measure();
        let at_least = |name, least| assert!(measured[name] >= least, "{name}: {:?}", measured[name]);
        at_least("process_resident_memory_bytes", 1e6);
        at_least("process_virtual_memory_bytes", measured["process_resident_memory_bytes"]);
        at_least("process_open_fds", 3.0);
        at_least("process_max_fds", measured["process_open_fds"]);
        at_least("process_threads", 1.0);
        at_least("process_start_time_seconds", 1.6e9);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        assert!(measured["process_start_time_seconds"] <= now + 1.0);
        assert_eq!(measured.len(), 8, "{measured:?}");
    }
}

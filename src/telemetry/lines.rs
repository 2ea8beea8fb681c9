//! Writes log lines to stderr on a separate thread, so that logging neither blocks on stderr nor fails with it.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use outside::{in_json, visible};

use super::shorten::shortened;

/// The most lines that wait for stderr. Further lines are lost and counted.
const MAX_WAITING: usize = 4096;
/// The longest line. Longer ones are cut, so that waiting lines take bounded memory [bytes].
const MAX_LINE: usize = 8 << 10;
/// The longest time that [`flush`] takes.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The process's log, once something has used it.
static LOG: OnceLock<LogWriter> = OnceLock::new();

/// Queues a line for stderr. Never blocks.
pub fn print(text: &str) {
    log().take(format!("{}\n", visible(text)).into_bytes());
}

/// Waits until every waiting line is written, but at most for [`FLUSH_TIMEOUT`], because the reader of stderr may never read.
pub fn flush() {
    if let Some(log) = LOG.get() {
        log.flush(FLUSH_TIMEOUT);
    }
}

fn log() -> &'static LogWriter {
    LOG.get_or_init(|| LogWriter::to(std::io::stderr()))
}

enum QueueEntry {
    Line(Vec<u8>),
    /// Dropping the sender signals that every line before this entry is written.
    Flush(SyncSender<()>),
}

/// A queue of lines for an output that may be slow or broken.
pub struct LogWriter {
    queue: SyncSender<QueueEntry>,
}

impl LogWriter {
    /// Starts the thread that writes to `output`. If no thread can be started, every line is lost.
    fn to(output: impl Write + Send + 'static) -> Self {
        let (queue, entries) = sync_channel(MAX_WAITING);
        let _ = std::thread::Builder::new().name("log".into()).spawn(|| write(entries, output));
        Self { queue }
    }

    fn take(&self, mut line: Vec<u8>) {
        if line.len() > MAX_LINE {
            line.truncate(MAX_LINE);
            line.extend_from_slice("…\n".as_bytes());
        }
        if self.queue.try_send(QueueEntry::Line(line)).is_err() {
            metrics::log_lines_lost().inc();
        }
    }

    /// Returns whether every line is written.
    fn flush(&self, timeout: Duration) -> bool {
        let (done, wait) = sync_channel(0);
        let (end, mut entry) = (Instant::now() + timeout, QueueEntry::Flush(done));
        while let Err(error) = self.queue.try_send(entry) {
            match error {
                TrySendError::Full(back) if Instant::now() < end => entry = back,
                _ => return false,
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        wait.recv_timeout(end.saturating_duration_since(Instant::now())) == Err(RecvTimeoutError::Disconnected)
    }
}

fn write(entries: Receiver<QueueEntry>, mut output: impl Write) {
    for entry in entries {
        match entry {
            QueueEntry::Line(line) if output.write_all(&line).is_err() => metrics::log_lines_lost().inc(),
            QueueEntry::Line(_) => {}
            QueueEntry::Flush(done) => drop(done),
        }
    }
}

/// The format of a log line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    /// With the colours of `tracing-subscriber`, which escapes ESC in the texts of others itself.
    Coloured,
    /// An object, which must stay one if it is too long.
    Json,
}

impl Form {
    /// The line without what could control a terminal, or show another text than there is.
    fn safe(self, line: &str) -> String {
        match self {
            Self::Plain => visible(line).into_owned(),
            Self::Coloured => line.split('\x1b').map(visible).collect::<Vec<_>>().join("\x1b"),
            Self::Json => in_json(line).into_owned(),
        }
    }
}

/// Receives one event of `tracing`, as one write.
pub struct Line {
    log: &'static LogWriter,
    form: Form,
}

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let safe = self.form.safe(&String::from_utf8_lossy(line)).into_bytes();
        let kept = match self.form == Form::Json && safe.len() > MAX_LINE {
            true => shortened(&safe, MAX_LINE),
            false => safe,
        };
        self.log.take(kept);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A writer for a line of text from `tracing`.
pub fn text() -> Line {
    Line { log: log(), form: Form::Plain }
}

/// As [`text`], for lines with colours.
pub fn coloured() -> Line {
    Line { log: log(), form: Form::Coloured }
}

/// A writer for a line of JSON from `tracing`.
pub fn json() -> Line {
    Line { log: log(), form: Form::Json }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Sender;

    use super::*;

    /// Test double: each write waits for permission, or fails if there will be none.
    struct Gate {
        open: Receiver<()>,
        written: Sender<Vec<u8>>,
    }

    impl Write for Gate {
        fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
            self.open.recv().map_err(|_| std::io::ErrorKind::BrokenPipe)?;
            self.written.send(text.to_vec()).map_err(|_| std::io::ErrorKind::BrokenPipe)?;
            Ok(text.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn texts_of_others_in_a_line_are_harmless() {
        let line = "\x1b[31mERROR\x1b[0m a\u{7}\r\u{202e}b\n";
        assert_eq!(Form::Plain.safe(line), "\\u{1b}[31mERROR\\u{1b}[0m a\\u{7}\\r\\u{202e}b\n");
        assert_eq!(Form::Coloured.safe(line), "\x1b[31mERROR\x1b[0m a\\u{7}\\r\\u{202e}b\n");
        assert_eq!(Form::Json.safe("{\"a\": \"\u{202e}\u{9b}\"}\n"), "{\"a\": \"\\u202e\\u009b\"}\n");
    }

    /// A single test, because the counter belongs to the process.
    #[test]
    fn an_output_that_is_stuck_or_broken_costs_lines_and_no_time() {
        let (open, gate) = std::sync::mpsc::channel();
        let (written, lines) = std::sync::mpsc::channel();
        let (log, lost, start) = (LogWriter::to(Gate { open: gate, written }), metrics::log_lines_lost(), Instant::now());
        (0..MAX_WAITING + 100).for_each(|number| log.take(format!("{number}\n").into_bytes()));
        assert!((99..=100).contains(&lost.get()), "the thread may hold one line: {}", lost.get());
        assert!(!log.flush(Duration::from_millis(50)), "nothing is written yet");
        assert!(start.elapsed() < Duration::from_secs(5));

        (0..MAX_WAITING + 1).for_each(|_| open.send(()).unwrap());
        assert!(log.flush(Duration::from_secs(10)));
        assert_eq!((lines.recv().unwrap(), lines.recv().unwrap()), (b"0\n".to_vec(), b"1\n".to_vec()), "in order");

        open.send(()).unwrap();
        open.send(()).unwrap();
        lines.try_iter().for_each(drop);
        log.take(vec![b'x'; 1 << 20]);
        assert!(log.flush(Duration::from_secs(10)));
        assert_eq!(lines.recv().unwrap().len(), MAX_LINE + "…\n".len(), "a long line is cut");

        let before = lost.get();
        drop(open);
        (0..5).for_each(|_| log.take(b"lost\n".to_vec()));
        assert!(log.flush(Duration::from_secs(10)), "a broken output does not stop the thread");
        assert!(lost.get() - before >= 3, "at most two writes were still allowed");
    }
}

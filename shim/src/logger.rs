//! Log lines in logfmt to the `log` FIFO that containerd keeps open in the bundle.
//!
//! Writing never blocks the shim: lines go into a bounded channel, a thread of its own writes them, and what does not fit
//! is counted. A panic writes its line directly before the process ends. Options may ask for a file as well.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::SystemTime;

use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};

/// Lines that wait while nobody reads.
const RING: usize = 1024;

/// What may change while the program runs.
static LEVEL: AtomicUsize = AtomicUsize::new(INFO);
static ALSO_TO: Mutex<Option<File>> = Mutex::new(None);
/// [`rank`] of the level that holds unless another is set.
const INFO: usize = 2;

struct Logger {
    lines: SyncSender<String>,
    dropped: AtomicU64,
    context: String,
}

/// Sends the program's log to `fifo` from now on, and its last words too.
pub(crate) fn install(fifo: &Path, level: Level, namespace: &str, id: &str) {
    let (lines, waiting) = sync_channel(RING);
    let mut context = String::new();
    pair(&mut context, "namespace", namespace);
    pair(&mut context, "id", id);
    let last_words = (fifo.to_owned(), context.clone());
    LEVEL.store(rank(level), Ordering::Relaxed);
    let logger = Logger {
        lines,
        dropped: AtomicU64::new(0),
        context,
    };
    // Only a second installation fails, and then the first one serves.
    let _ = tracing::subscriber::set_global_default(logger);
    let path = fifo.to_owned();
    let writer = std::thread::Builder::new()
        .name("log".to_owned())
        .stack_size(64 * 1024)
        .spawn(move || write_all(&path, &waiting));
    // Without the thread the channel fills up and lines are counted as dropped; the shim works on.
    drop(writer);
    std::panic::set_hook(Box::new(move |info| {
        let (fifo, context) = &last_words;
        let mut line = head("fatal");
        pair(&mut line, "msg", &format!("panic: {info}"));
        line.push_str(context);
        line.push('\n');
        let _ = open(fifo).and_then(|mut file| file.write_all(line.as_bytes()));
        std::process::abort();
    }));
}

/// Changes what is logged: one of the level names that gVisor's shim knows.
pub(crate) fn set_level(name: &str) {
    let level = match name.to_lowercase().as_str() {
        "trace" => Level::TRACE,
        "debug" => Level::DEBUG,
        "warn" | "warning" => Level::WARN,
        "error" | "fatal" | "panic" => Level::ERROR,
        _ => Level::INFO,
    };
    LEVEL.store(rank(level), Ordering::Relaxed);
}

/// Appends the log to a file too, from now on. A later call names another file for the whole shim.
pub(crate) fn also_to(path: &Path) -> std::io::Result<()> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o644)
        .open(path)?;
    *ALSO_TO.lock().expect("log file lock") = Some(file);
    Ok(())
}

fn rank(level: Level) -> usize {
    match level {
        Level::ERROR => 0,
        Level::WARN => 1,
        Level::INFO => INFO,
        Level::DEBUG => 3,
        Level::TRACE => 4,
    }
}

/// Without blocking: a FIFO without a reader refuses, a full one too.
fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .write(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
        .open(path)
}

fn write_all(path: &PathBuf, waiting: &Receiver<String>) {
    let mut file = None;
    for line in waiting {
        // First, since the FIFO may make this thread wait.
        if let Some(file) = &mut *ALSO_TO.lock().expect("log file lock") {
            let _ = file.write_all(line.as_bytes());
        }
        if file.is_none() {
            // Read and write: opening neither waits for containerd nor fails while it is away, and the writes of this
            // thread then wait in the FIFO for its return. Only this thread ever waits.
            file = OpenOptions::new().read(true).write(true).open(path).ok();
        }
        if let Some(open) = &mut file
            && open.write_all(line.as_bytes()).is_err()
        {
            file = None;
        }
    }
}

fn head(level: &str) -> String {
    let mut line = String::with_capacity(160);
    pair(&mut line, "time", &rfc3339(SystemTime::now()));
    pair(&mut line, "level", level);
    line
}

fn pair(line: &mut String, key: &str, value: &str) {
    if !line.is_empty() && !line.ends_with(' ') {
        line.push(' ');
    }
    line.push_str(key);
    line.push('=');
    let plain = !value.is_empty()
        && value
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_./:@+".contains(&b));
    if plain {
        line.push_str(value);
    } else {
        let _ = write!(line, "{value:?}");
    }
    line.push(' ');
}

/// UTC, milliseconds.
pub(crate) fn rfc3339(at: SystemTime) -> String {
    let since = at
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        since.subsec_millis()
    )
}

/// Year, month and day of a number of days since 1970-01-01 (H. Hinnant, "chrono-compatible low-level date
/// algorithms", civil_from_days).
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let doe = days % 146_097;
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[derive(Default)]
struct Fields {
    message: String,
    rest: String,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
        } else {
            pair(&mut self.rest, field.name(), value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

impl Subscriber for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        rank(*metadata.level()) <= LEVEL.load(Ordering::Relaxed)
    }

    // Spans are not used.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut line = head(level);
        pair(&mut line, "msg", &fields.message);
        line.push_str(&self.context);
        if !fields.rest.is_empty() {
            line.push_str(&fields.rest);
        }
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            pair(&mut line, "lines_dropped_before", &dropped.to_string());
        }
        line.truncate(line.trim_end().len());
        line.push('\n');
        if self.lines.try_send(line).is_err() {
            self.dropped.fetch_add(dropped + 1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_right() {
        for (second, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_764_547_199, "2025-11-30T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(
                rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(second)),
                text
            );
        }
    }

    #[test]
    fn values_are_quoted_where_needed() {
        let mut line = String::new();
        pair(&mut line, "a", "plain/path.1");
        pair(&mut line, "b", "two words\nand a line");
        pair(&mut line, "c", "");
        assert_eq!(line, "a=plain/path.1 b=\"two words\\nand a line\" c=\"\" ");
    }

    #[test]
    fn a_reader_that_is_away_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("log");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let (lines, waiting) = sync_channel(4);
        let logger = Logger {
            lines,
            dropped: AtomicU64::new(0),
            context: String::new(),
        };
        tracing::subscriber::with_default(logger, || {
            for n in 0..10 {
                tracing::info!(n, "line");
                tracing::debug!("below the level");
            }
        });
        let kept: Vec<String> = waiting.try_iter().collect();
        assert_eq!(kept.len(), 4);
        assert!(kept[0].contains("level=info msg=line n=0"), "{}", kept[0]);
    }
}

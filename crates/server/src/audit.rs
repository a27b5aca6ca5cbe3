//! The audit log: one line of JSON for each login, each denied request, and each request of the
//! classes that `audit-log-classes` names.
//!
//! **Invariants**
//! - L1: a thread that serves clients never waits for this log: a record that finds the queue full
//!   is dropped and counted, and the log says how many were.
//! - L2: no record has a password: secret arguments are replaced before they enter the queue.
//! - L3: a failed write harms nothing but this log: its records count as dropped, and later ones
//!   are tried again.
//!
//! **Concurrency.** Any thread adds records to one bounded queue; a thread of its own writes them.

use crate::config::{AuditKeys, ServerConfig};
use crate::error::ServerError;
use crate::seldom::seldom;
use duramen_base::open::open_log;
use ring::hmac;
use serde_json::json;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Records that wait to be written: some MB at most.
const QUEUE_RECORDS: usize = 8_192;
/// Bytes after which a batch of records is written.
const WRITE_BYTES: usize = 64 << 10;
/// The thread looks this often for dropped records, and for the order to open the file again.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Longest wait for the last records at a stop.
const END_WITHIN: Duration = Duration::from_secs(1);
/// Maximum bytes of a key in a record.
pub(crate) const KEY_BYTES_MAX: usize = 256;

/// The outcome of a request, as far as its user's rights decide it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was allowed; it may still have failed.
    Allowed,
    Denied,
    FailedLogin,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Outcome::Allowed => "allowed",
            Outcome::Denied => "denied",
            Outcome::FailedLogin => "failed-login",
        }
    }
}

/// One line.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) user: String,
    /// As `CLIENT LIST` shows it.
    pub(crate) address: String,
    pub(crate) client: u64,
    pub(crate) command: &'static str,
    pub(crate) class: &'static str,
    pub(crate) outcome: Outcome,
    /// Its first key, up to [`KEY_BYTES_MAX`].
    pub(crate) key: Option<Vec<u8>>,
    /// Arguments of an administrative command, without secrets.
    pub(crate) args: Vec<String>,
}

/// The audit log of a server, or its absence.
pub(crate) struct Audit {
    /// None: it is off.
    queue: Option<SyncSender<(u64, Record)>>,
    /// The chosen classes, by position in [`AUDIT_CLASSES`](crate::config::AUDIT_CLASSES). Relaxed:
    /// a change holds from some request on.
    classes: AtomicU32,
    shared: Arc<Told>,
    ended: Mutex<Option<Receiver<()>>>,
}

/// The orders to the writing thread.
#[derive(Default)]
struct Told {
    dropped: AtomicU64,
    reopen: AtomicBool,
    /// How keys are written: [`AuditKeys`] as a number.
    keys: AtomicU32,
}

impl Audit {
    /// Opens the file and starts the thread, if the settings name a file.
    ///
    /// # Errors
    /// [`ServerError::File`]: the file cannot be opened. [`ServerError::System`]: there is no
    /// thread or no randomness.
    pub(crate) fn start(config: &ServerConfig) -> Result<Audit, ServerError> {
        let mut audit = Audit {
            queue: None,
            classes: AtomicU32::new(0),
            shared: Arc::default(),
            ended: Mutex::default(),
        };
        if config.access.audit_log.is_empty() {
            return Ok(audit);
        }
        let path = std::path::absolute(&config.access.audit_log);
        let path = path.unwrap_or_else(|_| PathBuf::from(&config.access.audit_log));
        let file = open(&path).map_err(|source| ServerError::File {
            doing: "open the audit log",
            path: path.clone(),
            source,
        })?;
        let system = |source| ServerError::System {
            doing: "start the audit log",
            source,
        };
        let random = hmac::Key::generate(hmac::HMAC_SHA256, &ring::rand::SystemRandom::new());
        let key = random.map_err(|_| system(io::Error::other("there are no random numbers")))?;
        let (queue, records) = sync_channel(QUEUE_RECORDS);
        let (end, ended) = sync_channel(1);
        let writer = Writer {
            path,
            file: Some(file),
            key,
            told: Arc::clone(&audit.shared),
            text: Vec::new(),
            records: 0,
            is_torn: false,
        };
        let thread = std::thread::Builder::new().name("audit".to_owned());
        thread
            .spawn(move || {
                writer.run(&records);
                let _ = end.send(());
            })
            .map_err(system)?;
        audit.queue = Some(queue);
        audit.ended = Mutex::new(Some(ended));
        audit.configure(config);
        Ok(audit)
    }

    /// Takes over the settings that may change while the server runs.
    pub(crate) fn configure(&self, config: &ServerConfig) {
        let classes = match self.is_on() {
            true => config.audit_classes().unwrap_or(0),
            false => 0,
        };
        self.classes.store(classes, Ordering::Relaxed);
        let keys = config.access.audit_log_keys as u32;
        self.shared.keys.store(keys, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.queue.is_some()
    }

    /// The chosen classes, one bit for each of [`AUDIT_CLASSES`](crate::config::AUDIT_CLASSES);
    /// 0 if the log is off.
    #[inline]
    pub(crate) fn classes(&self) -> u32 {
        self.classes.load(Ordering::Relaxed)
    }

    /// Adds a record, or drops it (L1).
    pub(crate) fn add(&self, record: Record) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_ms = now.map_or(0, |now| now.as_millis() as u64);
        if let Some(queue) = &self.queue
            && queue.try_send((now_ms, record)).is_err()
        {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Opens the file again: it may have been renamed. Returns at once.
    pub fn reopen(&self) {
        self.shared.reopen.store(true, Ordering::Relaxed);
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.queue = None;
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ended) = &*ended {
            // A disk that hangs does not keep the process.
            let _ = ended.recv_timeout(END_WITHIN);
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    open_log(OpenOptions::new().mode(0o600), path)
}

/// The thread that writes.
struct Writer {
    path: PathBuf,
    /// None: it could not be opened again.
    file: Option<File>,
    /// Of this run of the server: digests of keys can be compared within it.
    key: hmac::Key,
    told: Arc<Told>,
    /// Lines that are not written yet, and their number.
    text: Vec<u8>,
    records: u64,
    /// The last write ended within a line.
    is_torn: bool,
}

impl Writer {
    fn run(mut self, records: &Receiver<(u64, Record)>) {
        loop {
            let received = records.recv_timeout(LOOK_EVERY);
            let is_over = matches!(received, Err(RecvTimeoutError::Disconnected));
            if let Ok(first) = received {
                self.add(first);
                while self.text.len() < WRITE_BYTES
                    && let Ok(next) = records.try_recv()
                {
                    self.add(next);
                }
            }
            if self.told.reopen.swap(false, Ordering::Relaxed) {
                self.reopen();
            }
            self.write();
            if is_over {
                return;
            }
        }
    }

    fn add(&mut self, (now_ms, record): (u64, Record)) {
        let key = record.key.as_deref().and_then(|key| self.shown(key));
        let mut line = json!({
            "unix_ms": now_ms,
            "user": record.user,
            "address": record.address,
            "client": record.client,
            "command": record.command,
            "class": record.class,
            "outcome": record.outcome.name(),
        });
        if let Some(key) = key {
            line["key"] = key.into();
        }
        if !record.args.is_empty() {
            line["arguments"] = record.args.into();
        }
        self.text.extend_from_slice(line.to_string().as_bytes());
        self.text.push(b'\n');
        self.records += 1;
    }

    fn shown(&self, key: &[u8]) -> Option<String> {
        match AuditKeys::from_number(self.told.keys.load(Ordering::Relaxed)) {
            AuditKeys::None => None,
            AuditKeys::Plain => Some(String::from_utf8_lossy(key).into_owned()),
            AuditKeys::Hashed => {
                let tag = hmac::sign(&self.key, key);
                let bytes = tag.as_ref().iter().take(16);
                Some(bytes.map(|byte| format!("{byte:02x}")).collect())
            }
        }
    }

    fn reopen(&mut self) {
        self.write();
        match open(&self.path) {
            Ok(file) => {
                self.file = Some(file);
                self.is_torn = false;
            }
            Err(error) => seldom!(
                warn,
                path = %self.path.display(),
                "the audit log cannot be opened again, and goes on in the old file: {error}"
            ),
        }
    }

    /// L3.
    fn write(&mut self) {
        let dropped = self.told.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let line = format!("{{\"dropped_records\":{dropped}}}\n");
            self.text.extend_from_slice(line.as_bytes());
        }
        if self.text.is_empty() {
            return;
        }
        if self.is_torn {
            self.text.insert(0, b'\n');
        }
        let written = match &mut self.file {
            Some(file) => file.write_all(&self.text),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        self.is_torn = written.is_err();
        if let Err(error) = written {
            let lost = dropped + self.records;
            self.told.dropped.fetch_add(lost, Ordering::Relaxed);
            seldom!(
                warn,
                path = %self.path.display(),
                "the audit log cannot be written, and its records are dropped: {error}"
            );
        }
        self.text.clear();
        self.records = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &str) -> Record {
        Record {
            user: "u".to_owned(),
            address: "127.0.0.1:1".to_owned(),
            client: 7,
            command: "set",
            class: "write",
            outcome: Outcome::Allowed,
            key: Some(key.as_bytes().to_vec()),
            args: Vec::new(),
        }
    }

    fn lines(path: &Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(path).expect("the log");
        let lines = text.lines().filter(|line| !line.is_empty());
        lines
            .map(|line| serde_json::from_str(line).expect("a line is JSON"))
            .collect()
    }

    fn config(path: &Path) -> ServerConfig {
        let mut config = ServerConfig::default();
        config.access.audit_log = path.display().to_string();
        config
    }

    #[test]
    fn records_are_lines_and_keys_are_hashed() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("audit");
        let audit = Audit::start(&config(&path)).expect("it starts");
        for key in ["a", "b", "a"] {
            audit.add(record(key));
        }
        drop(audit);
        let lines = lines(&path);
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0]["command"], "set");
        assert_eq!(lines[0]["outcome"], "allowed");
        assert_eq!(lines[0]["key"], lines[2]["key"]);
        assert_ne!(lines[0]["key"], lines[1]["key"]);
        assert_ne!(lines[0]["key"], "a");
    }

    /// L1 and L3: /dev/full refuses every byte, as a full disk does.
    #[test]
    fn a_full_disk_and_a_full_queue_drop_records_and_count_them() {
        let full = Path::new("/dev/full");
        let audit = Audit::start(&config(full)).expect("it starts");
        for _ in 0..3 * QUEUE_RECORDS {
            audit.add(record("k")); // it never waits
        }
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while audit.shared.dropped.load(Ordering::Relaxed) < 3 * QUEUE_RECORDS as u64 {
            assert!(std::time::Instant::now() < deadline, "all are counted");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_renamed_file_is_opened_again() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, old) = (dir.path().join("audit"), dir.path().join("audit.1"));
        let audit = Audit::start(&config(&path)).expect("it starts");
        audit.add(record("a"));
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while lines(&path).is_empty() {
            assert!(std::time::Instant::now() < deadline, "it is written");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::fs::rename(&path, &old).expect("renamed");
        audit.reopen();
        while !path.exists() {
            assert!(std::time::Instant::now() < deadline, "it is opened again");
            std::thread::sleep(Duration::from_millis(5));
        }
        audit.add(record("b"));
        drop(audit);
        assert_eq!((lines(&old).len(), lines(&path).len()), (1, 1));
    }
}

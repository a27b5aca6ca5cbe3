//! The audit log: one line of JSON for each login, each denied request, and each request of the
//! classes that `audit-log-classes` names.
//!
//! **Invariants**
//! - L1: a thread that serves clients does not wait for the file. A record that finds the queue
//!   full is dropped and counted, and the log says how many were.
//! - L2: no record has a password: secret arguments are replaced before they enter the queue.
//! - L3: a failed write harms nothing but this log: its records count as dropped, and later ones
//!   are tried again.
//! - L4: a record is written within `PAUSE` and the time of the write before it.
//!
//! **Concurrency.** The queue is text under a lock. A thread appends its line, and the writing
//! thread exchanges the text for an empty one. It is woken by the first line after it had none.
//! After a write it sleeps for a moment, so many records cost one wake and one write.

use crate::threads::start::Starter;
use duramen_base::open::open_log;
use duramen_config::{AuditKeys, ServerConfig, ServerError, seldom};
use ring::hmac;
use std::fmt::{Display, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes of lines that wait to be written, above which further records are dropped.
const QUEUE_BYTES: usize = 4 << 20;
/// Text buffers keep this much while nothing is written.
const KEPT_BYTES: usize = 64 << 10;
/// Sleep of the writing thread after a write.
const PAUSE: Duration = Duration::from_millis(10);
/// Its sleep after a failed write.
const FAILED_PAUSE: Duration = Duration::from_millis(200);
/// Longest wait for the last records at a stop.
const END_WITHIN: Duration = Duration::from_secs(1);
/// Maximum bytes of a key in a record.
pub(crate) const KEY_BYTES_MAX: usize = 256;

/// The outcome of a request, as far as its user's rights decide it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
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

/// The content of one line.
pub struct Record<'a> {
    pub user: &'a str,
    /// As `CLIENT LIST` shows it.
    pub address: &'a dyn Display,
    pub client: u64,
    pub command: &'static str,
    pub class: &'static str,
    pub outcome: Outcome,
    /// Its first key; `KEY_BYTES_MAX` bytes of it are used.
    pub key: Option<&'a [u8]>,
    /// Arguments of an administrative command, without secrets.
    pub args: &'a [String],
}

/// The audit log of a server, or its absence.
pub struct Audit {
    /// The queue; `None` if the log is off.
    lines: Option<Arc<Lines>>,
    /// The chosen classes, by position in [`AUDIT_CLASSES`](duramen_config::AUDIT_CLASSES).
    /// Relaxed: a change holds from some request on.
    classes: AtomicU32,
    ended: Mutex<Option<Receiver<()>>>,
}

/// The queue between the threads that serve clients and the one that writes.
struct Lines {
    queue: Mutex<Queue>,
    wake: Condvar,
    /// How keys are written: [`AuditKeys`] as a number.
    keys: AtomicU32,
    /// A secret of this run of the server: digests of keys can be compared within the run.
    secret: hmac::Key,
}

#[derive(Default)]
struct Queue {
    text: Vec<u8>,
    /// A buffer for the text of an address.
    address: String,
    /// Lines in the text.
    records: u64,
    dropped: u64,
    reopen: bool,
    ended: bool,
    /// The writing thread sleeps until it is woken.
    is_idle: bool,
}

/// A key as the log shows it.
enum Shown<'a> {
    No,
    Digest([u8; 16]),
    Plain(&'a [u8]),
}

impl Audit {
    /// Opens the file and starts the thread, if the settings name a file.
    ///
    /// # Errors
    /// [`ServerError::File`]: the file cannot be opened. [`ServerError::System`]: there is no
    /// thread or no randomness.
    pub(crate) fn start(config: &ServerConfig, starter: Starter) -> Result<Audit, ServerError> {
        let mut audit = Audit {
            lines: None,
            classes: AtomicU32::new(0),
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
        let secret = random.map_err(|_| system(io::Error::other("there are no random numbers")))?;
        let lines = Arc::new(Lines {
            queue: Mutex::default(),
            wake: Condvar::new(),
            keys: AtomicU32::new(0),
            secret,
        });
        let (end, ended) = sync_channel(1);
        let writer = Writer {
            path,
            file,
            lines: Arc::clone(&lines),
            text: Vec::new(),
            is_torn: false,
        };
        let write = move || {
            writer.run();
            let _ = end.send(());
        };
        starter.start("audit", write).map_err(system)?;
        audit.lines = Some(lines);
        audit.ended = Mutex::new(Some(ended));
        audit.configure(config);
        Ok(audit)
    }

    /// Takes over the settings that may change while the server runs.
    pub(crate) fn configure(&self, config: &ServerConfig) {
        if let Some(lines) = &self.lines {
            let classes = config.audit_classes().unwrap_or(0);
            self.classes.store(classes, Ordering::Relaxed);
            let keys = config.access.audit_log_keys as u32;
            lines.keys.store(keys, Ordering::Relaxed);
        }
    }

    #[inline]
    pub fn is_on(&self) -> bool {
        self.lines.is_some()
    }

    /// The chosen classes, one bit for each of [`AUDIT_CLASSES`](duramen_config::AUDIT_CLASSES);
    /// 0 if the log is off.
    #[inline]
    pub fn classes(&self) -> u32 {
        self.classes.load(Ordering::Relaxed)
    }

    /// Adds a record, or drops it (L1).
    pub fn add(&self, record: &Record<'_>) {
        let Some(lines) = &self.lines else {
            return;
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_ms = now.map_or(0, |now| now.as_millis() as u64);
        let key = lines.shown(record.key);
        let mut queue = lines.queue();
        if queue.text.len() > QUEUE_BYTES {
            queue.dropped += 1;
        } else {
            queue.append(now_ms, record, &key);
        }
        lines.wake(queue);
    }

    /// Opens the file again: it may have been renamed. Returns at once.
    pub fn reopen(&self) {
        if let Some(lines) = &self.lines {
            let mut queue = lines.queue();
            queue.reopen = true;
            lines.wake(queue);
        }
    }

    /// Waits until all earlier records are written, for at most `END_WITHIN`. Later records are not
    /// written.
    pub fn end(&self) {
        if let Some(lines) = &self.lines {
            let mut queue = lines.queue();
            queue.ended = true;
            lines.wake(queue);
        }
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ended) = &*ended {
            // A disk that hangs must not keep the process from ending.
            let _ = ended.recv_timeout(END_WITHIN);
        }
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.end();
    }
}

impl Lines {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, mut queue: MutexGuard<'_, Queue>) {
        let is_idle = std::mem::take(&mut queue.is_idle);
        drop(queue);
        if is_idle {
            self.wake.notify_one();
        }
    }

    fn shown<'a>(&self, key: Option<&'a [u8]>) -> Shown<'a> {
        let Some(key) = key.map(|key| &key[..key.len().min(KEY_BYTES_MAX)]) else {
            return Shown::No;
        };
        match AuditKeys::from_number(self.keys.load(Ordering::Relaxed)) {
            AuditKeys::None => Shown::No,
            AuditKeys::Plain => Shown::Plain(key),
            AuditKeys::Hashed => {
                let tag = hmac::sign(&self.secret, key);
                let half = tag.as_ref().first_chunk();
                half.map_or(Shown::No, |half| Shown::Digest(*half))
            }
        }
    }
}

impl Queue {
    /// Appends a line: an object of JSON.
    fn append(&mut self, now_ms: u64, record: &Record<'_>, key: &Shown<'_>) {
        let Queue { text, address, .. } = self;
        address.clear();
        // Writing to memory does not fail.
        let _ = write!(address, "{}", record.address);
        let _ = write!(text, "{{\"unix_ms\":{now_ms},\"user\":");
        quote(text, record.user);
        text.extend_from_slice(b",\"address\":");
        quote(text, address);
        let _ = write!(
            text,
            ",\"client\":{},\"command\":\"{}\",\"class\":\"{}\",\"outcome\":\"{}\"",
            record.client,
            record.command,
            record.class,
            record.outcome.name()
        );
        match key {
            Shown::No => {}
            Shown::Digest(bytes) => {
                let digest = u128::from_be_bytes(*bytes);
                let _ = write!(text, ",\"key\":\"{digest:032x}\"");
            }
            Shown::Plain(key) => {
                text.extend_from_slice(b",\"key\":");
                quote(text, &String::from_utf8_lossy(key));
            }
        }
        if !record.args.is_empty() {
            text.extend_from_slice(b",\"arguments\":");
            let _ = serde_json::to_writer(&mut *text, record.args);
        }
        text.extend_from_slice(b"}\n");
        self.records += 1;
    }
}

/// Appends a string of JSON.
fn quote(text: &mut Vec<u8>, string: &str) {
    let _ = serde_json::to_writer(text, string);
}

fn open(path: &Path) -> io::Result<File> {
    open_log(OpenOptions::new().mode(0o600), path)
}

/// The thread that writes.
struct Writer {
    path: PathBuf,
    file: File,
    lines: Arc<Lines>,
    /// Lines that are being written.
    text: Vec<u8>,
    /// Whether the last write ended within a line.
    is_torn: bool,
}

impl Writer {
    fn run(mut self) {
        let lines = Arc::clone(&self.lines);
        loop {
            let mut queue = lines.queue();
            while queue.text.is_empty() && queue.dropped == 0 && !queue.reopen && !queue.ended {
                queue.text.shrink_to(KEPT_BYTES);
                self.text.shrink_to(KEPT_BYTES);
                queue.is_idle = true;
                let woken = lines.wake.wait(queue);
                queue = woken.unwrap_or_else(PoisonError::into_inner);
            }
            std::mem::swap(&mut queue.text, &mut self.text);
            let records = std::mem::take(&mut queue.records);
            let dropped = std::mem::take(&mut queue.dropped);
            let (reopen, ended) = (std::mem::take(&mut queue.reopen), queue.ended);
            drop(queue);
            let is_written = self.write(records, dropped);
            if reopen {
                self.reopen();
            }
            if ended {
                return;
            }
            std::thread::sleep(if is_written { PAUSE } else { FAILED_PAUSE });
        }
    }

    fn reopen(&mut self) {
        match open(&self.path) {
            Ok(file) => {
                self.file = file;
                self.is_torn = false;
            }
            Err(error) => seldom!(
                warn,
                path = %self.path.display(),
                "the audit log cannot be opened again, and goes on in the old file: {error}"
            ),
        }
    }

    /// Writes the lines; returns false if they are dropped (L3).
    fn write(&mut self, records: u64, dropped: u64) -> bool {
        if dropped > 0 {
            let line = format!("{{\"dropped_records\":{dropped}}}\n");
            self.text.extend_from_slice(line.as_bytes());
        }
        if self.text.is_empty() {
            return true;
        }
        if self.is_torn {
            self.text.insert(0, b'\n');
        }
        let written = self.file.write_all(&self.text);
        self.text.clear();
        self.is_torn = written.is_err();
        if let Err(error) = written {
            self.lines.queue().dropped += dropped + records;
            seldom!(
                warn,
                path = %self.path.display(),
                "the audit log cannot be written, and its records are dropped: {error}"
            );
        }
        !self.is_torn
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::start::STARTER;

    fn add(audit: &Audit, key: &str) {
        audit.add(&Record {
            user: "u\"ser",
            address: &"127.0.0.1:1",
            client: 7,
            command: "set",
            class: "write",
            outcome: Outcome::Allowed,
            key: Some(key.as_bytes()),
            args: &["an \"argument\"".to_owned()],
        });
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
        let audit = Audit::start(&config(&path), STARTER).expect("it starts");
        for key in ["a", "b", "a"] {
            add(&audit, key);
        }
        drop(audit);
        let lines = lines(&path);
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0]["command"], "set");
        assert_eq!(lines[0]["user"], "u\"ser");
        assert_eq!(lines[0]["address"], "127.0.0.1:1");
        assert_eq!(lines[0]["arguments"][0], "an \"argument\"");
        assert_eq!(lines[0]["outcome"], "allowed");
        assert_eq!(lines[0]["key"], lines[2]["key"]);
        assert_ne!(lines[0]["key"], lines[1]["key"]);
        assert_ne!(lines[0]["key"], "a");
    }

    /// L1 and L3: /dev/full refuses every byte, as a full disk does.
    #[test]
    fn a_full_disk_drops_records_and_counts_them() {
        let audit = Audit::start(&config(Path::new("/dev/full")), STARTER).expect("it starts");
        for _ in 0..1000 {
            add(&audit, "k"); // it never waits
        }
        let deadline = std::time::Instant::now() + Duration::from_secs(120);
        let lines = audit.lines.as_ref().expect("it is on");
        while lines.queue().dropped < 1000 {
            assert!(std::time::Instant::now() < deadline, "all are counted");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// L1
    #[test]
    fn a_full_queue_drops_records_and_the_log_says_how_many() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("audit");
        let audit = Audit::start(&config(&path), STARTER).expect("it starts");
        let records = 4 * QUEUE_BYTES / 100;
        for _ in 0..records {
            add(&audit, "k");
            let queue = audit.lines.as_ref().expect("it is on").queue();
            assert!(queue.text.len() <= QUEUE_BYTES + 1000);
        }
        drop(audit);
        let lines = lines(&path);
        let dropped = lines
            .iter()
            .filter_map(|line| line["dropped_records"].as_u64());
        let written = lines.iter().filter(|line| line["command"] == "set").count();
        assert_eq!(written as u64 + dropped.sum::<u64>(), records as u64);
    }

    #[test]
    fn a_renamed_file_is_opened_again() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, old) = (dir.path().join("audit"), dir.path().join("audit.1"));
        let audit = Audit::start(&config(&path), STARTER).expect("it starts");
        add(&audit, "a");
        let deadline = std::time::Instant::now() + Duration::from_secs(120);
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
        add(&audit, "b");
        drop(audit);
        assert_eq!((lines(&old).len(), lines(&path).len()), (1, 1));
    }
}

//! The client registry: the connected clients, for `CLIENT LIST`, `CLIENT KILL` and the metrics.

use duramen_tls::Description;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// One connection as other threads see it. The owning thread stores the fields once per round, not
/// per request. All accesses are relaxed: a listing shows roughly the current state.
#[derive(Debug)]
pub struct ClientRecord {
    pub id: u64,
    /// Number of the reactor thread that owns the connection.
    pub thread: usize,
    /// Slot of the connection in that thread.
    pub slot: u32,
    pub fd: i32,
    pub peer: SocketAddr,
    pub local: SocketAddr,
    /// The path of the Unix socket by which the client came; `peer` and `local` are loopback then.
    pub socket: Option<String>,
    /// The time of the connection, in milliseconds of the server's clock (`clock`).
    pub connected_at_ms: u64,
    /// When the client last sent or took bytes, in milliseconds of the server's clock. Written by
    /// the reactor.
    pub active_at_ms: AtomicU64,
    /// Bytes of a partial request, and bytes of replies that the client has not taken. Written by
    /// the reactor.
    pub query_bytes: AtomicU64,
    pub output_bytes: AtomicU64,
    pub received_bytes: AtomicU64,
    pub sent_bytes: AtomicU64,
    /// Number of the last command in the command table, `u32::MAX` = none yet. Written by the
    /// executor.
    pub last_command: AtomicU32,
    /// Number of the table that the client uses. Written by the executor.
    pub table: AtomicU32,
    /// RESP version, 2 or 3. Written by the executor.
    pub protocol: AtomicU32,
    /// See [`shown`]. Written by the executor.
    flags: AtomicU32,
    /// Requests queued by MULTI, and keys watched. Written by the executor.
    pub queued: AtomicU32,
    pub watched: AtomicU32,
    /// Channels, shard channels and patterns that it has subscribed to. Written by the executor.
    pub subscriptions: [AtomicU32; 3],
    /// The client that gets its invalidations, as `CLIENT LIST` shows it. Written by the executor.
    redirect: AtomicI64,
    /// Whether one of its commands waits for an event (WAIT, SAVE), or for the end of a pause.
    /// Written by the reactor.
    is_blocked: AtomicBool,
    /// Whether its request waits for elements, as `key_wait_state` says. Written by the executor,
    /// and by CLIENT UNBLOCK on any thread, which then tells the client's thread.
    pub key_wait: AtomicU8,
    /// Whether the connection is closed: none of its requests runs any more. Release by the
    /// reactor, after the last one; Acquire by a thread that waits for it.
    is_gone: AtomicBool,
    /// The certificate that the client showed; empty: none.
    certificate: OnceLock<Box<Description>>,
    text: Mutex<ClientText>,
}

/// Bits of [`ClientRecord::show`], for `CLIENT LIST`.
pub mod shown {
    pub(crate) const MULTI: u32 = 1;
    pub(crate) const MONITOR: u32 = 1 << 1;
    pub(crate) const NO_EVICT: u32 = 1 << 2;
    pub(crate) const NO_TOUCH: u32 = 1 << 3;
    pub(crate) const PUBSUB: u32 = 1 << 4;
    pub(crate) const TRACKS: u32 = 1 << 5;
    pub(crate) const BROADCASTS: u32 = 1 << 6;
    pub const BROKEN_REDIRECT: u32 = 1 << 7;
}

/// Values of [`ClientRecord::key_wait`].
pub(crate) mod key_wait_state {
    pub(crate) const NONE: u8 = 0;
    pub(crate) const WAITS: u8 = 1;
    /// The client gets the reply for a wait whose time is over.
    pub(crate) const UNBLOCKED_IN_TIME: u8 = 2;
    pub(crate) const UNBLOCKED_WITH_ERROR: u8 = 3;
}

/// Names that a client has set for itself, and its user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientText {
    pub name: String,
    pub lib_name: String,
    pub lib_version: String,
    /// Name and id of its user; an empty name: it has not logged in.
    pub user: String,
    pub user_id: u64,
}

impl ClientRecord {
    pub fn new(
        id: u64,
        thread: usize,
        slot: u32,
        fd: i32,
        peer: SocketAddr,
        local: SocketAddr,
        now_ms: u64,
    ) -> ClientRecord {
        ClientRecord {
            id,
            thread,
            slot,
            fd,
            peer,
            local,
            socket: None,
            connected_at_ms: now_ms,
            active_at_ms: AtomicU64::new(now_ms),
            query_bytes: AtomicU64::new(0),
            output_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            last_command: AtomicU32::new(u32::MAX),
            table: AtomicU32::new(0),
            protocol: AtomicU32::new(2),
            flags: AtomicU32::new(0),
            queued: AtomicU32::new(0),
            watched: AtomicU32::new(0),
            subscriptions: Default::default(),
            redirect: AtomicI64::new(-1),
            is_blocked: AtomicBool::new(false),
            key_wait: AtomicU8::new(key_wait_state::NONE),
            is_gone: AtomicBool::new(false),
            certificate: OnceLock::new(),
            text: Mutex::default(),
        }
    }

    /// The addresses of the client and of the server, as `CLIENT LIST` shows them.
    pub(crate) fn shown_addresses(&self) -> (String, String) {
        let local = match &self.socket {
            Some(path) => format!("{path}:0"),
            None => self.local.to_string(),
        };
        (self.shown_peer().to_string(), local)
    }

    /// The client's address, as `CLIENT LIST` shows it.
    pub fn shown_peer(&self) -> impl std::fmt::Display {
        std::fmt::from_fn(|f| match &self.socket {
            Some(path) => write!(f, "{path}:0"),
            None => write!(f, "{}", self.peer),
        })
    }

    /// Name and library, as set by the client.
    pub fn text(&self) -> ClientText {
        self.text
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub fn change_text(&self, change: impl FnOnce(&mut ClientText)) {
        change(&mut self.text.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The certificate that the client showed when it connected; None: it showed none.
    pub fn certificate(&self) -> Option<&Description> {
        self.certificate.get().map(|certificate| &**certificate)
    }

    /// Called by the owning thread when the handshake is over.
    pub fn note_certificate(&self, certificate: Description) {
        self.certificate.get_or_init(|| Box::new(certificate));
    }

    /// Called by the owning thread when it closes the connection.
    pub fn note_gone(&self) {
        self.is_gone.store(true, Ordering::Release);
    }

    /// Whether none of its requests runs any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    pub(crate) fn show_redirect(&self, redirect: i64) {
        self.redirect.store(redirect, Ordering::Relaxed);
    }

    pub(crate) fn shown_redirect(&self) -> i64 {
        self.redirect.load(Ordering::Relaxed)
    }

    /// Sets a flag, or clears it.
    pub fn show(&self, flag: u32, on: bool) {
        let flags = self.flags.load(Ordering::Relaxed);
        let flags = if on { flags | flag } else { flags & !flag };
        self.flags.store(flags, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn shows(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Relaxed) & flag != 0
    }

    #[inline]
    pub fn monitors(&self) -> bool {
        self.shows(shown::MONITOR)
    }

    /// Notes whether a command waits for its own event, or for the end of a pause.
    pub fn note_blocked(&self, is_blocked: bool) {
        self.is_blocked.store(is_blocked, Ordering::Relaxed);
    }

    /// Whether it has subscriptions.
    pub fn is_subscribed(&self) -> bool {
        let counts = self.subscriptions.iter();
        counts.fold(0, |sum, count| sum | count.load(Ordering::Relaxed)) > 0
    }

    /// Whether a command of the client waits for an event or for elements.
    pub(crate) fn waits(&self) -> bool {
        self.is_blocked.load(Ordering::Relaxed)
            || self.key_wait.load(Ordering::Relaxed) != key_wait_state::NONE
    }

    /// Ends its wait for elements, in the way that `how` says; returns false if it does not wait,
    /// or if its wait was ended before. The caller must tell its thread.
    pub(crate) fn unblock(&self, how: u8) -> bool {
        let (waits, relaxed) = (key_wait_state::WAITS, Ordering::Relaxed);
        let exchange = self.key_wait.compare_exchange(waits, how, relaxed, relaxed);
        exchange.is_ok()
    }

    /// Milliseconds without activity.
    pub fn idle_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.active_at_ms.load(Ordering::Relaxed))
    }
}

/// The connections of one thread, by id.
#[derive(Debug, Default)]
pub struct Registry {
    clients: Mutex<HashMap<u64, Arc<ClientRecord>>>,
}

impl Registry {
    pub fn insert(&self, record: Arc<ClientRecord>) {
        self.lock().insert(record.id, record);
    }

    pub fn remove(&self, id: u64) {
        self.lock().remove(&id);
    }

    pub fn get(&self, id: u64) -> Option<Arc<ClientRecord>> {
        self.lock().get(&id).cloned()
    }

    pub fn all(&self) -> Vec<Arc<ClientRecord>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<ClientRecord>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

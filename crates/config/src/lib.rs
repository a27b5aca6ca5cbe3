//! Settings of a server: one table ([`SETTINGS`]) for flags, environment, `duramen.toml`, `CONFIG
//! GET` and the documentation, and the plain struct ([`ServerConfig`]) that the rest of the server
//! reads. Beside them: the errors of a start, certificates, the clock, bounded lines of the log,
//! figures of the process, and the version of Redis that clients may expect.
//!
//! **Invariants**
//! - I1: every field of [`ServerConfig`] that a person can set has exactly one row in
//!   [`SETTINGS`], and the row's default parses (tested). The mode has a second one, by Redis's
//!   names.
//! - I2: a value gets into a field only through [`Setting::apply`], which checks kind and range.

// The print macros of the standard library panic where they cannot print.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub use duramen::DiskMode;
pub use duramen_base::ids::Level;
use duramen_base::units::MIB;
pub use duramen_engine::Mode;
pub use duramen_tls::ClientAuth;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub mod certificates;
mod check;
pub mod clock;
mod encryption;
mod error;
mod events;
mod eviction;
pub mod file;
pub mod finish;
pub mod heap;
mod hints;
mod machine;
mod memory;
pub mod mounts;
mod parse;
pub mod process;
mod scripts;
pub mod seldom;
mod slow;
mod table;
mod tls;

pub use error::ServerError;
pub use events::EventClasses;
pub use eviction::Policy;
pub use file::ConfigFile;
pub use hints::{hint, redis_hint, redis_line_hint, value_hint};
pub use machine::MemoryLimit;
pub(crate) use machine::unescaped;
pub use memory::FETCH_BYTES_MIN;
pub use parse::{format_size, parse_size};
pub use scripts::ScriptConfig;
pub use slow::SlowConfig;
pub use table::SETTINGS;
pub use tls::{AdminTls, Exposed, check_exposed};

/// The Redis version whose behaviour clients may expect.
pub const REDIS_VERSION: &str = "7.4.0";
/// That version as a number, with a byte for each part.
pub const REDIS_VERSION_NUMBER: u32 = 0x0007_0400;

/// The default data directory: below the working directory, so that a first try needs no
/// preparation.
pub const DIR_DEFAULT: &str = "duramen-data";

const TOKEN_BYTES_MAX: usize = 1024;
/// Shortest token: a shorter one could be guessed from a handshake that was observed.
const TOKEN_BYTES_MIN: usize = 16;
/// Bits of a mode with which other users may change a file.
const WRITE_OF_OTHERS: u32 = 0o022;
/// Least likeness (Jaro-Winkler) of two names of which one may be a mistake for the other.
const LIKENESS_MIN: f64 = 0.85;

/// The way in which a reactor thread waits for work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Poll {
    /// Spins for a bounded time after activity, if spinning has recently found work; then sleeps.
    #[default]
    Adaptive,
    /// Never sleeps: lowest latency, a whole core per thread.
    Busy,
    /// Always sleeps in the kernel at once.
    Off,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Names of the classes of requests that can be chosen for the audit log.
pub const AUDIT_CLASSES: [&str; 5] = ["auth", "admin", "write", "read", "connection"];

/// The form in which the audit log shows keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuditKeys {
    None = 0,
    /// As a keyed digest.
    #[default]
    Hashed = 1,
    Plain = 2,
}

impl AuditKeys {
    pub fn from_number(number: u32) -> AuditKeys {
        match number {
            2 => AuditKeys::Plain,
            1 => AuditKeys::Hashed,
            _ => AuditKeys::None,
        }
    }
}

/// Settings about access: the users, the audit log and the Unix socket.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AccessConfig {
    /// Path of the Unix socket for RESP; empty = none. Its permissions as octal digits.
    pub unixsocket: String,
    pub unixsocketperm: String,
    /// File of users; empty = none.
    pub aclfile: String,
    /// Users, one a line, in the form of the file; empty = the default user alone.
    pub users: String,
    pub acllog_max_len: usize,
    /// File of the audit log; empty = none.
    pub audit_log: String,
    pub audit_log_classes: String,
    pub audit_log_keys: AuditKeys,
}

/// Declares a struct, and how to make one in which each field has the default of its type.
macro_rules! blank {
    ($(#[$about:meta])* pub struct $name:ident {
        $($(#[$doc:meta])* pub $field:ident: $t:ty,)*
    }) => {
        $(#[$about])*
        pub struct $name {
            $($(#[$doc])* pub $field: $t,)*
        }

        impl $name {
            fn blank() -> $name {
                $name {
                    $($field: Default::default(),)*
                }
            }
        }
    };
}

blank! {
    /// All settings of one server. Sizes are in bytes; the name of a time ends with its unit.
    #[derive(Clone, Debug, PartialEq)]
    pub struct ServerConfig {
        pub memory_bytes: u64,
        /// `memory` as a percentage of the memory that this process may use; 0 if `memory` was
        /// given as a size.
        pub memory_percent: u8,
        /// Highest `memory_bytes` while the server runs; 0 = its value at the start.
        pub memory_bytes_max: u64,
        pub mode: Mode,
        /// The name of the order of eviction in a cache.
        pub policy: Policy,
        /// When a write is acknowledged; None = the strongest level: synced if there is a data
        /// directory, else memory.
        pub level: Option<Level>,
        /// The data directory as given; in a running server, the directory in use. See
        /// [`data_dir`](Self::data_dir).
        pub dir: String,
        pub disk_mode: DiskMode,
        /// Size of the write-ahead log; 0 = a size that suits `memory_bytes`.
        pub wal_bytes: u64,
        /// Disk space for the log; 0 = (memory + flash) times the expansion.
        pub disk_bytes: u64,
        /// Disk space for the log, in percent of memory and flash.
        pub disk_expansion_percent: u64,
        /// File or partition for entries that memory has no room for; empty = none.
        pub flash_file: String,
        /// Bytes of the flash file or partition that are used.
        pub flash_bytes: u64,
        /// File with the key of an encrypted store; empty = none.
        pub encryption_key_file: String,
        /// Command whose output is that key; empty = none.
        pub encryption_key_command: String,
        /// Directory for the copies that SAVE and BGSAVE write; empty = `snapshots` in the data
        /// directory.
        pub snapshot_dir: String,
        /// Time for the verification of one frame; 0 = frames are verified only on request.
        pub scrub_interval_ms: u64,
        /// Whether each read verifies the checksum of the object that it finds.
        pub verify_reads: bool,
        /// Addresses of the RESP port.
        pub bind: Vec<IpAddr>,
        /// Port without TLS. 0 = any free one, or none if there is a `tls_port`.
        pub port: u16,
        /// RESP port with TLS; 0 = none.
        pub tls_port: u16,
        /// Certificate chain, its key, and the authorities that clients are checked against; empty
        /// = none.
        pub tls_cert_file: String,
        pub tls_key_file: String,
        pub tls_ca_cert_file: String,
        pub tls_ca_cert_dir: String,
        pub tls_auth_clients: ClientAuth,
        /// TLS versions, separated by spaces; empty = all that are safe.
        pub tls_protocols: String,
        pub tls_session_caching: bool,
        /// TLS with certificates of both sides at the native port and on links to other members
        /// and coordinators.
        pub tls_cluster: bool,
        /// Port of the native protocol, for members of a cluster. 0 = any free port.
        pub native_port: u16,
        /// Directory of the Unix socket for native clients on this machine; empty = none.
        pub native_socket_dir: String,
        /// Clients that may have shared memory, and the size of each of their two rings.
        pub local_clients: usize,
        pub local_ring_bytes: usize,
        /// Addresses of coordinators, separated by commas; empty = not a member of a cluster.
        pub coordinator: String,
        pub cluster: String,
        /// File with the cluster's token; empty = the cluster requires none.
        pub cluster_token_file: String,
        /// The server's rack; empty = it is in a rack of its own.
        pub rack: String,
        /// The host name for others; empty = the first address of `bind`.
        pub announce: String,
        /// Roles of a member.
        pub master: bool,
        pub backup: bool,
        pub admin: bool,
        /// The address of admin HTTP: exactly one.
        pub admin_bind: Vec<IpAddr>,
        pub admin_port: u16,
        pub admin_tls: AdminTls,
        /// Reactor threads; 0 = one per available core.
        pub threads: usize,
        /// Threads that load the data at a start; 0 = two per core.
        pub restart_threads: usize,
        pub cleaners: usize,
        pub huge_pages: bool,
        pub poll: Poll,
        /// Longest spin after activity with [`Poll::Adaptive`], in microseconds.
        pub poll_spin_us: u64,
        pub maxclients: usize,
        /// Idle clients are closed after this many seconds; 0 = never.
        pub timeout_s: u64,
        pub tcp_keepalive_s: u64,
        pub tcp_backlog: u32,
        /// The password of the default user; empty = none.
        pub requirepass: String,
        /// Users, the audit log, and the Unix socket.
        pub access: AccessConfig,
        pub insecure_bind: bool,
        /// Above this many bytes of unsent replies, the server stops reading from the client.
        pub output_pause_bytes: usize,
        pub tracked_keys_max: usize,
        /// Bytes of requests and replies of all clients up to which a client above
        /// `output_pause_bytes` is still read from; 0 = by memory size.
        pub pipeline_bytes: u64,
        /// Above this many bytes of unsent replies, the client is closed.
        pub output_limit_bytes: usize,
        /// A client that takes none of its unsent replies for this long is closed; 0 = never.
        pub output_stall_s: u64,
        /// A member's client gets an error after it has waited this long for the backups'
        /// acknowledgement; 0 = it waits for ever.
        pub reply_timeout_s: u64,
        /// Largest request, and largest argument, in bytes.
        pub request_limit_bytes: usize,
        pub args_limit: usize,
        /// Largest request of a client that has not authenticated yet.
        pub preauth_limit_bytes: usize,
        /// A client that has not authenticated within this time is closed; 0 = never.
        pub login_timeout_s: u64,
        pub slow: SlowConfig,
        pub scripts: ScriptConfig,
        /// Keyspace events that are published.
        pub events: EventClasses,
        /// Longest time that a graceful stop waits for clients to take their replies.
        pub stop_timeout_ms: u64,
        pub log_format: LogFormat,
        pub log_level: &'static str,
        /// The file of the log; empty = standard error.
        pub log_file: String,
    }
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        let mut config = ServerConfig::blank();
        for setting in SETTINGS {
            // I1: a default that does not parse is a bug in the table.
            setting
                .apply(&mut config, setting.default)
                .unwrap_or_else(|e| panic!("default of `{}`: {e}", setting.name));
        }
        config
    }
}

impl ServerConfig {
    /// Longest spin of a thread that serves other members; zero: it sleeps at once.
    pub fn longest_spin(&self) -> Duration {
        match self.poll {
            Poll::Off => Duration::ZERO,
            Poll::Adaptive | Poll::Busy => Duration::from_micros(self.poll_spin_us),
        }
    }

    /// The address of admin HTTP.
    pub fn admin_address(&self) -> SocketAddr {
        SocketAddr::new(self.admin_bind[0], self.admin_port)
    }

    /// Number of reactor threads: `threads`, or one per core that this process may use.
    pub fn reactor_threads(&self) -> usize {
        if self.threads > 0 {
            return self.threads;
        }
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    /// Checks the combinations, which no single row of the table can check.
    ///
    /// # Errors
    /// [`ServerError::Config`] names the settings that do not fit together, and the remedy.
    pub fn check(&self) -> Result<(), ServerError> {
        check::all(self)
    }

    /// The permissions of the Unix socket; `None` if the setting is no octal mode.
    pub fn unixsocket_mode(&self) -> Option<u32> {
        let mode = u32::from_str_radix(&self.access.unixsocketperm, 8).ok();
        mode.filter(|mode| *mode <= 0o777)
    }

    /// The classes of the audit log, one bit for each of [`AUDIT_CLASSES`]; `None` if a name is
    /// unknown.
    pub fn audit_classes(&self) -> Option<u32> {
        let names = self.access.audit_log_classes.split([',', ' ']);
        let names = names.filter(|name| !name.is_empty());
        names.into_iter().try_fold(0, |bits, name| {
            let bit = AUDIT_CLASSES.iter().position(|known| *known == name)?;
            Some(bits | 1 << bit)
        })
    }

    /// Whether users are configured: they, and not `requirepass` alone, decide about passwords.
    pub fn has_users(&self) -> bool {
        !self.access.aclfile.is_empty() || !self.access.users.is_empty()
    }

    /// Whether this server is a member of a cluster, or wants to become one.
    pub fn is_member(&self) -> bool {
        !self.coordinator.is_empty()
    }

    pub fn coordinators(&self) -> Vec<String> {
        let names = self.coordinator.split(',').map(str::trim);
        names
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// The token by which members of the cluster recognize each other; empty: none.
    ///
    /// # Errors
    /// As [`read_token`].
    pub fn cluster_token(&self) -> Result<Vec<u8>, ServerError> {
        if self.cluster_token_file.is_empty() {
            return Ok(Vec::new());
        }
        read_token(Path::new(&self.cluster_token_file))
    }

    /// This member's host name for other members and clients.
    pub fn announced_host(&self) -> String {
        if !self.announce.is_empty() {
            return self.announce.clone();
        }
        self.bind
            .first()
            .map_or_else(String::new, IpAddr::to_string)
    }

    /// The data directory; `None` if the store is in memory only, as a cache or a store of level
    /// `memory` without a directory is. A running server keeps the directory with which it was
    /// started.
    pub fn data_dir(&self) -> Option<PathBuf> {
        if self.is_member() && self.dir.is_empty() {
            return Some(PathBuf::from(DIR_DEFAULT)); // its replicas for others must last
        }
        if !self.dir.is_empty() {
            return Some(PathBuf::from(&self.dir));
        }
        let lasting = match self.level {
            Some(level) => level > Level::Memory,
            None => self.mode == Mode::Store,
        };
        lasting.then(|| PathBuf::from(DIR_DEFAULT))
    }

    /// `pipeline-memory`, computed if it is 0.
    pub fn pipeline_bytes_max(&self) -> u64 {
        match self.pipeline_bytes {
            0 => (self.memory_bytes / 8).clamp(16 * MIB, 256 * MIB),
            bytes => bytes,
        }
    }

    /// The level of a write that requests none.
    pub fn write_level(&self) -> Level {
        match self.level {
            Some(level) => level,
            None if self.data_dir().is_some() => Level::Synced,
            None => Level::Memory,
        }
    }
}

/// A cluster's token: the first line of a file.
///
/// # Errors
/// [`ServerError::File`]: the file cannot be read. [`ServerError::Config`]: it has no token, or
/// other users may change it.
pub fn read_token(path: &Path) -> Result<Vec<u8>, ServerError> {
    let failed = |source| ServerError::File {
        doing: "read the cluster's token in",
        path: path.to_owned(),
        source,
    };
    let mode = path.metadata().map_err(failed)?.mode();
    if mode & WRITE_OF_OTHERS != 0 && path.is_file() {
        return Err(ServerError::Config(format!(
            "other users of this machine can change the cluster's token in `{0}` (mode {1:03o}): `chmod go-w {0}`",
            path.display(),
            mode & 0o777
        )));
    }
    let text = file::load_bytes(path).map_err(failed)?;
    // Some editors begin a file with the mark of UTF-8.
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
    let token = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let token = token.trim_ascii();
    if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&token.len()) {
        return Err(ServerError::Config(format!(
            "the first line of `{}` must be the cluster's token, {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} bytes: `openssl rand -hex 32` makes one",
            path.display()
        )));
    }
    Ok(token.to_vec())
}

/// The allowed texts of a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Bytes: `512mb`, `1gb`, or a plain number.
    Size {
        min: u64,
        max: u64,
    },
    /// As `Size`, or a share of the memory that this process may use: `80%`.
    Memory {
        min: u64,
        max: u64,
    },
    /// A whole number.
    Number {
        min: i64,
        max: i64,
    },
    /// `yes` or `no`.
    Flag,
    Choice(&'static [&'static str]),
    /// IP addresses separated by commas or blanks; `one` = exactly one address.
    Addresses {
        one: bool,
    },
    Text,
    /// Text of several lines.
    Lines,
    /// Letters of classes of events.
    Events,
    /// Text with any characters.
    Password,
}

/// A setting's text, parsed and in range.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Size(u64),
    /// Percentage of the memory that this process may use, and its current value in bytes.
    Share {
        percent: u8,
        bytes: u64,
    },
    Number(i64),
    Flag(bool),
    Choice(&'static str),
    Addresses(Vec<IpAddr>),
    Text(String),
}

/// One row of the table of settings.
pub struct Setting {
    /// Name of the flag (`--name`), of the key in `duramen.toml`, and in `CONFIG GET`. In upper
    /// case, with `_` for `-` and `DURAMEN_` before it, it is the environment variable.
    pub name: &'static str,
    /// Redis's name for the same setting, if it differs: accepted wherever `name` is.
    pub redis_name: Option<&'static str>,
    pub kind: Kind,
    /// Unit of the number: `bytes`, `seconds`, … or empty.
    pub unit: &'static str,
    pub default: &'static str,
    /// Whether `CONFIG SET` can change it while the server runs.
    pub runtime: bool,
    /// Whether `CONFIG GET` and `config print` hide it.
    pub secret: bool,
    pub doc: &'static str,
    pub get: fn(&ServerConfig) -> Value,
    pub set: fn(&mut ServerConfig, Value),
}

impl Setting {
    /// Its name, then Redis's name if that differs.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.redis_name)
    }

    /// Finds a setting by its name or Redis's name.
    pub fn find(name: &str) -> Option<&'static Setting> {
        let is_name = |known: &str| known.eq_ignore_ascii_case(name);
        SETTINGS.iter().find(|s| s.names().any(is_name))
    }

    /// The setting with this key in a file: its name or Redis's name, in lower case.
    pub fn of_key(key: &str) -> Option<&'static Setting> {
        SETTINGS.iter().find(|s| s.names().any(|name| name == key))
    }

    /// The known name that is most similar to `name`, if it is similar enough for a mistake.
    pub fn nearest(name: &str) -> Option<&'static str> {
        let name = name.to_ascii_lowercase().replace('_', "-");
        let rated = SETTINGS
            .iter()
            .map(|setting| (strsim::jaro_winkler(setting.name, &name), setting.name));
        let nearest = rated.max_by(|a, b| a.0.total_cmp(&b.0));
        let (_, known) = nearest.filter(|(likeness, _)| *likeness >= LIKENESS_MIN)?;
        Some(known)
    }

    pub fn env_name(&self) -> String {
        env_name(self.name)
    }

    /// Names of all its environment variables: one for each of its names.
    pub fn env_names(&self) -> impl Iterator<Item = String> {
        self.names().map(env_name)
    }

    /// Parses `text`, checks it and stores it.
    ///
    /// # Errors
    /// [`ServerError::Config`] with the fault and the allowed values; `config` is unchanged.
    pub fn apply(&self, config: &mut ServerConfig, text: &str) -> Result<(), ServerError> {
        let value = parse::parse(self, text)?;
        (self.set)(config, value);
        Ok(())
    }

    /// The value as a person would write it (`1gb`).
    pub fn show(&self, config: &ServerConfig) -> String {
        match (self.get)(config) {
            Value::Size(bytes) => format_size(bytes),
            other => parse::plain(&other),
        }
    }

    /// The value in the form of `CONFIG GET` (sizes in plain bytes).
    pub fn show_plain(&self, config: &ServerConfig) -> String {
        parse::plain(&(self.get)(config))
    }
}

fn env_name(name: &str) -> String {
    format!("DURAMEN_{}", name.to_ascii_uppercase().replace('-', "_"))
}

#[cfg(test)]
mod tests;

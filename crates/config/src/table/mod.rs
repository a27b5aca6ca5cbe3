//! The table of settings: the single source of every name, unit, default, limit and explanation.

use super::{
    AdminTls, ClientAuth, DiskMode, EventClasses, Kind, Level, LogFormat, Poll, ServerConfig,
    Setting, Value,
};
use duramen_base::limits::MEMORY_BYTES_MIN;
use duramen_base::units::{GIB, KIB, MIB};
use duramen_shm::{RING_BYTES_MAX, RING_BYTES_MIN};

/// Makes the accessors of a field. It takes the kind of the values and the field; for a number also
/// the field's type, and for an enum the name of each variant.
macro_rules! field {
    ($kind:ident($($field:ident).+)) => {
        (
            |config| $crate::Value::$kind(config.$($field).+.clone()),
            |config, value| {
                if let $crate::Value::$kind(value) = value {
                    config.$($field).+ = value;
                }
            },
        )
    };
    ($kind:ident($($field:ident).+ as $t:ty)) => {
        (
            |config| $crate::Value::$kind(config.$($field).+ as _),
            |config, value| {
                if let $crate::Value::$kind(number) = value {
                    config.$($field).+ = number as $t;
                }
            },
        )
    };
    ($($field:ident).+: $($variant:path => $name:literal),+) => {
        (
            |config| match config.$($field).+ {
                $($variant => $crate::Value::Choice($name),)+
            },
            |config, value| {
                if let $crate::Value::Choice(name) = value {
                    config.$($field).+ = match name {
                        $($name => $variant,)+
                        _ => return,
                    };
                }
            },
        )
    };
}

type Access = (
    fn(&super::ServerConfig) -> Value,
    fn(&mut super::ServerConfig, Value),
);

const fn row(
    name: &'static str,
    kind: Kind,
    unit: &'static str,
    default: &'static str,
    access: Access,
    doc: &'static str,
) -> Setting {
    Setting {
        name,
        redis_name: None,
        kind,
        unit,
        default,
        runtime: false,
        secret: false,
        doc,
        get: access.0,
        set: access.1,
    }
}

impl Setting {
    const fn runtime(mut self) -> Setting {
        self.runtime = true;
        self
    }
    const fn secret(mut self) -> Setting {
        self.secret = true;
        self
    }
    const fn redis(mut self, name: &'static str) -> Setting {
        self.redis_name = Some(name);
        self
    }
}

const fn between(min: i64, max: i64) -> Kind {
    Kind::Number { min, max }
}

fn show_memory(config: &ServerConfig) -> Value {
    match config.memory_percent {
        0 => Value::Size(config.memory_bytes),
        percent => Value::Share {
            percent,
            bytes: config.memory_bytes,
        },
    }
}

fn set_memory(config: &mut ServerConfig, value: Value) {
    (config.memory_bytes, config.memory_percent) = match value {
        Value::Size(bytes) => (bytes, 0),
        Value::Share { percent, bytes } => (bytes, percent),
        _ => return,
    };
}

fn show_level(config: &ServerConfig) -> Value {
    Value::Choice(config.level.map_or("auto", Level::name))
}

fn set_level(config: &mut ServerConfig, value: Value) {
    if let Value::Choice(name) = value {
        // `auto` names no level, so it sets `None`.
        config.level = Level::from_name(name);
    }
}

mod access;
mod eviction;
mod scripts;
mod slow;

/// Largest budget: the address space that a process can reserve on x86-64 with room for the rest.
const MEMORY_BYTES_MAX: u64 = 64 << 40;
/// Largest flash: as many sectors of 512 bytes as 32-bit numbers can count.
const FLASH_BYTES_MAX: u64 = 2 << 40;
const DAY_S: i64 = 86_400;

/// Every setting, in the order in which `duramen config print` and `--help` show them.
pub static SETTINGS: &[Setting] = &[
    row(
        "memory",
        Kind::Memory { min: MEMORY_BYTES_MIN, max: MEMORY_BYTES_MAX },
        "bytes",
        "1gb",
        (show_memory, set_memory),
        "Hard budget for data, index and the engine's tables: a size, or a share such as 80% of what the machine has or the control group allows. The process takes up to 1.10 times as much and 10 MB, and requests and replies of clients come beside it.",
    )
    .redis("maxmemory")
    .runtime(),
    row(
        "memory-max",
        Kind::Size { min: 0, max: MEMORY_BYTES_MAX },
        "bytes",
        "0",
        field!(Size(memory_bytes_max as u64)),
        "Highest `memory` that CONFIG SET can set while the server runs, at most 16 times its value at the start; 0 = that value. The server reserves address space and tables for it, and disk-size counts it.",
    ),
    eviction::MODE,
    eviction::MAXMEMORY_POLICY,
    row(
        "level",
        Kind::Choice(&["auto", "memory", "buffered", "synced"]),
        "",
        "auto",
        (show_level, set_level),
        "When a write is acknowledged: in `memory`; `buffered`: with the operating system, it survives a crash of the process; `synced`: on stable storage, it survives a power cut. `auto` is `synced`, but `memory` for a cache without dir.",
    )
    .runtime(),
    row(
        "dir",
        Kind::Text,
        "",
        "",
        field!(Text(dir)),
        "Data directory; with disk-mode raw, a partition or file. Empty: `duramen-data` in the working directory; with level memory, or for a cache, no files at all.",
    ),
    row(
        "disk-mode",
        Kind::Choice(&["buffered", "direct", "raw"]),
        "",
        "buffered",
        field!(disk_mode: DiskMode::Buffered => "buffered", DiskMode::Direct => "direct", DiskMode::Raw => "raw"),
        "Path of writes to disk: through the page cache, around it (O_DIRECT), or directly to a partition or one file.",
    ),
    row(
        "wal-size",
        Kind::Size { min: 0, max: 64 * GIB },
        "bytes",
        "0",
        field!(Size(wal_bytes as u64)),
        "Size of the write-ahead log, laid down when the directory is made; 0 = by memory size.",
    ),
    row(
        "disk-size",
        Kind::Size { min: 0, max: MEMORY_BYTES_MAX },
        "bytes",
        "0",
        field!(Size(disk_bytes as u64)),
        "Maximum disk space of the log; 0 = memory (or memory-max) and flash-size times disk-expansion.",
    ),
    row(
        "disk-expansion",
        between(110, 1000),
        "percent",
        "200",
        field!(Number(disk_expansion_percent as u64)),
        "Disk space of the log in percent of memory and flash-size. More space makes cleaning on disk cheaper.",
    ),
    row(
        "flash-file",
        Kind::Text,
        "",
        "",
        field!(Text(flash_file)),
        "File or partition for data that is rarely read and does not fit in memory: data may then be larger than memory. Its content does not survive a restart (the log has the data). Empty = none.",
    ),
    row(
        "flash-size",
        Kind::Size { min: 0, max: FLASH_BYTES_MAX },
        "bytes",
        "0",
        field!(Size(flash_bytes as u64)),
        "Bytes of flash-file that are used; a file gets this length at the start.",
    ),
    row(
        "encryption-key-file",
        Kind::Text,
        "",
        "",
        field!(Text(encryption_key_file)),
        "File with the key that encrypts everything this server writes: log, frames, flash, snapshots. `duramen key init` makes it. No other user may read it; its group may if it is a file of root. It is read at the start and for each snapshot. Empty = no encryption, or encryption-key-command.",
    ),
    row(
        "encryption-key-command",
        Kind::Text,
        "",
        "",
        field!(Text(encryption_key_command)),
        "Command for `sh` whose output is that key, in place of encryption-key-file: it can ask a key service. It must end within 30 s. Other users of the machine see it while it runs.",
    )
    .secret(),
    row(
        "snapshot-dir",
        Kind::Text,
        "",
        "",
        field!(Text(snapshot_dir)),
        "Directory in which SAVE and BGSAVE write their copy, `dump`; empty = `snapshots` in the data directory.",
    )
    .runtime(),
    row(
        "scrub-interval",
        between(0, 3_600_000),
        "ms",
        "1000",
        field!(Number(scrub_interval_ms as u64)),
        "Interval at which the server reads and verifies one frame on disk, to find and repair damage while memory still has the data; 0 = only by DURAMEN.SCRUB.",
    )
    .runtime(),
    row(
        "verify-reads",
        Kind::Flag,
        "",
        "yes",
        field!(Flag(verify_reads)),
        "Each read verifies the checksum of the object that it finds, so that a bit that memory has changed is put back, and is never shown. Writes, copies and keys that are not found are verified always.",
    )
    .runtime(),
    row(
        "bind",
        Kind::Addresses { one: false },
        "",
        "127.0.0.1",
        field!(Addresses(bind)),
        "IP addresses the RESP port listens on, separated by commas.",
    ),
    row(
        "port",
        between(0, 65_535),
        "",
        "6379",
        field!(Number(port as u16)),
        "RESP port without TLS; 0 = any free one, or, if there is a tls-port, none.",
    ),
    row(
        "tls-port",
        between(0, 65_535),
        "",
        "0",
        field!(Number(tls_port as u16)),
        "RESP port with TLS; 0 = none. A member of a cluster announces it to clients with TLS, and port to others.",
    ),
    row(
        "tls-cert-file",
        Kind::Text,
        "",
        "",
        field!(Text(tls_cert_file)),
        "File of the server's certificate and those between it and its authority, PEM. Read again when it changes.",
    )
    .runtime(),
    row(
        "tls-key-file",
        Kind::Text,
        "",
        "",
        field!(Text(tls_key_file)),
        "File of the certificate's private key, PEM, without a password.",
    )
    .runtime(),
    row(
        "tls-ca-cert-file",
        Kind::Text,
        "",
        "",
        field!(Text(tls_ca_cert_file)),
        "File of the certificates of authorities that clients' certificates are checked against, PEM.",
    )
    .runtime(),
    row(
        "tls-ca-cert-dir",
        Kind::Text,
        "",
        "",
        field!(Text(tls_ca_cert_dir)),
        "Directory of such files.",
    )
    .runtime(),
    row(
        "tls-auth-clients",
        Kind::Choice(ClientAuth::NAMES),
        "",
        "yes",
        field!(tls_auth_clients: ClientAuth::Yes => "yes", ClientAuth::No => "no", ClientAuth::Optional => "optional"),
        "Whether clients must show a certificate at the ports with TLS; `optional`: they may show none.",
    )
    .runtime(),
    row(
        "tls-protocols",
        Kind::Text,
        "",
        "",
        field!(Text(tls_protocols)),
        "Accepted versions of TLS, separated by spaces: TLSv1.2, TLSv1.3. Empty: both.",
    )
    .runtime(),
    row(
        "tls-session-caching",
        Kind::Flag,
        "",
        "yes",
        field!(Flag(tls_session_caching)),
        "Give clients tickets, by which they continue an earlier session with a shorter handshake.",
    )
    .runtime(),
    row(
        "tls-cluster",
        Kind::Flag,
        "",
        "no",
        field!(Flag(tls_cluster)),
        "Encrypt the native protocol of a member: TLS 1.3, with the files above. Other members, coordinators, native clients and tools must show a certificate of the same authority, whatever tls-auth-clients says.",
    ),
    row(
        "native-port",
        between(0, 65_535),
        "",
        "7379",
        field!(Number(native_port as u16)),
        "Port of the native protocol, which coordinator, other members and native clients use; 0 = any free one. Only a member of a cluster listens there.",
    ),
    row(
        "native-socket-dir",
        Kind::Text,
        "",
        "",
        field!(Text(native_socket_dir)),
        "Directory of a Unix socket, named after this member's native address, for native clients on this machine: their requests and replies pass through shared memory. Only this user may open it. Empty: none.",
    ),
    row(
        "local-clients",
        between(0, 65_536),
        "connections",
        "128",
        field!(Number(local_clients as usize)),
        "Maximum connections with shared memory, each of which takes twice local-ring-size and a page; further clients use TCP.",
    )
    .runtime(),
    row(
        "local-ring-size",
        Kind::Size { min: RING_BYTES_MIN as u64, max: RING_BYTES_MAX as u64 },
        "bytes",
        "256kb",
        field!(Size(local_ring_bytes as usize)),
        "Shared memory for requests of a client on this machine, and as much for its replies: a power of two. Longer ones pass in pieces.",
    ),
    row(
        "coordinator",
        Kind::Text,
        "",
        "",
        field!(Text(coordinator)),
        "Addresses of the cluster's coordinators, host:port, separated by commas. Empty: this server is on its own.",
    ),
    row(
        "cluster",
        Kind::Text,
        "",
        "duramen",
        field!(Text(cluster)),
        "Name of the cluster: coordinator and members must agree on it.",
    ),
    row(
        "cluster-token-file",
        Kind::Text,
        "",
        "",
        field!(Text(cluster_token_file)),
        "File whose first line is the cluster's secret: members, coordinators, native clients and tools prove that they know it; empty: every process that reaches a native port is accepted.",
    ),
    row(
        "rack",
        Kind::Text,
        "",
        "",
        field!(Text(rack)),
        "Servers of one rack may fail together; replicas go to different racks if they can. Empty: this server has a rack of its own.",
    ),
    row(
        "announce",
        Kind::Text,
        "",
        "",
        field!(Text(announce)),
        "Host name or IP address under which others reach this member; empty = the first address of bind.",
    ),
    row(
        "master",
        Kind::Flag,
        "",
        "yes",
        field!(Flag(master)),
        "Whether this member owns tablets and serves them.",
    ),
    row(
        "backup",
        Kind::Flag,
        "",
        "yes",
        field!(Flag(backup)),
        "Whether this member keeps replicas for others.",
    ),
    row(
        "admin",
        Kind::Flag,
        "",
        "yes",
        field!(Flag(admin)),
        "Serve /metrics, /livez, /readyz and /memory over HTTP.",
    ),
    row(
        "admin-bind",
        Kind::Addresses { one: true },
        "",
        "127.0.0.1",
        field!(Addresses(admin_bind)),
        "IP address that admin HTTP listens on.",
    ),
    row(
        "admin-port",
        between(0, 65_535),
        "",
        "8379",
        field!(Number(admin_port as u16)),
        "Port of admin HTTP; 0 = any free one.",
    ),
    row(
        "admin-tls",
        Kind::Choice(&["auto", "yes", "no"]),
        "",
        "auto",
        field!(admin_tls: AdminTls::Auto => "auto", AdminTls::Yes => "yes", AdminTls::No => "no"),
        "Whether admin HTTP speaks TLS, with the same certificates; `auto`: if admin-bind is not loopback and there is a tls-cert-file.",
    ),
    row(
        "threads",
        between(0, 256),
        "threads",
        "0",
        field!(Number(threads as usize)),
        "Reactor threads; 0 = one per core; with flash, as many of them as `memory` has room for.",
    ),
    row(
        "restart-threads",
        between(0, 256),
        "threads",
        "0",
        field!(Number(restart_threads as usize)),
        "Threads that load the data at a start; 0 = two per core.",
    ),
    row(
        "cleaners",
        between(0, 64),
        "threads",
        "1",
        field!(Number(cleaners as usize)),
        "Background cleaner threads; 0 = only writers clean, when they must (not with flash-file).",
    ),
    row(
        "huge-pages",
        Kind::Flag,
        "",
        "yes",
        field!(Flag(huge_pages)),
        "Ask the kernel for 2 MB pages.",
    ),
    row(
        "poll",
        Kind::Choice(&["adaptive", "busy", "off"]),
        "",
        "adaptive",
        field!(poll: Poll::Adaptive => "adaptive", Poll::Busy => "busy", Poll::Off => "off"),
        "`adaptive` spins for a moment after activity, then sleeps; `busy` never sleeps; `off` always sleeps.",
    )
    .runtime(),
    row(
        "poll-spin-us",
        between(0, 100_000),
        "microseconds",
        "200",
        field!(Number(poll_spin_us as u64)),
        "Longest spin after activity with `poll = adaptive`; a server idle for longer uses no CPU.",
    )
    .runtime(),
    row(
        "maxclients",
        between(1, 1_000_000),
        "clients",
        "10000",
        field!(Number(maxclients as usize)),
        "Maximum number of connections; a further one gets an error and is closed.",
    )
    .runtime(),
    row(
        "timeout",
        between(0, 365 * DAY_S),
        "seconds",
        "0",
        field!(Number(timeout_s as u64)),
        "Idle time after which a client's connection is closed; 0 = never.",
    )
    .runtime(),
    row(
        "tcp-keepalive",
        between(0, 32_767),
        "seconds",
        "300",
        field!(Number(tcp_keepalive_s as u64)),
        "Idle time after which TCP probes a connection, to find dead peers; 0 = never.",
    ),
    row(
        "tcp-backlog",
        between(1, 65_535),
        "connections",
        "511",
        field!(Number(tcp_backlog as u32)),
        "Connections the kernel may hold before they are accepted.",
    ),
    access::UNIXSOCKET,
    access::UNIXSOCKETPERM,
    row(
        "requirepass",
        Kind::Password,
        "",
        "",
        field!(Text(requirepass)),
        "Password of the default user, unless the users give it one; empty = none.",
    )
    .runtime()
    .secret(),
    access::ACLFILE,
    access::USERS,
    access::ACLLOG_MAX_LEN,
    access::AUDIT_LOG,
    access::AUDIT_LOG_CLASSES,
    access::AUDIT_LOG_KEYS,
    row(
        "insecure-bind",
        Kind::Flag,
        "",
        "no",
        field!(Flag(insecure_bind)),
        "Allow addresses other than loopback although connections are not encrypted: passwords and data can be read on the network.",
    ),
    row(
        "output-pause",
        Kind::Size { min: 16 * KIB, max: 64 * GIB },
        "bytes",
        "1mb",
        field!(Size(output_pause_bytes as usize)),
        "Unsent output of a connection at which the server reads its requests only within pipeline-memory, until the client takes replies.",
    )
    .runtime(),
    row(
        "pipeline-memory",
        Kind::Size { min: 0, max: 64 * GIB },
        "bytes",
        "0",
        field!(Size(pipeline_bytes as u64)),
        "Requests and replies of all clients that are buffered for clients above output-pause, which send long pipelines before they read, and as much again for one of them; 0 = an eighth of memory, 16mb to 256mb.",
    )
    .runtime(),
    row(
        "output-limit",
        Kind::Size { min: 4 * MIB, max: 64 * GIB },
        "bytes",
        "256mb",
        field!(Size(output_limit_bytes as usize)),
        "Maximum unsent output per connection; beyond it the connection is closed.",
    )
    .runtime(),
    row(
        "tracking-table-max-keys",
        between(0, 1 << 40),
        "",
        "1000000",
        field!(Number(tracked_keys_max as usize)),
        "Maximum number of keys that the server remembers for clients with CLIENT TRACKING; further ones invalidate others. 0 = no number. In any case they take at most a twentieth of memory, beside it.",
    )
    .runtime(),
    row(
        "output-stall",
        between(0, DAY_S),
        "seconds",
        "60",
        field!(Number(output_stall_s as u64)),
        "Longest time that a client may take none of its replies; then its connection is closed; 0 = no limit.",
    )
    .runtime(),
    row(
        "reply-timeout",
        between(0, DAY_S),
        "seconds",
        "10",
        field!(Number(reply_timeout_s as u64)),
        "In a cluster: longest time that a request waits for the backups; then the client gets an error; 0 = no limit.",
    )
    .runtime(),
    row(
        "request-limit",
        Kind::Size { min: 2 * MIB, max: GIB },
        "bytes",
        "64mb",
        field!(Size(request_limit_bytes as usize)),
        "Largest request, and largest argument of one. Values have at most 1 MiB in any case.",
    )
    .redis("proto-max-bulk-len"),
    row(
        "args-limit",
        between(1_024, 16_777_216),
        "arguments",
        "1048576",
        field!(Number(args_limit as usize)),
        "Maximum number of arguments of one request.",
    ),
    row(
        "preauth-limit",
        Kind::Size { min: KIB, max: 16 * MIB },
        "bytes",
        "16kb",
        field!(Size(preauth_limit_bytes as usize)),
        "Largest request of a client that is not authenticated yet, and its unsent replies beyond which it is closed.",
    ),
    row(
        "login-timeout",
        between(0, DAY_S),
        "seconds",
        "60",
        field!(Number(login_timeout_s as u64)),
        "Time within which a client must authenticate if there is a password; then it is closed; 0 = no limit.",
    )
    .runtime(),
    slow::SLOWLOG_LOG_SLOWER_THAN,
    slow::SLOWLOG_MAX_LEN,
    slow::LATENCY_MONITOR_THRESHOLD,
    scripts::SCRIPT_MEMORY,
    scripts::BUSY_REPLY_THRESHOLD,
    row(
        "notify-keyspace-events",
        Kind::Events,
        "",
        "",
        (
            |config| Value::Text(config.events.to_string()),
            |config, value| {
                if let Value::Text(text) = value {
                    config.events = EventClasses::parse(&text).unwrap_or_default();
                }
            },
        ),
        "Changes of keys that are published to subscribers, by Redis's letters: `K` and `E` choose channels, `A` all classes of events. Empty: none.",
    )
    .runtime(),
    row(
        "stop-timeout-ms",
        between(0, 600_000),
        "milliseconds",
        "5000",
        field!(Number(stop_timeout_ms as u64)),
        "Longest time a stop waits for clients to take their last replies, and for a member's backups.",
    )
    .runtime(),
    row(
        "log-format",
        Kind::Choice(&["text", "json"]),
        "",
        "text",
        field!(log_format: LogFormat::Text => "text", LogFormat::Json => "json"),
        "Format of the log.",
    ),
    row(
        "log-level",
        Kind::Choice(&["error", "warn", "info", "debug", "trace"]),
        "",
        "info",
        field!(Choice(log_level)),
        "Least severe messages that are logged.",
    )
    .runtime(),
    row(
        "log-file",
        Kind::Text,
        "",
        "",
        field!(Text(log_file)),
        "File that the log is appended to; SIGHUP opens it again, so that it can be rotated. Empty: standard error.",
    )
    .redis("logfile"),
];

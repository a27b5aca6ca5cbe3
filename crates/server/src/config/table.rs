//! The table of settings: the single source of every name, unit, default, limit and explanation.

use super::{DiskMode, Kind, Level, LogFormat, Poll, ServerConfig, Setting, Value};
use duramen_base::limits::MEMORY_BYTES_MIN;
use duramen_base::units::{GIB, KIB, MIB};
use duramen_engine::Mode;

/// Accessors of a number: field, its type.
macro_rules! number {
    ($field:ident as $t:ty) => {
        (
            |config| Value::Number(config.$field as i64),
            |config, value| {
                if let Value::Number(n) = value {
                    config.$field = n as $t;
                }
            },
        )
    };
}

macro_rules! size {
    ($field:ident as $t:ty) => {
        (
            |config| Value::Size(config.$field as u64),
            |config, value| {
                if let Value::Size(n) = value {
                    config.$field = n as $t;
                }
            },
        )
    };
}

macro_rules! flag {
    ($field:ident) => {
        (
            |config| Value::Flag(config.$field),
            |config, value| {
                if let Value::Flag(on) = value {
                    config.$field = on;
                }
            },
        )
    };
}

macro_rules! text {
    ($field:ident) => {
        (
            |config| Value::Text(config.$field.clone()),
            |config, value| {
                if let Value::Text(text) = value {
                    config.$field = text;
                }
            },
        )
    };
}

macro_rules! choice {
    ($field:ident: $($variant:path => $name:literal),+) => {
        (
            |config| match config.$field {
                $($variant => Value::Choice($name),)+
            },
            |config, value| match value {
                $(Value::Choice($name) => config.$field = $variant,)+
                _ => {}
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
        // `auto` is no level.
        config.level = Level::from_name(name);
    }
}

/// Largest budget: the address space that a process can reserve on x86-64 with room for the rest.
const MEMORY_BYTES_MAX: u64 = 64 << 40;
/// The range of 32-bit numbers of sectors of 512 bytes.
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
    .redis("maxmemory"),
    row(
        "mode",
        Kind::Choice(&["store", "cache"]),
        "",
        "store",
        choice!(mode: Mode::Store => "store", Mode::Cache => "cache"),
        "At the memory limit: `store` answers writes with an error and loses nothing, `cache` evicts what was not read recently or often.",
    ),
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
        text!(dir),
        "Data directory; with disk-mode raw, a partition or file. Empty: `duramen-data` in the working directory; with level memory, or for a cache, no files at all.",
    ),
    row(
        "disk-mode",
        Kind::Choice(&["buffered", "direct", "raw"]),
        "",
        "buffered",
        choice!(disk_mode: DiskMode::Buffered => "buffered", DiskMode::Direct => "direct", DiskMode::Raw => "raw"),
        "How data is written: through the page cache, past it (O_DIRECT), or straight to a partition or one file.",
    ),
    row(
        "wal-size",
        Kind::Size { min: 0, max: 64 * GIB },
        "bytes",
        "0",
        size!(wal_bytes as u64),
        "Size of the write-ahead log, laid down when the directory is made; 0 = by memory size.",
    ),
    row(
        "disk-size",
        Kind::Size { min: 0, max: MEMORY_BYTES_MAX },
        "bytes",
        "0",
        size!(disk_bytes as u64),
        "Most disk space for the log; 0 = memory and flash-size times disk-expansion.",
    ),
    row(
        "disk-expansion",
        between(110, 1000),
        "percent",
        "200",
        number!(disk_expansion_percent as u64),
        "Disk space for the log in percent of memory and flash-size: more makes cleaning on disk cheaper.",
    ),
    row(
        "flash-file",
        Kind::Text,
        "",
        "",
        text!(flash_file),
        "File or partition that takes what memory has no room for and is not read often: then data may be larger than memory. Its content is not kept. Empty = none.",
    ),
    row(
        "flash-size",
        Kind::Size { min: 0, max: FLASH_BYTES_MAX },
        "bytes",
        "0",
        size!(flash_bytes as u64),
        "How much of flash-file is used; a file is made so long at the start.",
    ),
    row(
        "snapshot-dir",
        Kind::Text,
        "",
        "",
        text!(snapshot_dir),
        "Where SAVE and BGSAVE put their copy, `dump`; empty = `snapshots` in the data directory.",
    )
    .runtime(),
    row(
        "scrub-interval",
        between(0, 3_600_000),
        "ms",
        "1000",
        number!(scrub_interval_ms as u64),
        "One frame on disk is read again and verified in this time, so that damage is found and repaired while memory still has the data; 0 = only by DURAMEN.SCRUB.",
    )
    .runtime(),
    row(
        "bind",
        Kind::Addresses { one: false },
        "",
        "127.0.0.1",
        (
            |config| Value::Addresses(config.bind.clone()),
            |config, value| {
                if let Value::Addresses(list) = value {
                    config.bind = list;
                }
            },
        ),
        "IP addresses the RESP port listens on, separated by commas.",
    ),
    row(
        "port",
        between(0, 65_535),
        "",
        "6379",
        number!(port as u16),
        "RESP port; 0 = any free one.",
    ),
    row(
        "native-port",
        between(0, 65_535),
        "",
        "7379",
        number!(native_port as u16),
        "Port of the native protocol, which coordinator, other members and native clients use; 0 = any free one. Only a member of a cluster listens there.",
    ),
    row(
        "coordinator",
        Kind::Text,
        "",
        "",
        text!(coordinator),
        "Addresses of the cluster's coordinators, host:port, separated by commas. Empty: this server is on its own.",
    ),
    row(
        "cluster",
        Kind::Text,
        "",
        "duramen",
        text!(cluster),
        "Name of the cluster: coordinator and members must agree on it.",
    ),
    row(
        "cluster-token-file",
        Kind::Text,
        "",
        "",
        text!(cluster_token_file),
        "File whose first line members, coordinators, native clients and tools of the cluster show each other; empty: whoever reaches a native port may speak.",
    ),
    row(
        "rack",
        Kind::Text,
        "",
        "",
        text!(rack),
        "Servers of one rack may fail together: replicas go to different racks. Empty: a rack of its own.",
    ),
    row(
        "announce",
        Kind::Text,
        "",
        "",
        text!(announce),
        "Host name or IP address under which others reach this member; empty = the first address of bind.",
    ),
    row(
        "master",
        Kind::Flag,
        "",
        "yes",
        flag!(master),
        "Whether this member owns tablets and serves them.",
    ),
    row(
        "backup",
        Kind::Flag,
        "",
        "yes",
        flag!(backup),
        "Whether this member keeps replicas for others.",
    ),
    row(
        "admin",
        Kind::Flag,
        "",
        "yes",
        flag!(admin),
        "Serve /metrics, /livez, /readyz and /memory over HTTP.",
    ),
    row(
        "admin-bind",
        Kind::Addresses { one: true },
        "",
        "127.0.0.1",
        (
            |config| Value::Addresses(vec![config.admin_bind]),
            |config, value| {
                if let Value::Addresses(list) = value
                    && let Some(address) = list.first()
                {
                    config.admin_bind = *address;
                }
            },
        ),
        "IP address of admin HTTP.",
    ),
    row(
        "admin-port",
        between(0, 65_535),
        "",
        "8379",
        number!(admin_port as u16),
        "Port of admin HTTP; 0 = any free one.",
    ),
    row(
        "threads",
        between(0, 256),
        "threads",
        "0",
        number!(threads as usize),
        "Reactor threads; 0 = one per core.",
    ),
    row(
        "restart-threads",
        between(0, 256),
        "threads",
        "0",
        number!(restart_threads as usize),
        "Threads that read the data back at a start; 0 = two per core.",
    ),
    row(
        "cleaners",
        between(0, 64),
        "threads",
        "1",
        number!(cleaners as usize),
        "Background cleaner threads; 0 = only writers clean, when they must.",
    ),
    row(
        "huge-pages",
        Kind::Flag,
        "",
        "yes",
        flag!(huge_pages),
        "Ask the kernel for 2 MB pages.",
    ),
    row(
        "poll",
        Kind::Choice(&["adaptive", "busy", "off"]),
        "",
        "adaptive",
        choice!(poll: Poll::Adaptive => "adaptive", Poll::Busy => "busy", Poll::Off => "off"),
        "`adaptive` spins for a moment after activity, then sleeps; `busy` never sleeps; `off` always sleeps.",
    )
    .runtime(),
    row(
        "poll-spin-us",
        between(0, 100_000),
        "microseconds",
        "200",
        number!(poll_spin_us as u64),
        "Longest spin after activity with `poll = adaptive`; a server idle for longer uses no CPU.",
    )
    .runtime(),
    row(
        "maxclients",
        between(1, 1_000_000),
        "clients",
        "10000",
        number!(maxclients as usize),
        "Connections at once; one more gets an error and is closed.",
    )
    .runtime(),
    row(
        "timeout",
        between(0, 365 * DAY_S),
        "seconds",
        "0",
        number!(timeout_s as u64),
        "Close a client that has been idle for this long; 0 = never.",
    )
    .runtime(),
    row(
        "tcp-keepalive",
        between(0, 32_767),
        "seconds",
        "300",
        number!(tcp_keepalive_s as u64),
        "Probe silent connections after this long, so that dead peers are noticed; 0 = never.",
    ),
    row(
        "tcp-backlog",
        between(1, 65_535),
        "connections",
        "511",
        number!(tcp_backlog as u32),
        "Connections the kernel may hold before they are accepted.",
    ),
    row(
        "requirepass",
        Kind::Text,
        "",
        "",
        text!(requirepass),
        "Password of the default user; empty = none.",
    )
    .runtime()
    .secret(),
    row(
        "insecure-bind",
        Kind::Flag,
        "",
        "no",
        flag!(insecure_bind),
        "Allow addresses other than loopback although connections are not encrypted: whoever sees the network reads passwords and data.",
    ),
    row(
        "output-pause",
        Kind::Size { min: 16 * KIB, max: 64 * GIB },
        "bytes",
        "1mb",
        size!(output_pause_bytes as usize),
        "A client with more unsent replies than this is not read from until it takes some.",
    )
    .runtime(),
    row(
        "output-limit",
        Kind::Size { min: 64 * KIB, max: 64 * GIB },
        "bytes",
        "256mb",
        size!(output_limit_bytes as usize),
        "A client with more unsent replies than this is closed.",
    )
    .runtime(),
    row(
        "output-stall",
        between(0, DAY_S),
        "seconds",
        "60",
        number!(output_stall_s as u64),
        "A client that takes none of its replies for this long is closed; 0 = never.",
    )
    .runtime(),
    row(
        "reply-timeout",
        between(0, DAY_S),
        "seconds",
        "10",
        number!(reply_timeout_s as u64),
        "In a cluster: a client gets an error when its request has waited this long for the backups; 0 = it waits for ever.",
    )
    .runtime(),
    row(
        "request-limit",
        Kind::Size { min: 2 * MIB, max: GIB },
        "bytes",
        "64mb",
        size!(request_limit_bytes as usize),
        "Largest request, and largest argument of one. A value may have 1 MiB whatever this says.",
    )
    .redis("proto-max-bulk-len"),
    row(
        "args-limit",
        between(1_024, 16_777_216),
        "arguments",
        "1048576",
        number!(args_limit as usize),
        "Most arguments of one request.",
    ),
    row(
        "preauth-limit",
        Kind::Size { min: KIB, max: 16 * MIB },
        "bytes",
        "16kb",
        size!(preauth_limit_bytes as usize),
        "Largest request of a client that has not given the password yet.",
    ),
    row(
        "slowlog-log-slower-than",
        between(-1, i64::MAX),
        "microseconds",
        "10000",
        number!(slowlog_slower_than_us as i64),
        "Commands slower than this are kept for SLOWLOG; 0 = all, -1 = none.",
    )
    .runtime(),
    row(
        "slowlog-max-len",
        between(0, 1_000_000),
        "entries",
        "128",
        number!(slowlog_max_len as usize),
        "Entries the slow log keeps.",
    )
    .runtime(),
    row(
        "stop-timeout-ms",
        between(0, 600_000),
        "milliseconds",
        "5000",
        number!(stop_timeout_ms as u64),
        "Longest time a stop waits for clients to take their last replies.",
    )
    .runtime(),
    row(
        "log-format",
        Kind::Choice(&["text", "json"]),
        "",
        "text",
        choice!(log_format: LogFormat::Text => "text", LogFormat::Json => "json"),
        "Form of the log.",
    ),
    row(
        "log-level",
        Kind::Choice(&["error", "warn", "info", "debug", "trace"]),
        "",
        "info",
        (
            |config| Value::Text(config.log_level.clone()),
            |config, value| {
                if let Value::Choice(name) = value {
                    config.log_level = name.to_owned();
                }
            },
        ),
        "Least severe messages that are logged.",
    )
    .runtime(),
    row(
        "log-file",
        Kind::Text,
        "",
        "",
        text!(log_file),
        "File that the log is appended to; SIGHUP opens it again, so that it can be rotated. Empty: standard error.",
    )
    .redis("logfile"),
];

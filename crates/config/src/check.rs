//! Checks of settings that have to fit together, which no single row of the table can check.

use super::{AUDIT_CLASSES, DiskMode, Mode, ServerConfig, format_size, tls};
use crate::error::ServerError;
use duramen_wire::resp::Limits;
use std::net::IpAddr;

/// Least size of flash: a few of the largest segments.
const FLASH_BYTES_MIN: u64 = 64 << 20;
/// Bytes of a request that gives a password, beside the password.
const LOGIN_BYTES: usize = 128;
const CLUSTER_NAME_MAX: usize = 64;

/// Nothing is wrong, or the text names the settings and the remedy.
type Checked = Result<(), ServerError>;

fn refuse(text: impl Into<String>) -> Checked {
    Err(ServerError::Config(text.into()))
}

pub(super) fn all(config: &ServerConfig) -> Checked {
    tls::check(config)?;
    tls::check_addresses(config)?;
    memory(config)?;
    output(config)?;
    access(config)?;
    password(config)?;
    flash(config)?;
    encryption(config)?;
    member(config)
}

fn memory(config: &ServerConfig) -> Checked {
    if config.memory_bytes_max == 0 || config.memory_bytes <= config.memory_bytes_max {
        return Ok(());
    }
    refuse(format!(
        "memory ({}) is above memory-max ({}), up to which a server reserves address space at \
         its start: set memory-max higher, and start the server again",
        format_size(config.memory_bytes),
        format_size(config.memory_bytes_max)
    ))
}

fn output(config: &ServerConfig) -> Checked {
    if !config.local_ring_bytes.is_power_of_two() {
        return refuse(format!(
            "local-ring-size {} is not a power of two, for example 256kb",
            format_size(config.local_ring_bytes as u64)
        ));
    }
    if config.output_pause_bytes > config.output_limit_bytes {
        return refuse(format!(
            "output-pause ({}) is above output-limit ({}): no client would ever be paused before it is closed",
            format_size(config.output_pause_bytes as u64),
            format_size(config.output_limit_bytes as u64)
        ));
    }
    Ok(())
}

fn access(config: &ServerConfig) -> Checked {
    let access = &config.access;
    if !access.aclfile.is_empty() && !access.users.is_empty() {
        return refuse(
            "users are configured by `aclfile` or by `users`, not by both: move them to the file",
        );
    }
    if config.unixsocket_mode().is_none() {
        return refuse(format!(
            "unixsocketperm `{}` is no octal mode, for example 700",
            access.unixsocketperm
        ));
    }
    if config.audit_classes().is_none() {
        return refuse(format!(
            "audit-log-classes `{}` must be names of {}, separated by commas",
            access.audit_log_classes,
            AUDIT_CLASSES.join(", ")
        ));
    }
    Ok(())
}

/// Refuses a password that no client could give, because its `AUTH` would be too long.
fn password(config: &ServerConfig) -> Checked {
    let longest = Limits::unauthenticated().bulk_bytes_max;
    let most = config.preauth_limit_bytes.min(longest);
    let most = most.saturating_sub(LOGIN_BYTES);
    if config.requirepass.len() > most {
        return refuse(format!(
            "requirepass has {} bytes, and clients can give at most {most} (preauth-limit)",
            config.requirepass.len()
        ));
    }
    Ok(())
}

fn flash(config: &ServerConfig) -> Checked {
    match (config.flash_file.is_empty(), config.flash_bytes) {
        (true, 0) => Ok(()),
        (true, _) => {
            refuse("flash-size without flash-file: name the file or partition by `--flash-file`")
        }
        (false, 0) => refuse(format!(
            "flash-file without flash-size: set `--flash-size`, the size of the part of {} that may be used",
            config.flash_file
        )),
        (false, bytes) if bytes < FLASH_BYTES_MIN => refuse(format!(
            "flash-size {} is too small to be of use: the least is {}",
            format_size(bytes),
            format_size(FLASH_BYTES_MIN)
        )),
        (false, _) if config.mode == Mode::Cache && config.data_dir().is_some() => refuse(
            "a cache with flash keeps nothing on disk: leave out `flash-file`, or `dir` and `level`",
        ),
        (false, _) if config.cleaners == 0 => refuse(
            "flash-file with `cleaners 0`: only cleaner threads wait for the device without delaying clients; set at least 1",
        ),
        (false, _) => Ok(()),
    }
}

fn encryption(config: &ServerConfig) -> Checked {
    if config.encryption_key_file.is_empty() || config.encryption_key_command.is_empty() {
        return Ok(());
    }
    refuse("encryption-key-file and encryption-key-command are both set: leave one of them out")
}

fn member(config: &ServerConfig) -> Checked {
    if !config.is_member() {
        return Ok(());
    }
    for address in config.coordinators() {
        let port = address.rsplit_once(':').map(|(_, port)| port.parse());
        let Some(Ok(1u16..)) = port else {
            return refuse(format!(
                "coordinator `{address}` is not host:port, for example 127.0.0.1:7400"
            ));
        };
    }
    let is_name = (1..=CLUSTER_NAME_MAX).contains(&config.cluster.len())
        && !config.cluster.contains(char::is_whitespace);
    if !is_name {
        return refuse(format!(
            "the cluster's name must have 1 to {CLUSTER_NAME_MAX} bytes, none of them blank"
        ));
    }
    if !config.master && !config.backup {
        return refuse("a member is a master, a backup, or both");
    }
    if config.mode == Mode::Cache {
        return refuse("a member of a cluster cannot be a cache: leave out `mode cache`");
    }
    if config.disk_mode == DiskMode::Raw {
        return refuse("a member keeps its id in a directory: disk-mode raw is for single servers");
    }
    let anywhere = config.bind.first().is_none_or(IpAddr::is_unspecified);
    if config.announce.is_empty() && anywhere {
        return refuse(
            "others must know where to reach this member: name its host by `--announce`",
        );
    }
    Ok(())
}

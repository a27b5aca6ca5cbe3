//! Rows of the settings about users, the audit log and the Unix socket.

use super::super::{AuditKeys, Kind, ServerConfig, Setting, Value};
use super::{between, row};

const AUDIT_KEYS: [&str; 3] = ["none", "hashed", "plain"];

fn show_audit_keys(config: &ServerConfig) -> Value {
    Value::Choice(AUDIT_KEYS[config.access.audit_log_keys as usize])
}

fn set_audit_keys(config: &mut ServerConfig, value: Value) {
    if let Value::Choice(name) = value {
        let number = AUDIT_KEYS.iter().position(|known| *known == name);
        config.access.audit_log_keys = AuditKeys::from_number(number.unwrap_or(0) as u32);
    }
}

pub(super) const UNIXSOCKET: Setting = row(
    "unixsocket",
    Kind::Text,
    "",
    "",
    text!(access.unixsocket),
    "Path of a Unix socket for RESP clients on this machine; empty = none. A socket that a killed server of this user left is replaced, any other file is not.",
);

pub(super) const UNIXSOCKETPERM: Setting = row(
    "unixsocketperm",
    Kind::Text,
    "",
    "700",
    text!(access.unixsocketperm),
    "Permissions of unixsocket, as octal digits: who may open it.",
);

pub(super) const ACLFILE: Setting = row(
    "aclfile",
    Kind::Text,
    "",
    "",
    text!(access.aclfile),
    "File of users, one a line as ACL LIST shows them: read at the start and by ACL LOAD, written by ACL SAVE. Empty = none.",
);

pub(super) const USERS: Setting = row(
    "users",
    Kind::Lines,
    "",
    "",
    text!(access.users),
    "Users, one a line as in aclfile (`user alice on >password ~app:* +@read`); use this or aclfile.",
)
.secret();

pub(super) const ACLLOG_MAX_LEN: Setting = row(
    "acllog-max-len",
    between(0, 100_000),
    "entries",
    "128",
    number!(access.acllog_max_len as usize),
    "Maximum number of entries in the log of denied requests and failed logins (ACL LOG).",
)
.runtime();

pub(super) const AUDIT_LOG: Setting = row(
    "audit-log",
    Kind::Text,
    "",
    "",
    text!(access.audit_log),
    "File to which a line of JSON is appended for each failed login, each denied request, and each request of audit-log-classes; SIGHUP opens it again. Empty = none.",
);

pub(super) const AUDIT_LOG_CLASSES: Setting = row(
    "audit-log-classes",
    Kind::Text,
    "",
    "auth,admin",
    text!(access.audit_log_classes),
    "Classes of allowed requests in the audit log, separated by commas: auth (logins), admin, write, read, connection.",
)
.runtime();

pub(super) const AUDIT_LOG_KEYS: Setting = row(
    "audit-log-keys",
    Kind::Choice(&AUDIT_KEYS),
    "",
    "hashed",
    (show_audit_keys, set_audit_keys),
    "How the audit log shows the first key of a request: not at all, as a digest that can be compared within one run of the server, or as it is.",
)
.runtime();

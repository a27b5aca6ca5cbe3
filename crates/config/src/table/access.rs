//! Rows of the settings about users, the audit log and the Unix socket.

use super::super::{AuditKeys, Kind, Setting};
use super::{between, row};

pub(super) const UNIXSOCKET: Setting = row(
    "unixsocket",
    Kind::Text,
    "",
    "",
    field!(Text(access.unixsocket)),
    "Path of a Unix socket for RESP clients on this machine; empty = none. A socket that a killed server of this user left is replaced, any other file is not.",
);

pub(super) const UNIXSOCKETPERM: Setting = row(
    "unixsocketperm",
    Kind::Text,
    "",
    "700",
    field!(Text(access.unixsocketperm)),
    "Permissions of unixsocket, as octal digits: who may open it.",
);

pub(super) const ACLFILE: Setting = row(
    "aclfile",
    Kind::Text,
    "",
    "",
    field!(Text(access.aclfile)),
    "File of users, one a line as ACL LIST shows them: read at the start and by ACL LOAD, written by ACL SAVE. Empty = none.",
);

pub(super) const USERS: Setting = row(
    "users",
    Kind::Lines,
    "",
    "",
    field!(Text(access.users)),
    "Users, one a line as in aclfile (`user alice on >password ~app:* +@read`); use this or aclfile.",
)
.secret();

pub(super) const ACLLOG_MAX_LEN: Setting = row(
    "acllog-max-len",
    between(0, 100_000),
    "entries",
    "128",
    field!(Number(access.acllog_max_len as usize)),
    "Maximum number of entries in the log of denied requests and failed logins (ACL LOG).",
)
.runtime();

pub(super) const AUDIT_LOG: Setting = row(
    "audit-log",
    Kind::Text,
    "",
    "",
    field!(Text(access.audit_log)),
    "File to which a line of JSON is appended for each failed login, each denied request, and each request of audit-log-classes; SIGHUP opens it again. Empty = none.",
);

pub(super) const AUDIT_LOG_CLASSES: Setting = row(
    "audit-log-classes",
    Kind::Text,
    "",
    "auth,admin",
    field!(Text(access.audit_log_classes)),
    "Classes of allowed requests in the audit log, separated by commas: auth (logins), admin, write, read, connection.",
)
.runtime();

pub(super) const AUDIT_LOG_KEYS: Setting = row(
    "audit-log-keys",
    Kind::Choice(&["none", "hashed", "plain"]),
    "",
    "hashed",
    field!(access.audit_log_keys: AuditKeys::None => "none", AuditKeys::Hashed => "hashed", AuditKeys::Plain => "plain"),
    "How the audit log shows the first key of a request: not at all, as a digest that can be compared within one run of the server, or as it is.",
)
.runtime();

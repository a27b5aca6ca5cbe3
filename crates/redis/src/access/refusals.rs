//! Logins and denied requests of all ports: the audit log, the counters of `INFO`, and `ACL LOG`.

use crate::state::Shared;
use crate::state::access::audit::{Outcome, Record};
use crate::state::access::users::{Denial, Reason};
use duramen_config::AUDIT_CLASSES;
use std::time::{SystemTime, UNIX_EPOCH};

/// Maximum bytes of a user's name in the logs: a failed login may name any.
const USER_BYTES_MAX: usize = 128;

/// The client of a login or of a request.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The name of its user.
    pub user: String,
    /// As `CLIENT LIST` shows it.
    pub address: String,
    /// Its id; 0: it has none.
    pub client: u64,
    /// Its description in `ACL LOG`: a line in the form of `CLIENT LIST`.
    pub line: String,
}

/// Records a login with the name that it gave. The caller has checked that the outcome belongs
/// into the audit log.
#[cold]
pub fn record_login(shared: &Shared, origin: &Origin, user: &str, outcome: Outcome) {
    if !shared.audit().is_on() {
        return;
    }
    shared.audit().add(&Record {
        user,
        address: &origin.address,
        client: origin.client,
        command: "auth",
        class: AUDIT_CLASSES[0],
        outcome,
        key: None,
        args: &[],
    });
}

/// Records and counts a failed login. `object`: the command or the port.
#[cold]
pub fn note_failed_login(shared: &Shared, origin: &Origin, object: &[u8], user: &[u8]) {
    let user = String::from_utf8_lossy(user);
    let user = &user[..user.floor_char_boundary(USER_BYTES_MAX)];
    record_login(shared, origin, user, Outcome::FailedLogin);
    let origin = Origin {
        user: user.to_owned(),
        ..origin.clone()
    };
    note_denial(shared, origin, Reason::Auth, object.to_vec(), "toplevel");
}

/// Counts a failed login or a denied request, and adds it to `ACL LOG`.
#[cold]
pub fn note_denial(
    shared: &Shared,
    origin: Origin,
    reason: Reason,
    object: Vec<u8>,
    context: &'static str,
) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ms = now.map_or(0, |now| now.as_millis() as u64);
    let denial = Denial {
        id: 0,
        count: 1,
        reason,
        context,
        object,
        user: origin.user,
        client: origin.line,
        created_ms: now_ms,
        updated_ms: now_ms,
    };
    shared
        .acl()
        .note_denial(denial, shared.config().access.acllog_max_len);
}

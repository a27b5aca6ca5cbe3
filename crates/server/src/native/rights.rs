//! Users of native clients: their logins, and the check of each request by the commands of RESP
//! that it stands for.
//!
//! | request | command | access to the key |
//! |---|---|---|
//! | read | `GET` | read |
//! | write | `SET` | write |
//! | remove | `DEL` | write |
//! | increment | `INCRBY`, `INCRBYFLOAT` | read and write |
//! | enumeration | `SCAN` and `GET` | read, of all keys |
//! | ping | none | none |
//!
//! **Invariants**
//! - R1: a request is served only after [`check`] has allowed it, or those of its parts that are
//!   served; all other code of this port gets the parts that it allows.
//! - R2: the rights are those of the user as it was when the client's turn began (permit::U2).
//! - R3: a client that has not logged in has the rights of the default user, if that needs no
//!   password; otherwise it may ping and log in.

use crate::audit::{KEY_BYTES_MAX, Outcome as AuditOutcome, Record};
use crate::clock;
use crate::config::AUDIT_CLASSES;
use crate::exec::{Client, Spec, client_origin, find_command};
use crate::shared::Shared;
use crate::shared::acl::Reason;
use duramen_acl::{Access, Denied, LoginError, User};
use duramen_base::ids::TableId;
use duramen_wire::native::codec::Parts;
use duramen_wire::native::message::{Amount, Login, Operation, Request, Single};

/// The name of this port in the logs.
const PORT: &str = "native";

/// The answer to a client that has to log in.
pub(super) const LOG_IN: &str = "the client has to log in as a user, with its password";

/// The part of a request that its user may not run, for the client.
pub(super) type Refusal = String;

/// The result of [`check`].
pub(super) enum Verdict<'a> {
    Allowed,
    Refused(Refusal),
    /// Of several operations, some are refused.
    Parts(Parts<'a>, Vec<Option<Refusal>>),
}

/// Checks a request. A refused part is counted and recorded.
#[inline]
pub(super) fn check<'a>(shared: &Shared, client: &Client, request: &Request<'a>) -> Verdict<'a> {
    match client.is_unrestricted() && shared.audit.classes() == 0 {
        true => Verdict::Allowed,
        false => check_user(shared, client, request),
    }
}

#[cold]
fn check_user<'a>(shared: &Shared, client: &Client, request: &Request<'a>) -> Verdict<'a> {
    if matches!(request, Request::Ping) {
        return Verdict::Allowed;
    }
    let Some(user) = client.user().filter(|_| client.is_authenticated()) else {
        return Verdict::Refused(LOG_IN.to_owned());
    };
    let check = |wanted: Wanted<'_>| wanted.check(shared, client, user);
    match request {
        Request::Ping => Verdict::Allowed,
        Request::Single(single) => check(Wanted::of(single)).map_or_else(Verdict::Refused, allowed),
        Request::Multi(parts) => {
            let refused = parts.iter().map(|single| check(Wanted::of(&single)).err());
            let refused: Vec<_> = refused.collect();
            match refused.iter().all(Option::is_none) {
                true => Verdict::Allowed,
                false => Verdict::Parts(*parts, refused),
            }
        }
        Request::Enumerate { table, .. } => {
            let all = |command| Wanted {
                spec: command_named(command),
                key: None,
                access: READS,
                table: *table,
            };
            let both = check(all("scan")).and_then(|()| check(all("get")));
            both.map_or_else(Verdict::Refused, allowed)
        }
    }
}

fn allowed<'a>((): ()) -> Verdict<'a> {
    Verdict::Allowed
}

const READS: Access = Access {
    reads: true,
    writes: false,
};
const WRITES: Access = Access {
    reads: false,
    writes: true,
};

/// The rights that an operation needs.
struct Wanted<'a> {
    spec: &'static Spec,
    /// `None`: all keys of the table.
    key: Option<&'a [u8]>,
    access: Access,
    table: TableId,
}

/// # Panics
/// Never with the names in this file: they are in the command table.
fn command_named(name: &str) -> &'static Spec {
    find_command(name.as_bytes()).expect("a command of the table")
}

impl<'a> Wanted<'a> {
    fn of(single: &Single<'a>) -> Wanted<'a> {
        let (name, access) = match single.operation {
            Operation::Read => ("get", READS),
            Operation::Write { .. } => ("set", WRITES),
            Operation::Remove { .. } => ("del", WRITES),
            Operation::Increment { by } => {
                let name = match by {
                    Amount::Integer(_) => "incrby",
                    Amount::Float(_) => "incrbyfloat",
                };
                let both = Access {
                    reads: true,
                    writes: true,
                };
                (name, both)
            }
        };
        Wanted {
            spec: command_named(name),
            key: Some(single.key),
            access,
            table: single.table,
        }
    }

    fn check(&self, shared: &Shared, client: &Client, user: &User) -> Result<(), Refusal> {
        let asked = Asked {
            wanted: self,
            shared,
        };
        let Err(denied) = user.check(&asked, shared.acl.catalog()) else {
            if self.spec.is_audited(shared.audit.classes()) {
                self.record(shared, client, AuditOutcome::Allowed);
            }
            return Ok(());
        };
        let key = self.key.unwrap_or_default();
        let (reason, object) = match denied {
            Denied::Command => (Reason::Command, self.spec.name.as_bytes().to_vec()),
            Denied::Key(_) | Denied::Channel(_) => (Reason::Key, key.to_vec()),
            Denied::Table(_) => {
                let table = shared.table_name(self.table).unwrap_or_default();
                (Reason::Table, table.into_bytes())
            }
        };
        shared.note_denial(client_origin(shared, client), reason, object, PORT);
        self.record(shared, client, AuditOutcome::Denied);
        Err(match denied {
            Denied::Command => format!("no right to run '{}'", self.spec.name),
            Denied::Table(_) => "no right to this table".to_owned(),
            _ if self.key.is_none() => "no right to all keys of the table".to_owned(),
            _ => "no right to this key".to_owned(),
        })
    }

    fn record(&self, shared: &Shared, client: &Client, outcome: AuditOutcome) {
        if !shared.audit.is_on() {
            return;
        }
        let class = self.spec.class().and_then(|class| AUDIT_CLASSES.get(class));
        let key = self
            .key
            .map(|key| key[..key.len().min(KEY_BYTES_MAX)].to_vec());
        shared.audit.add(Record {
            user: client.user_name(),
            address: client.record().shown_addresses().0,
            client: client.record().id,
            command: self.spec.name,
            class: class.copied().unwrap_or("other"),
            outcome,
            key,
            args: Vec::new(),
        });
    }
}

/// An operation, for the check.
struct Asked<'a> {
    wanted: &'a Wanted<'a>,
    shared: &'a Shared,
}

impl duramen_acl::Request for Asked<'_> {
    fn command(&self) -> usize {
        self.wanted.spec.number
    }

    fn arg(&self, position: usize) -> Option<&[u8]> {
        self.wanted.key.filter(|_| position == 1)
    }

    fn each_key(&self, look: &mut dyn FnMut(usize, &[u8], Access) -> bool) {
        if let Some(key) = self.wanted.key {
            look(1, key, self.wanted.access);
        }
    }

    fn reads_any_key(&self) -> Option<usize> {
        self.wanted.key.is_none().then_some(0)
    }

    fn each_table(&self, look: &mut dyn FnMut(usize, Option<&str>) -> bool) {
        let name = self.shared.table_name(self.wanted.table);
        look(0, Some(name.unwrap_or_default().as_str()));
    }
}

/// Gives a client the rights of a user, if the password is right.
///
/// # Errors
/// The reason, and the time before which it must not be sent, in milliseconds of the server's
/// clock.
#[cold]
pub(super) fn log_in(
    shared: &Shared,
    client: &mut Client,
    login: &Login<'_>,
) -> Result<(), (String, Option<u64>)> {
    let users = shared.acl.users();
    let address = client.record().peer.ip();
    let pair = (login.user, login.password);
    match shared.logins.log_in(&users, address, pair, clock::now_ms()) {
        Ok(user) => {
            client.log_in(user);
            if shared.audit.classes() & 1 != 0 {
                let origin = client_origin(shared, client);
                shared.record_login(&origin, user.name(), AuditOutcome::Allowed);
            }
            Ok(())
        }
        Err(error) => {
            let origin = client_origin(shared, client);
            shared.note_failed_login(&origin, PORT.as_bytes(), login.user);
            let until_ms = match error {
                LoginError::TooMany => None,
                LoginError::Wrong { until_ms } => until_ms,
            };
            Err((error.to_string(), until_ms))
        }
    }
}

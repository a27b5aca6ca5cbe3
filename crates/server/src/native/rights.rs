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
//! - R1: a request, or a part of one, is served only after [`check`] has allowed it. All other code
//!   of this port gets only the allowed parts.
//! - R2: the rights are those of the user as it was when the client's turn began (permit::U2).
//! - R3: a client that has not logged in has the rights of the default user, if that needs no
//!   password; otherwise it may ping and log in.
//! - R4: an answered request is recorded once, however often it was presented (native::Y4), with
//!   one denial per reason, however many of its operations are refused.

use duramen_acl::{Access, Denied, LoginError, User};
use duramen_base::ids::TableId;
use duramen_config::{AUDIT_CLASSES, clock};
use duramen_redis::access;
use duramen_redis::access::{Outcome as AuditOutcome, Reason, Record, origin as client_origin};
use duramen_redis::command::Spec;
use duramen_redis::state::{Client, Shared};
use duramen_redis::table::{DEL, GET, INCRBY, INCRBYFLOAT, SCAN, SET};
use duramen_wire::native::codec::Parts;
use duramen_wire::native::message::{Amount, Login, Operation, Request, Single};
use std::cell::OnceCell;
use std::collections::HashMap;

/// The name of this port in the logs.
const PORT: &str = "native";

/// The answer to a client that has to log in.
const LOG_IN: &str = "the client has to log in as a user, with its password";

/// Reason why a user may not run an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    LogIn,
    /// The command that the operation stands for.
    Command(&'static str),
    Key,
    AllKeys,
    Table,
    /// This member does not know the table yet, so nobody knows whether the user may use it.
    UnknownTable,
}

impl Refusal {
    /// The text for the client.
    pub(super) fn text(self) -> String {
        match self {
            Refusal::LogIn => LOG_IN.to_owned(),
            Refusal::Command(name) => format!("no right to run '{name}'"),
            Refusal::Key => "no right to this key".to_owned(),
            Refusal::AllKeys => "no right to all keys of the table".to_owned(),
            Refusal::Table => "no right to this table".to_owned(),
            Refusal::UnknownTable => "the table is not known here".to_owned(),
        }
    }

    /// The reason for the logs; `None` if the refusal counts as no denial.
    fn reason(self) -> Option<Reason> {
        match self {
            Refusal::LogIn | Refusal::UnknownTable => None,
            Refusal::Command(_) => Some(Reason::Command),
            Refusal::Key | Refusal::AllKeys => Some(Reason::Key),
            Refusal::Table => Some(Reason::Table),
        }
    }
}

/// The result of [`check`].
pub(super) enum Verdict<'a> {
    Allowed,
    Refused(Refusal),
    /// Some of the request's operations are refused.
    Parts(Parts<'a>, Vec<Option<Refusal>>),
}

/// Checks a request.
#[inline]
pub(super) fn check<'a>(shared: &Shared, client: &Client, request: &Request<'a>) -> Verdict<'a> {
    match client.is_unrestricted() {
        true => Verdict::Allowed,
        false => check_user(shared, client, request),
    }
}

#[cold]
fn check_user<'a>(shared: &Shared, client: &Client, request: &Request<'a>) -> Verdict<'a> {
    if matches!(request, Request::Ping) {
        return Verdict::Allowed;
    }
    let Some(user) = client.login().user().filter(|_| client.is_authenticated()) else {
        return Verdict::Refused(Refusal::LogIn);
    };
    let tables = Tables::of(shared);
    let check = |wanted: Wanted<'_>| wanted.check(&tables, user);
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
            let [scan, get] = Wanted::of_enumeration(*table);
            let both = check(scan).and_then(|()| check(get));
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

/// Counts and records a request that was answered (R4). `refused`: for each of its operations, why
/// it was not run; empty: all were run.
#[inline]
pub(super) fn note(
    shared: &Shared,
    client: &Client,
    request: &Request<'_>,
    refused: &[Option<Refusal>],
) {
    if shared.audit().classes() != 0 || !refused.is_empty() {
        note_parts(shared, client, request, refused);
    }
}

#[cold]
fn note_parts(
    shared: &Shared,
    client: &Client,
    request: &Request<'_>,
    refused: &[Option<Refusal>],
) {
    if refused.first() == Some(&Some(Refusal::LogIn)) {
        return; // an unknown table holds for all parts, and is no denial
    }
    let tables = Tables::of(shared);
    let mut denied: Vec<Reason> = Vec::new();
    let mut note = |n: usize, wanted: Wanted<'_>| {
        let Some(refusal) = refused.get(n).copied().flatten() else {
            if wanted.spec.is_audited(shared.audit().classes()) {
                wanted.record(shared, client, AuditOutcome::Allowed);
            }
            return;
        };
        if let Some(reason) = refusal.reason()
            && !denied.contains(&reason)
        {
            denied.push(reason);
            wanted.note_denied(&tables, client, refusal, reason);
        }
    };
    match request {
        Request::Ping => {}
        Request::Single(single) => note(0, Wanted::of(single)),
        Request::Multi(parts) => {
            let parts = parts.iter().enumerate();
            parts.for_each(|(n, single)| note(n, Wanted::of(&single)));
        }
        Request::Enumerate { table, .. } => {
            let [scan, get] = Wanted::of_enumeration(*table);
            match refused.first().copied().flatten() {
                Some(Refusal::Command(name)) if name == get.spec.name => note(0, get),
                Some(_) => note(0, scan),
                None => [scan, get].into_iter().for_each(|one| note(0, one)),
            }
        }
    }
}

/// The names of the tables, as the first question of a request finds them.
struct Tables<'s> {
    shared: &'s Shared,
    names: OnceCell<HashMap<TableId, String>>,
}

impl<'s> Tables<'s> {
    fn of(shared: &'s Shared) -> Tables<'s> {
        Tables {
            shared,
            names: OnceCell::new(),
        }
    }

    fn name(&self, table: TableId) -> Option<&str> {
        let names = self.names.get_or_init(|| self.shared.storage.table_names());
        names.get(&table).map(String::as_str)
    }
}

/// The rights that an operation needs.
struct Wanted<'a> {
    spec: &'static Spec,
    /// The key; `None` if the operation covers all keys of the table.
    key: Option<&'a [u8]>,
    access: Access,
    table: TableId,
}

impl<'a> Wanted<'a> {
    /// The rights to enumerate the objects of a whole table.
    fn of_enumeration(table: TableId) -> [Wanted<'a>; 2] {
        [SCAN, GET].map(|spec| Wanted {
            spec,
            key: None,
            access: READS,
            table,
        })
    }

    fn of(single: &Single<'a>) -> Wanted<'a> {
        let (spec, access) = match single.operation {
            Operation::Read => (GET, READS),
            Operation::Write { .. } => (SET, WRITES),
            Operation::Remove { .. } => (DEL, WRITES),
            Operation::Increment { by } => {
                let spec = match by {
                    Amount::Integer(_) => INCRBY,
                    Amount::Float(_) => INCRBYFLOAT,
                };
                let both = Access {
                    reads: true,
                    writes: true,
                };
                (spec, both)
            }
        };
        Wanted {
            spec,
            key: Some(single.key),
            access,
            table: single.table,
        }
    }

    fn check(&self, tables: &Tables<'_>, user: &User) -> Result<(), Refusal> {
        let asked = Asked {
            wanted: self,
            tables,
        };
        let checked = user.check(&asked, tables.shared.acl().catalog());
        checked.map_err(|denied| match denied {
            Denied::Command => Refusal::Command(self.spec.name),
            Denied::Table(_) if tables.name(self.table).is_none() => Refusal::UnknownTable,
            Denied::Table(_) => Refusal::Table,
            Denied::Key(_) | Denied::Channel(_) if self.key.is_none() => Refusal::AllKeys,
            Denied::Key(_) | Denied::Channel(_) => Refusal::Key,
        })
    }

    fn note_denied(&self, tables: &Tables<'_>, client: &Client, refusal: Refusal, reason: Reason) {
        let object = match refusal {
            Refusal::Command(name) => name.as_bytes().to_vec(),
            Refusal::Table => tables.name(self.table).unwrap_or_default().into(),
            _ => self.key.unwrap_or_default().to_vec(),
        };
        let shared = tables.shared;
        access::note_denial(shared, client_origin(shared, client), reason, object, PORT);
        self.record(shared, client, AuditOutcome::Denied);
    }

    fn record(&self, shared: &Shared, client: &Client, outcome: AuditOutcome) {
        if !shared.audit().is_on() {
            return;
        }
        let class = self.spec.class().and_then(|class| AUDIT_CLASSES.get(class));
        shared.audit().add(&Record {
            user: client.login().user_name(),
            address: &client.record().shown_peer(),
            client: client.record().id,
            command: self.spec.name,
            class: class.copied().unwrap_or("other"),
            outcome,
            key: self.key,
            args: &[],
        });
    }
}

/// An operation, for the check.
struct Asked<'a> {
    wanted: &'a Wanted<'a>,
    tables: &'a Tables<'a>,
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
        let name = self.tables.name(self.wanted.table);
        look(0, Some(name.unwrap_or_default()));
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
    let users = shared.acl().users();
    let address = client.record().peer.ip();
    let pair = (login.user, login.password);
    match shared
        .logins()
        .log_in(&users, address, pair, clock::now_ms())
    {
        Ok(user) => {
            client.log_in(user);
            if shared.audit().classes() & 1 != 0 {
                let origin = client_origin(shared, client);
                access::record_login(shared, &origin, user.name(), AuditOutcome::Allowed);
            }
            Ok(())
        }
        Err(error) => {
            let origin = client_origin(shared, client);
            access::note_failed_login(shared, &origin, PORT.as_bytes(), login.user);
            let until_ms = match error {
                LoginError::TooMany => None,
                LoginError::Wrong { until_ms } => until_ms,
            };
            Err((error.to_string(), until_ms))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doors::Doors;
    use duramen_config::{Level, ServerConfig};
    use duramen_engine::{Options, Store};
    use duramen_redis::threads::ClientRecord;
    use duramen_wire::native::codec::{
        Envelope, MultiRequest, Parsed, decode_request, parse_frame,
    };
    use std::sync::Arc;

    /// A server and a client of its default user, which has these rules.
    fn client_with(rules: &str) -> (Arc<Shared>, Client) {
        let mut config = ServerConfig {
            level: Some(Level::Memory),
            threads: 1,
            ..ServerConfig::default()
        };
        config.access.users = format!("user default on nopass {rules}");
        let doors = Doors::open(config, None).expect("shared state");
        let shared = Arc::clone(doors.shared());
        let options = Options {
            huge_pages: false,
            heads: 1,
            ..Options::new(64 << 20)
        };
        shared.serve(Store::new(options).expect("a store"), None);
        let address = "127.0.0.1:1".parse().expect("an address");
        let record = Arc::new(ClientRecord::new(1, 0, 0, 3, address, address, 1));
        let mut client = Client::new(record);
        assert!(client.begin_native(&shared));
        (shared, client)
    }

    fn read(table: TableId) -> Single<'static> {
        Single {
            table,
            key: b"k",
            operation: Operation::Read,
            level: None,
            rpc: None,
        }
    }

    /// A user limited to tables was refused for good by a member that did not know a new table yet.
    #[test]
    fn a_table_that_is_not_known_here_is_no_denial() {
        let (shared, client) = client_with("~* +@all table:mine");
        let refused = |table| match check(&shared, &client, &Request::Single(read(table))) {
            Verdict::Refused(refusal) => refusal,
            _ => panic!("no right to it"),
        };
        assert_eq!(refused(TableId::DEFAULT), Refusal::Table);
        assert_eq!(refused(TableId(99)), Refusal::UnknownTable);
        let request = Request::Single(read(TableId(99)));
        note(&shared, &client, &request, &[Some(Refusal::UnknownTable)]);
        assert!(shared.acl().denials().is_empty());
    }

    /// R4: each of 65,536 operations wrote into the logs.
    #[test]
    fn the_refused_operations_of_a_request_are_one_denial() {
        let (shared, client) = client_with("~other +@all");
        let mut bytes = Vec::new();
        let mut multi = MultiRequest::new(&mut bytes, &Envelope::default());
        (0..3).for_each(|_| multi.push(&read(TableId::DEFAULT)));
        multi.finish();
        let Ok(Parsed::Frame { frame, .. }) = parse_frame(&bytes, usize::MAX) else {
            panic!("a whole frame");
        };
        let request = decode_request(&frame).expect("right").expect("a request");
        let Verdict::Parts(_, refused) = check(&shared, &client, &request) else {
            panic!("all are refused");
        };
        assert_eq!(refused, [Some(Refusal::Key); 3]);
        assert_eq!(
            shared.acl().count(Reason::Key),
            0,
            "it may be presented again"
        );
        note(&shared, &client, &request, &refused);
        assert_eq!(shared.acl().count(Reason::Key), 1);
    }

    /// R3: a client from before the default user needed no password any more stayed refused.
    #[test]
    fn a_client_gets_the_rights_of_a_default_user_that_becomes_open() {
        let (shared, mut client) = client_with("~* +@all");
        assert!(client.is_authenticated());
        shared.acl().require_password("secret");
        let record = Arc::clone(client.record());
        client = Client::new(record);
        assert!(client.begin_native(&shared));
        assert!(!client.is_authenticated());
        shared.acl().require_password("");
        assert!(client.begin_native(&shared));
        assert!(client.is_authenticated());
    }
}

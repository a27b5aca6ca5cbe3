//! The check of a request against the rights of its client's user.
//!
//! **Invariants**
//! - U1: a command's function is reached by a [`Permit`] alone, and only the checks in this file
//!   make one. So a new command, or a new way to run one, cannot forget the check.
//! - U2: the rights are those of the user as it was when the client's turn began (`Client::renew`),
//!   so a change of rights holds for every request of a later turn. A client that changes its own
//!   rights has them at once, also within EXEC.

use super::flag;
use super::names::Names;
use super::refusal::Refusal;
use super::spec::{Run, Spec};
use crate::state::Shared;
use crate::state::client::Client;
use duramen_acl::{Access, Denied, Request, User};
use duramen_engine::TableId;
use duramen_wire::resp::Args;

/// Proof that the client's user may run this command with its arguments.
#[derive(Clone, Copy)]
pub(crate) struct Permit(&'static Spec);

impl Permit {
    /// The permit of a client whose user may do everything: one test finds out.
    #[inline]
    pub(crate) fn unrestricted(spec: &'static Spec, client: &Client) -> Option<Permit> {
        client.is_unrestricted().then_some(Permit(spec))
    }

    /// The permit of a command with one key, if the rules allow it at once; `None`:
    /// [`check`](Self::check) decides. The client must be logged in.
    #[inline]
    pub(crate) fn of_one_key(
        spec: &'static Spec,
        args: &Args<'_>,
        client: &Client,
    ) -> Option<Permit> {
        let access = spec.keys.needed(args, 0);
        let is_plain = spec.keys.is_one() && access.is_of_key() && !spec.keys.may_be_unnamed();
        let user = client.login().user().filter(|_| is_plain)?;
        let key = args.get(1)?;
        let is_allowed = user.allows_one_key(spec.number, key, access.rights());
        is_allowed.then_some(Permit(spec))
    }

    /// Checks a request on `table`, which the client has selected.
    pub(crate) fn check(
        spec: &'static Spec,
        args: &Args<'_>,
        client: &Client,
        table: TableId,
        shared: &Shared,
    ) -> Result<Permit, Refusal> {
        if let Some(permit) = Permit::unrestricted(spec, client) {
            return Ok(permit);
        }
        if spec.has(flag::NO_AUTH) {
            return Ok(Permit(spec));
        }
        let user = client.login().user().filter(|_| client.is_authenticated());
        let user = user.ok_or(Refusal::LogIn)?;
        match allows(user, spec, args, table, shared) {
            Ok(()) => Ok(Permit(spec)),
            Err(denied) => Err(Refusal::Denied(denied)),
        }
    }

    #[inline]
    pub(crate) fn spec(self) -> &'static Spec {
        self.0
    }

    #[inline]
    pub(super) fn run(self) -> Run {
        self.0.run
    }
}

/// Whether a user may run a request, and if not, the reason; for `ACL DRYRUN` too.
pub(crate) fn allows(
    user: &User,
    spec: &'static Spec,
    args: &Args<'_>,
    table: TableId,
    shared: &Shared,
) -> Result<(), Denied> {
    let request = Asked {
        spec,
        args,
        table,
        shared,
    };
    user.check(&request, shared.acl().catalog())
}

/// A RESP request, for the check.
struct Asked<'a> {
    spec: &'static Spec,
    args: &'a Args<'a>,
    table: TableId,
    shared: &'a Shared,
}

impl Request for Asked<'_> {
    fn command(&self) -> usize {
        self.spec.number
    }

    fn arg(&self, position: usize) -> Option<&[u8]> {
        self.args.get(position)
    }

    fn each_key(&self, look: &mut dyn FnMut(usize, &[u8], Access) -> bool) {
        let positions = self.spec.key_positions(self.args).enumerate();
        for (n, position) in positions {
            let key = self.args.get(position).unwrap_or_default();
            let access = self.spec.keys.needed(self.args, n);
            if access.is_of_key() && !look(position, key, access.rights()) {
                return;
            }
        }
    }

    fn reads_any_key(&self) -> Option<usize> {
        self.spec.keys.unnamed_at(self.args)
    }

    /// Ending a subscription needs no right, as in Redis.
    fn each_channel(&self, look: &mut dyn FnMut(usize, &[u8], bool) -> bool) {
        let (channels, is_pattern) = self.spec.names.channels(self.args);
        for position in channels {
            let channel = self.args.get(position).unwrap_or_default();
            if !look(position, channel, is_pattern) {
                return;
            }
        }
    }

    fn each_table(&self, look: &mut dyn FnMut(usize, Option<&str>) -> bool) {
        match self.spec.names {
            Names::Selected | Names::Exchanged | Names::Target { .. } => {
                let mut databases = self.spec.names.databases(self.args);
                let may_all = databases.all(|n| look(n, Some(self.database(n).as_str())));
                if may_all && self.spec.has_keys() {
                    self.selected(look);
                }
            }
            Names::AllTables => {
                look(0, None);
            }
            Names::AllTablesIf(concerns_all) if concerns_all(self.args) => {
                look(0, None);
            }
            Names::Table(n) => {
                let n = usize::from(n);
                look(
                    n,
                    std::str::from_utf8(self.args.get(n).unwrap_or_default()).ok(),
                );
            }
            _ if self.uses_table() => {
                self.selected(look);
            }
            _ => {}
        }
    }
}

impl Asked<'_> {
    /// Whether the request uses the selected table.
    fn uses_table(&self) -> bool {
        let (first, _) = self.spec.keys.declared();
        self.spec.has_keys() && first.is_of_key() || self.spec.has(flag::KEYSPACE | flag::WHOLE)
    }

    /// The name of the table behind the database that argument `n` names.
    fn database(&self, n: usize) -> String {
        let text = String::from_utf8_lossy(self.args.get(n).unwrap_or_default());
        let table = text
            .parse()
            .ok()
            .and_then(|db| self.shared.commands.table(db));
        let name = table.and_then(|table| self.shared.storage.table_name(table));
        // The table does not exist yet, and will have this name.
        name.unwrap_or_else(|| format!("db{text}"))
    }

    fn selected(&self, look: &mut dyn FnMut(usize, Option<&str>) -> bool) -> bool {
        let name = self
            .shared
            .storage
            .table_name(self.table)
            .unwrap_or_default();
        look(0, Some(name.as_str()))
    }
}

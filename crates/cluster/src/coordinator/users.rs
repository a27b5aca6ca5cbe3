//! The users of the cluster: stored, changed one after the other, told to all servers.
//!
//! The coordinator does not read their rules: the member that changes them has checked them.
//!
//! **Invariants**
//! - E1: a change names the revision that it is made from, and fails if there is a newer one. So no
//!   change of one administrator undoes that of another.
//! - E2: a server gets every newest revision, or a later one, as long as it is UP. One that does
//!   not understand it, because its program is older, does not confirm it, and the status shows it.

use super::records::{self, Key};
use super::revised::{Revision, Revisions};
use super::{CallKind, Coordinator, Server};
use duramen_wire::native::message::{
    CLUSTER_USERS_BYTES_MAX, ClusterUsers, CoordinatorAnswer, FromCoordinator, MemberHealth,
    MembersHealth, Shared,
};

/// A server that does not understand the users gets them again after this time: they may change.
const REFUSED_US: u64 = 10_000_000;
/// Most bytes of the reason that are kept.
const FAULT_BYTES_MAX: usize = 1024;

impl Revision for ClusterUsers {
    const KEY: Key = Key::Users;
    const FORMAT: u32 = records::WITH_USERS;

    fn revision(&self) -> u64 {
        self.revision
    }

    fn refusal(&self) -> Option<String> {
        let is_long = self.rules.len() > CLUSTER_USERS_BYTES_MAX;
        is_long
            .then(|| format!("the users of a cluster have at most {CLUSTER_USERS_BYTES_MAX} bytes"))
    }

    fn changes(&self, newest: &ClusterUsers) -> bool {
        self.rules != newest.rules
    }

    fn sent(server: &mut Server) -> &mut Revisions {
        &mut server.push.users
    }

    fn note_fault(server: &mut Server, fault: Option<String>) -> u64 {
        server.push.users_fault = fault.map(|mut fault| {
            fault.truncate(fault.floor_char_boundary(FAULT_BYTES_MAX));
            fault
        });
        REFUSED_US
    }

    fn kind(revision: u64) -> CallKind {
        CallKind::Users(revision)
    }

    fn question(users: Shared<ClusterUsers>) -> FromCoordinator {
        FromCoordinator::Users(users)
    }

    fn answer(users: Shared<ClusterUsers>) -> CoordinatorAnswer {
        CoordinatorAnswer::Users(users)
    }
}

impl Coordinator {
    /// The newest users that are stored.
    pub fn users(&self) -> &Shared<ClusterUsers> {
        self.pushes.users.published()
    }

    /// The state of each server that is UP, as far as the rules of the cluster know it.
    pub fn members_health(&self) -> MembersHealth {
        let servers = &self.state.servers;
        let up = servers.up().iter();
        let up = up.filter_map(|id| Some((*id, servers.get(id)?)));
        let members = up.map(|(server, known)| MemberHealth {
            server,
            users_revision: known.push.users.confirmed(),
            users_fault: known.push.users_fault.clone(),
            certificate_expires_s: None,
        });
        MembersHealth {
            users_revision: self.users().revision,
            members: members.collect(),
        }
    }
}

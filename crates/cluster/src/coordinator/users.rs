//! The users of the cluster: stored, changed one after the other, told to all servers.
//!
//! The coordinator does not read their rules: the member that changes them has checked them.
//!
//! **Invariants**
//! - E1: a change names the revision that it is made from, and fails if there is a newer one. So no
//!   change of one administrator undoes that of another.
//! - E2: a server gets every newest revision, or a later one, as long as it is UP. One that does
//!   not understand it, because its program is older, does not confirm it, and the status shows it.

use super::push::PATIENCE_US;
use super::records::{self, Key};
use super::{CallKind, Coordinator, Timer, invalid};
use duramen_base::ids::ServerId;
use duramen_wire::native::message::{
    CLUSTER_USERS_BYTES_MAX, ClusterUsers, CoordinatorAnswer, FromCoordinator, MemberHealth,
    MembersHealth, Refusal, ServerAnswer, Shared,
};

/// A server that does not understand the users is told again after this time: they may change.
const REFUSED_US: u64 = 10_000_000;
/// Most bytes of the reason that are kept.
const FAULT_BYTES_MAX: usize = 1024;

impl Coordinator {
    /// The newest users that are stored.
    pub fn users(&self) -> &Shared<ClusterUsers> {
        self.users.published()
    }

    /// The state of each server that is UP, as far as the rules of the cluster know it.
    pub fn members_health(&self) -> MembersHealth {
        let up = self
            .state
            .servers
            .up()
            .iter()
            .filter_map(|id| Some((*id, self.state.servers.get(id)?)));
        let members = up.map(|(server, known)| MemberHealth {
            server,
            users_revision: known.push.users.confirmed,
            users_fault: known.push.users_fault.clone(),
            certificate_expires_s: None,
        });
        MembersHealth {
            users_revision: self.users.published().revision,
            members: members.collect(),
        }
    }

    /// E1.
    pub(super) fn set_users(&mut self, users: ClusterUsers) -> CoordinatorAnswer {
        if users.rules.len() > CLUSTER_USERS_BYTES_MAX {
            return invalid(format!(
                "the users of a cluster have at most {CLUSTER_USERS_BYTES_MAX} bytes"
            ));
        }
        let newest = self.users.newest();
        if users.revision == newest.revision + 1 && users.rules != newest.rules {
            self.state.records.put(Key::Users, &users);
            self.state.meta.format = self.state.meta.format.max(records::WITH_USERS);
            self.state.put_meta();
            self.users.change(users);
        }
        self.newest_users()
    }

    /// An answer, which leaves when they are stored.
    pub(super) fn newest_users(&self) -> CoordinatorAnswer {
        CoordinatorAnswer::Users(self.users.newest().clone())
    }

    /// These are stored: all servers get them.
    pub(super) fn publish_users(&mut self, users: Shared<ClusterUsers>) {
        self.users.publish(users);
        self.kick_all();
    }

    pub(super) fn kick_users(&mut self, id: ServerId) {
        let users = self.users.published().clone();
        let server = self.state.servers.get_mut(&id);
        if server.is_some_and(|server| server.push.users.begin(users.revision)) {
            let kind = CallKind::Users(users.revision);
            self.state
                .ask(id, FromCoordinator::Users(users), kind, PATIENCE_US);
        }
    }

    pub(super) fn users_told(
        &mut self,
        id: ServerId,
        revision: u64,
        answer: Option<(ServerAnswer, Vec<u8>)>,
    ) {
        let Some(server) = self.state.servers.get_mut(&id) else {
            return;
        };
        let is_confirmed = matches!(answer, Some((ServerAnswer::Confirmed { .. }, _)));
        server.push.users.end(is_confirmed.then_some(revision));
        match answer {
            Some((ServerAnswer::Confirmed { .. }, _)) => {
                server.push.users_fault = None;
                self.kick(id);
            }
            Some((ServerAnswer::Refused(Refusal::Invalid(mut fault)), _)) => {
                fault.truncate(fault.floor_char_boundary(FAULT_BYTES_MAX));
                server.push.users_fault = Some(fault);
                self.state
                    .asks
                    .arm(self.state.now_us + REFUSED_US, Timer::Push(id));
            }
            // An older member never confirms them.
            _ => self
                .state
                .asks
                .arm(self.state.now_us + PATIENCE_US, Timer::Push(id)),
        }
    }
}

//! The libraries of functions of the cluster: stored, changed one after the other, told to all
//! servers. The coordinator does not read them: the member that changes them has loaded them.
//!
//! As for the users, a change names the revision that it is made from (users::E1), and a server
//! gets every newest revision, or a later one, as long as it is UP (users::E2).

use super::push::PATIENCE_US;
use super::records::{self, Key};
use super::{CallKind, Coordinator, Timer, invalid};
use duramen_base::ids::ServerId;
use duramen_wire::native::message::{
    CLUSTER_FUNCTIONS_BYTES_MAX, ClusterFunctions, CoordinatorAnswer, FromCoordinator,
    ServerAnswer, Shared,
};

impl Coordinator {
    pub(super) fn set_functions(&mut self, functions: ClusterFunctions) -> CoordinatorAnswer {
        if functions.texts.iter().map(Vec::len).sum::<usize>() > CLUSTER_FUNCTIONS_BYTES_MAX {
            return invalid(format!(
                "the libraries of a cluster have at most {CLUSTER_FUNCTIONS_BYTES_MAX} bytes"
            ));
        }
        if functions.revision == self.functions.newest().revision + 1 {
            self.state.records.put(Key::Functions, &functions);
            self.state.meta.format = self.state.meta.format.max(records::WITH_FUNCTIONS);
            self.state.put_meta();
            self.functions.change(functions);
        }
        self.newest_functions()
    }

    /// An answer, which leaves when they are stored.
    pub(super) fn newest_functions(&self) -> CoordinatorAnswer {
        CoordinatorAnswer::Functions(self.functions.newest().clone())
    }

    /// These are stored: all servers get them.
    pub(super) fn publish_functions(&mut self, functions: Shared<ClusterFunctions>) {
        self.functions.publish(functions);
        self.kick_all();
    }

    pub(super) fn kick_functions(&mut self, id: ServerId) {
        let functions = self.functions.published().clone();
        let server = self.state.servers.get_mut(&id);
        if server.is_some_and(|server| server.push.functions.begin(functions.revision)) {
            let kind = CallKind::Functions(functions.revision);
            self.state
                .ask(id, FromCoordinator::Functions(functions), kind, PATIENCE_US);
        }
    }

    pub(super) fn functions_told(
        &mut self,
        id: ServerId,
        revision: u64,
        answer: Option<(ServerAnswer, Vec<u8>)>,
    ) {
        let Some(server) = self.state.servers.get_mut(&id) else {
            return;
        };
        let is_confirmed = matches!(answer, Some((ServerAnswer::Confirmed { .. }, _)));
        server.push.functions.end(is_confirmed.then_some(revision));
        match is_confirmed {
            true => self.kick(id),
            // An older member never confirms them.
            false => self
                .state
                .asks
                .arm(self.state.now_us + PATIENCE_US, Timer::Push(id)),
        }
    }
}

//! The libraries of functions of the cluster: stored, changed one after the other, told to all
//! servers. The coordinator does not read them: the member that changes them has loaded them.
//!
//! As for the users, a change names the revision that it is made from (users::E1), and a server
//! gets every newest revision, or a later one, as long as it is UP (users::E2).

use super::records::{self, Key};
use super::revised::{PATIENCE_US, Revision, Revisions};
use super::{CallKind, Server};
use duramen_wire::native::message::{
    CLUSTER_FUNCTIONS_BYTES_MAX, ClusterFunctions, CoordinatorAnswer, FromCoordinator, Shared,
};

impl Revision for ClusterFunctions {
    const KEY: Key = Key::Functions;
    const FORMAT: u32 = records::WITH_FUNCTIONS;

    fn revision(&self) -> u64 {
        self.revision
    }

    fn refusal(&self) -> Option<String> {
        let bytes = self.texts.iter().map(Vec::len).sum::<usize>();
        (bytes > CLUSTER_FUNCTIONS_BYTES_MAX).then(|| {
            format!("the libraries of a cluster have at most {CLUSTER_FUNCTIONS_BYTES_MAX} bytes")
        })
    }

    fn changes(&self, _: &ClusterFunctions) -> bool {
        true
    }

    fn sent(server: &mut Server) -> &mut Revisions {
        &mut server.push.functions
    }

    fn note_fault(_: &mut Server, _: Option<String>) -> u64 {
        PATIENCE_US
    }

    fn kind(revision: u64) -> CallKind {
        CallKind::Functions(revision)
    }

    fn question(functions: Shared<ClusterFunctions>) -> FromCoordinator {
        FromCoordinator::Functions(functions)
    }

    fn answer(functions: Shared<ClusterFunctions>) -> CoordinatorAnswer {
        CoordinatorAnswer::Functions(functions)
    }
}

//! The users of the cluster, which the coordinator tells.

use super::super::life::Mail;
use super::NodeThread;
use duramen_node::RequestId;
use duramen_wire::native::codec::Trouble;
use duramen_wire::native::message::{ClusterUsers, Shared};
use std::sync::Arc;

impl NodeThread {
    /// Takes over the users of the cluster, on another thread: ten thousand of them
    /// take a second.
    pub(super) fn take_users(&mut self, request: RequestId, users: Shared<ClusterUsers>) {
        let (shared, owner) = (Arc::clone(&self.parts.shared), self.parts.hub.handle());
        let given = self.users.give(move || {
            let fault = shared.adopt_users(&users).err();
            if let Some(fault) = &fault {
                tracing::error!("the users before them stay in force: {fault}");
            }
            owner.tell(Mail::UsersTaken(request, fault));
        });
        if let Err(why) = given {
            let reason = &why;
            self.trouble(request, &Trouble::NotServing { reason });
        }
    }
}

//! The cluster's id, users and functions, which a member takes over from its coordinator.

use super::{Mail, NodeThread};
use duramen_base::ids::ClusterId;
use duramen_node::RequestId;
use duramen_redis::{access, script};
use duramen_wire::native::codec::Trouble;
use duramen_wire::native::message::{
    ClusterFunctions, ClusterUsers, CoordinatorAnswer, Shared as Encoded,
};
use std::sync::Arc;

impl NodeThread {
    /// Takes the cluster's id from a coordinator, if this member has none yet. The coordinator must
    /// be one that enlists this server or, if this server is a member already, one that accepts its
    /// messages. Either shows that the coordinator belongs to this member's cluster.
    pub(super) fn hear_cluster_id(&mut self, answer: &CoordinatorAnswer, heard: ClusterId) {
        let home = &mut self.parts.home;
        if heard == ClusterId::NONE || home.id != ClusterId::NONE || self.adopts {
            return;
        }
        match answer {
            CoordinatorAnswer::Enlisted(_) => home.id = heard, // stored with the member's id
            CoordinatorAnswer::Noted if self.membership.is_some() => {
                self.adopts = true;
                let (mut home, me) = (home.clone(), self.parts.node.member().id());
                home.id = heard;
                self.parts
                    .workers
                    .give(move || Mail::Adopted(heard, home.store_id(me)));
            }
            _ => {}
        }
    }

    pub(super) fn adopted(&mut self, cluster_id: ClusterId, stored: std::io::Result<()>) {
        self.adopts = false;
        match stored {
            Ok(()) => {
                self.parts.home.id = cluster_id;
                self.parts.hub.set_cluster_id(cluster_id);
            }
            Err(error) => self.waits(format!(
                "the cluster's id cannot be stored yet, it goes on trying: {error}"
            )),
        }
    }

    /// Takes over the users of the cluster, on another thread: ten thousand of them take a
    /// second.
    pub(super) fn take_users(&mut self, request: RequestId, users: Encoded<ClusterUsers>) {
        let (shared, owner) = (Arc::clone(&self.parts.shared), self.parts.hub.handle());
        let given = self.users.give(move || {
            let fault = access::adopt_users(&shared, &users).err();
            if let Some(fault) = &fault {
                tracing::error!("the users before them stay in force: {fault}");
            }
            owner.tell(Mail::UsersTaken(request, fault));
        });
        self.refuse_if(request, given);
    }

    /// As [`take_users`](Self::take_users): a library may run for a while to register its
    /// functions.
    pub(super) fn take_functions(
        &mut self,
        request: RequestId,
        functions: Encoded<ClusterFunctions>,
    ) {
        let (shared, owner) = (Arc::clone(&self.parts.shared), self.parts.hub.handle());
        let given = self.users.give(move || {
            script::adopt_functions(&shared, &functions);
            owner.tell(Mail::UsersTaken(request, None));
        });
        self.refuse_if(request, given);
    }

    fn refuse_if(&mut self, request: RequestId, given: Result<(), String>) {
        if let Err(why) = given {
            let reason = &why;
            self.trouble(request, &Trouble::NotServing { reason });
        }
    }
}

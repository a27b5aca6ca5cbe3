//! Members that answer this coordinator, and whose own requests do not arrive here: a firewall or a
//! route is wrong in one direction.
//!
//! Each check of such a member succeeds, and it goes on serving as long as nothing of that has to
//! be recorded here. But it cannot report the ranges that it recovers. So it recovers nothing, and
//! an operator is told.
//!
//! **Invariants** recovery::Y7, and
//! - W1: a member is unheard if it has asked nothing for [`UNHEARD_US`], and at least half of the
//!   members that are UP have asked for the map meanwhile. If fewer have, the fault may be here, as
//!   when this coordinator has just begun or was overloaded: then nobody is unheard.
//! - W2: an unheard member is not declared crashed for that. Its end would take a server from a
//!   cluster that may have none to spare: an operator decides it.

use super::State;
use duramen_base::ids::ServerId;
use duramen_wire::native::message::ToCoordinator;

/// Members ask for the map about once a second, and report their versions every ten.
const UNHEARD_US: u64 = 15_000_000;

/// When the requests of a member came.
pub(super) struct Heard {
    /// The time of the last request, or of the member's entry into the list here.
    asked_us: u64,
    /// The time of the last request for the map.
    map_us: Option<u64>,
}

impl Heard {
    pub(super) fn new(now_us: u64) -> Heard {
        Heard {
            asked_us: now_us,
            map_us: None,
        }
    }
}

impl State {
    /// A request has arrived, perhaps one of a member.
    pub(super) fn hear(&mut self, sender: ServerId, question: &ToCoordinator) {
        let now_us = self.now_us;
        let Some(server) = self.servers.get_mut(&sender) else {
            return;
        };
        server.heard.asked_us = now_us;
        let (ToCoordinator::Map { .. } | ToCoordinator::MapChanges { .. }) = question else {
            return;
        };
        server.heard.map_us = Some(now_us);
        self.map_asked_us = Some(now_us);
    }

    /// For how long a member has been unheard (W1); none: it is not.
    pub(super) fn unheard_us(&self, id: ServerId) -> Option<u64> {
        let server = self.servers.get(&id).filter(|server| server.is_up())?;
        let silent_us = self.now_us - server.heard.asked_us;
        if silent_us < UNHEARD_US || !is_recent(self.now_us, self.map_asked_us) {
            return None;
        }
        let up = self.servers.up().iter();
        let asking = up.filter(|id| is_recent(self.now_us, self.servers[*id].heard.map_us));
        (2 * asking.count() >= self.servers.up().len()).then_some(silent_us)
    }

    /// The members that are unheard, each with the seconds for which it is; without those that may
    /// not answer either.
    pub(super) fn unheard(&self) -> Vec<(ServerId, u64)> {
        let is_checked = |id: ServerId| self.servers[&id].check.is_some();
        let up = self.servers.keys().copied();
        let unheard = up.filter_map(|id| Some((id, self.unheard_us(id)? / 1_000_000)));
        unheard.filter(|(id, _)| !is_checked(*id)).collect()
    }
}

fn is_recent(now_us: u64, at_us: Option<u64>) -> bool {
    at_us.is_some_and(|at_us| now_us < at_us + UNHEARD_US)
}

//! Members that answer this coordinator, and whose own requests do not arrive here: a firewall or a
//! route is wrong in one direction.
//!
//! Each check of such a member succeeds, and what it serves is served as long as nothing of it has
//! to be recorded here. But it cannot report what it recovers. So it recovers nothing, and an
//! operator is told.
//!
//! **Invariants** recovery::Y7, and
//! - W1: a member is unheard if it has asked nothing for [`UNHEARD_US`], and at least half of the
//!   members that are UP have asked for the map meanwhile. If fewer have, the fault may be here, as
//!   when this coordinator has just begun or was overloaded: then nobody is unheard.
//! - W2: an unheard member is not declared crashed for that. Its end would take a server from a
//!   cluster that may have none to spare: an operator decides it.

use super::calls::CallKind;
use super::{Coordinator, State};
use crate::recovery::{Partition, Place};
use duramen_base::ids::{RecoveryId, ServerId};
use duramen_base::planted::{Bug, has_bug};
use duramen_wire::native::message::{FromCoordinator, ServerAnswer, ToCoordinator};

/// Members ask for the map about once a second, and report their versions every ten.
const UNHEARD_US: u64 = 15_000_000;
/// An order to give a partition back is repeated after this time without an answer.
const AGAIN_US: u64 = 1_000_000;

/// When the requests of a member came.
pub(super) struct Heard {
    /// The last one, or when the member came into the list here.
    asked_us: u64,
    /// The last one for the map.
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
        if silent_us < UNHEARD_US || !self.is_recent(self.map_asked_us) {
            return None;
        }
        let up = self.servers.up().iter();
        let asking = up.filter(|id| self.is_recent(self.servers[*id].heard.map_us));
        (2 * asking.count() >= self.servers.up().len()).then_some(silent_us)
    }

    fn is_recent(&self, at_us: Option<u64>) -> bool {
        at_us.is_some_and(|at_us| self.now_us < at_us + UNHEARD_US)
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

impl Coordinator {
    /// recovery::Y7: takes the partitions of this recovery back from masters that are unheard. From
    /// now on their reports of these do not count.
    pub(super) fn take_back(&mut self, dead: ServerId) {
        let now_us = self.state.now_us;
        let Some(recovery) = self.recoveries.get(&dead) else {
            return;
        };
        let is_due = |(number, partition): (u32, &Partition)| match partition.place {
            Place::Given { to, .. } if self.state.unheard_us(to).is_some() => Some((number, to)),
            Place::TakenBack { from, asked_us } if now_us >= asked_us + AGAIN_US => {
                Some((number, from))
            }
            _ => None,
        };
        let due = (0..).zip(&recovery.partitions).filter_map(is_due);
        let due: Vec<(u32, ServerId)> = due.collect();
        let recovery = recovery.id;
        for (partition, from) in due {
            if let Some(place) = self.place_mut(dead, partition)
                && !has_bug(Bug::TakenBackCounts)
            {
                *place = Place::TakenBack {
                    from,
                    asked_us: now_us,
                };
            }
            let question = FromCoordinator::AbortRecovery {
                recovery,
                partition,
            };
            let kind = CallKind::TakeBack {
                dead,
                recovery,
                partition,
            };
            self.state.ask(from, question, kind, AGAIN_US);
        }
    }

    /// The end of such an order. Another master gets the partition (recovery::Y3).
    pub(super) fn taken_back(
        &mut self,
        dead: ServerId,
        (id, partition): (RecoveryId, u32),
        from: ServerId,
        answer: Option<(ServerAnswer, Vec<u8>)>,
    ) {
        if !matches!(answer, Some((ServerAnswer::Confirmed { .. }, _))) {
            return self.arm_recovery(dead, AGAIN_US);
        }
        let of = self.partition_mut(dead, (id, partition));
        let is_its = |of: &&mut Partition| {
            let place = &of.place;
            matches!(place, Place::TakenBack { from: by, .. } if *by == from)
        };
        let Some(of) = of.filter(is_its) else {
            return;
        };
        of.place = Place::Waiting;
        of.progress = (0, 0, 0);
        of.not_on.insert(from);
        self.state.release_master(from, 0);
        self.settle(dead);
        self.give_partitions();
    }

    /// The master that has not yet confirmed that it gives a partition back, for people.
    pub(super) fn takes_back_text(&self, dead: ServerId) -> Option<String> {
        let partitions = &self.recoveries.get(&dead)?.partitions;
        let taken = |(number, partition): (u32, &Partition)| match partition.place {
            Place::TakenBack { from, .. } => Some((number, from)),
            _ => None,
        };
        let (number, from) = (0..).zip(partitions).find_map(taken)?;
        Some(format!(
            "server {from} to give partition {number} back: its own requests do not arrive here"
        ))
    }
}

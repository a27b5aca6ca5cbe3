//! Foreign members: requests from members of another cluster. Mostly this coordinator has the wrong
//! store.
//!
//! **Invariants**
//! - G1: a server whose id this store never assigned is not refused as not UP. Such a server
//!   belongs to another cluster, or its id is newer than this store. That refusal would make it end
//!   itself for a mistake of the coordinator.
//! - G2: a store that has assigned no server id yet assigns none while members of another cluster
//!   send requests here. It is new by mistake, and would begin a second cluster of that name.

use super::{Coordinator, Refusal, State};
use duramen_base::ids::{ClusterId, ServerId};

/// Time after a foreign member's last request at which it counts as gone. Members send one each
/// second.
const FOREIGN_US: u64 = 10_000_000;
/// Time after which a refused server tries again.
const AGAIN_MS: u32 = 1_000;

/// The id of this cluster, and the members of another one that ask here.
pub(super) struct Foreign {
    ours: ClusterId,
    /// The cluster of the last foreign member, and the time until which that counts.
    theirs: Option<(ClusterId, u64)>,
}

impl Foreign {
    pub(super) fn new() -> Foreign {
        Foreign {
            ours: ClusterId::NONE,
            theirs: None,
        }
    }

    /// The cluster's id; none: the store is new, or one of an older version.
    pub(super) fn ours(&self) -> ClusterId {
        self.ours
    }

    /// This is the cluster's id.
    pub(super) fn set_ours(&mut self, id: ClusterId) {
        self.ours = id;
    }

    fn mistaken(&self, state: &State, now_us: u64) -> Option<String> {
        let (theirs, until_us) = self.theirs?;
        if !state.lives.is_new() || now_us >= until_us {
            return None;
        }
        let whose = match theirs {
            ClusterId::NONE => "another cluster".to_owned(),
            theirs => format!("the cluster with id {theirs}"),
        };
        let (ours, name) = (self.ours, &state.meta.cluster);
        Some(format!(
            "members of {whose} ask here, but this coordinator's store is new (cluster `{name}`, id {ours}): start it with the store of their cluster, or, to begin a new cluster, remove the directories of these members"
        ))
    }

    /// Notes a request of a foreign member. `theirs`: its cluster's id, if it is known.
    pub(super) fn hear(&mut self, now_us: u64, theirs: ClusterId) {
        let until_us = now_us + FOREIGN_US;
        let known = self.theirs.filter(|(_, until)| now_us < *until);
        let theirs = match (theirs, known) {
            (ClusterId::NONE, Some((known, _))) => known,
            _ => theirs,
        };
        self.theirs = Some((theirs, until_us));
    }

    /// The refusal for a request from this server; `None`: it is answered (G1, G2).
    pub(super) fn turn_away(&mut self, state: &State, asker: ServerId) -> Option<Refusal> {
        let is_stranger = state.lives.never_gave(asker);
        if is_stranger {
            self.hear(state.now_us, ClusterId::NONE);
        }
        let reason = self.mistaken(state, state.now_us).or_else(|| {
            is_stranger.then(|| {
                let (id, name) = (self.ours, &state.meta.cluster);
                format!("this coordinator's store (cluster `{name}`, id {id}) never had a server {asker}")
            })
        })?;
        Some(Refusal::NotReady {
            after_ms: AGAIN_MS,
            reason,
        })
    }
}

impl Coordinator {
    /// The cluster's id: random, created with the store.
    pub fn cluster_id(&self) -> ClusterId {
        self.foreign.ours()
    }

    /// The reason why this coordinator refuses all requests, for people: its store is new, and
    /// members of another cluster send requests (G2). `None`: all is well.
    pub fn mistaken(&self, now_us: u64) -> Option<String> {
        self.foreign.mistaken(&self.state, now_us)
    }
}

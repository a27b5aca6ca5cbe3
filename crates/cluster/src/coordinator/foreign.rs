//! Members of another cluster that come here: mostly this coordinator has the wrong store.
//!
//! **Invariants**
//! - G1: nobody is told that it is not UP whose id this store never gave. Such a member is of
//!   another cluster, or knows more than this store; it would end itself for a mistake that is the
//!   coordinator's.
//! - G2: a store that has given no id yet gives none while members of another cluster ask here: it
//!   is new where it should not be, and what began in it would be a second cluster of that name.

use super::{Coordinator, Refusal};
use duramen_base::ids::{ClusterId, ServerId};

/// Members ask each second; who has not come back for so long is gone.
const FOREIGN_US: u64 = 10_000_000;
/// When to ask again.
const AGAIN_MS: u32 = 1_000;

/// Of which cluster somebody is who came by mistake, and until when that counts.
pub(super) type Foreign = Option<(ClusterId, u64)>;

impl Coordinator {
    /// Random, and made with the store.
    pub fn cluster_id(&self) -> ClusterId {
        self.id
    }

    /// Why nothing begins here, for people: the store is new, and members of another cluster ask
    /// (G2). `None`: all is well.
    pub fn mistaken(&self, now_us: u64) -> Option<String> {
        let (theirs, until_us) = self.foreign?;
        if !self.is_new() || now_us >= until_us {
            return None;
        }
        let whose = match theirs {
            ClusterId::NONE => "another cluster".to_owned(),
            theirs => format!("the cluster with id {theirs}"),
        };
        let (ours, name) = (self.id, &self.meta.cluster);
        Some(format!(
            "members of {whose} ask here, but this coordinator's store is new (cluster `{name}`, id {ours}): start it with the store of their cluster, or, to begin a new cluster, remove the directories of these members"
        ))
    }

    /// No server was ever a member.
    fn is_new(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether no server with this id was ever a member.
    pub(super) fn never_gave(&self, id: ServerId) -> bool {
        let given = self.slots.get(&id.slot).copied().unwrap_or(0);
        id.generation > given && !id.is_coordinator()
    }

    /// A member of another cluster came. `theirs`: its id, if it is known.
    pub(super) fn heard_foreign(&mut self, theirs: ClusterId) {
        let until_us = self.now_us + FOREIGN_US;
        let known = self.foreign.filter(|(_, until)| self.now_us < *until);
        let theirs = match (theirs, known) {
            (ClusterId::NONE, Some((known, _))) => known,
            _ => theirs,
        };
        self.foreign = Some((theirs, until_us));
    }

    /// Why nobody of this id is answered now (G1, G2).
    pub(super) fn turn_away(&mut self, asker: ServerId) -> Option<Refusal> {
        let is_stranger = self.never_gave(asker);
        if is_stranger {
            self.heard_foreign(ClusterId::NONE);
        }
        let reason = self.mistaken(self.now_us).or_else(|| {
            is_stranger.then(|| {
                let (id, name) = (self.id, &self.meta.cluster);
                format!("this coordinator's store (cluster `{name}`, id {id}) never had a server {asker}")
            })
        })?;
        Some(Refusal::NotReady {
            after_ms: AGAIN_MS,
            reason,
        })
    }
}

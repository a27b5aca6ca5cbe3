//! Servers that enlist: which are added, and which are refused.

use super::suspects::Suspects;
use super::{Coordinator, ReplyId, State, refused};
use duramen_base::ids::ServerId;
use duramen_base::planted::{Bug, has_bug};
use duramen_wire::native::message::{CoordinatorAnswer, Enlist, Refusal};

/// Delay before a server that enlists with the disk of another one asks again: the other one is
/// being checked.
const DISK_CHECK_MS: u32 = 300;
/// A server counts as alive if it passes a check this long after another one came with its disk.
const DOUBT_US: u64 = 2_000_000;
/// Most servers stored that claim the end of one life. Others wait until one of these stops asking.
const DOUBTS_MAX: usize = 16;

/// The claim of a server that enlists that a life is over.
pub(super) struct Doubt {
    nonce: u64,
    since_us: u64,
    asked_us: u64,
}

/// The time since which the server with this nonce has claimed it.
fn doubted_since(doubts: &mut Vec<Doubt>, nonce: u64, now_us: u64) -> u64 {
    if let Some(known) = doubts.iter_mut().find(|doubt| doubt.nonce == nonce) {
        known.asked_us = now_us;
        return known.since_us;
    }
    if doubts.len() >= DOUBTS_MAX {
        doubts.retain(|doubt| doubt.asked_us + DOUBT_US > now_us);
    }
    if doubts.len() < DOUBTS_MAX {
        doubts.push(Doubt {
            nonce,
            since_us: now_us,
            asked_us: now_us,
        });
    }
    now_us
}

impl Coordinator {
    /// A server enlists. It is welcomed when the change is stored.
    pub(super) fn enlist(
        &mut self,
        reply: ReplyId,
        sender: ServerId,
        enlist: Enlist,
    ) -> Option<CoordinatorAnswer> {
        let known = self.state.servers.of_nonce(enlist.nonce);
        if let Some(known) = known
            && !has_bug(Bug::EnlistsTwice)
        {
            if !self.state.servers.is_up(known) {
                return Some(refused(Refusal::NotUp(known)));
            }
            self.state.records.enlist(reply, known);
            return None;
        }
        if let Err(refusal) = self.check_enlist(&enlist) {
            let (address, why) = (&enlist.addresses.native, refusal.to_string());
            self.callers.turn_away(self.state.now_us, address, &why);
            return Some(refused(refusal));
        }
        let next = self.state.lives.next_id(enlist.replaces);
        let asker = (reply, sender);
        let callers = &mut self.callers;
        if !callers.is_reached(&mut self.state, asker, &enlist, next) {
            return None; // callers::I1
        }
        let mut replaced =
            Vec::from_iter(enlist.replaces.filter(|id| self.state.servers.is_up(*id)));
        replaced.extend(self.state.servers.unstored_life(&enlist));
        let is_late = has_bug(Bug::AddedBeforeCrashed);
        if !is_late {
            replaced.iter().for_each(|old| self.crash(*old)); // coordinator::K2
        }
        let id = self.state.add_server(&enlist);
        if is_late {
            replaced.iter().for_each(|old| self.crash(*old));
        }
        self.state.records.enlist(reply, id);
        self.recoveries.ask_new_backup(&mut self.state, id);
        self.recoveries.home_is_back(&mut self.state, id);
        self.recoveries.give_partitions(&mut self.state);
        None
    }

    fn check_enlist(&mut self, enlist: &Enlist) -> Result<(), Refusal> {
        let bad = |why: String| Err(Refusal::Invalid(why));
        if enlist.cluster != self.state.meta.cluster {
            return Err(Refusal::WrongCluster {
                expected: self.state.meta.cluster.clone(),
                found: enlist.cluster.clone(),
            });
        }
        if !enlist.roles.master && !enlist.roles.backup {
            return bad("a server is a master, a backup or both".to_owned());
        }
        if enlist.addresses.native.is_empty() {
            return bad("a server needs an address for the native protocol".to_owned());
        }
        let segment_bytes = self.state.meta.settings.segment_bytes;
        if enlist.segment_bytes != segment_bytes {
            let found = enlist.segment_bytes;
            return bad(format!(
                "segments have {segment_bytes} bytes in this cluster, {found} on this server"
            ));
        }
        if let Some(old) = enlist.replaces {
            let given = self.state.lives.given(old.slot);
            if old.generation == 0 || old.generation > given {
                self.recoveries.note_newer(&mut self.state, old); // older::A3
                return bad(self.state.lives.why_older(old));
            }
            let disk = self.state.servers.get(&old).map(|s| s.record.entry.disk);
            if disk.is_some_and(|disk| disk != enlist.disk) {
                return bad(format!("server {old} has another disk"));
            }
            if let Some(newer) = self.state.lives.newer_life(old.slot) {
                return bad(self.state.lives.why_older(newer)); // older::A2
            }
        }
        check_replaced(&mut self.state, &self.suspects, enlist)?;
        check_disk(&mut self.state, &self.suspects, enlist)
    }
}

/// Checks that the life which the server claims to follow is over. Otherwise the data of one of
/// both is a copy, and not the newest. No other process is at that life's address, so a server that
/// enlists from there proves its end.
fn check_replaced(state: &mut State, suspects: &Suspects, enlist: &Enlist) -> Result<(), Refusal> {
    let Some(old) = enlist.replaces.filter(|id| state.servers.is_up(*id)) else {
        return Ok(());
    };
    let there = &state.servers[&old].record.entry.addresses.native;
    if *there == enlist.addresses.native {
        return Ok(());
    }
    check_life(state, suspects, old, enlist.nonce, "data")
}

/// Whether a server is alive whose data or disk another one has. A passed check proves it only
/// if a later check is passed too: the first answer may have been in flight when that server
/// ended, and a server that is refused here ends for good.
fn check_life(
    state: &mut State,
    suspects: &Suspects,
    old: ServerId,
    nonce: u64,
    what: &str,
) -> Result<(), Refusal> {
    let now_us = state.now_us;
    let Some(server) = state.servers.get_mut(&old) else {
        return Ok(());
    };
    let since_us = doubted_since(&mut server.doubts, nonce, now_us);
    let passed_us = server.push.check_passed_us;
    if passed_us.is_some_and(|at_us| at_us >= since_us + DOUBT_US) {
        return Err(Refusal::Invalid(format!(
            "server {old} is alive and has the same {what}: one is a copy of the other"
        )));
    }
    suspects.begin_claimed_check(state, old);
    Err(Refusal::NotReady {
        after_ms: DISK_CHECK_MS,
        reason: format!("whether server {old}, which had the same {what}, is alive"),
    })
}

/// Handles two servers with one disk: the older one is gone without notice, or the disk was copied.
fn check_disk(state: &mut State, suspects: &Suspects, enlist: &Enlist) -> Result<(), Refusal> {
    let same = state.servers.with_disk(enlist.disk);
    let same = same.filter(|id| Some(*id) != enlist.replaces);
    let Some(same) = same.filter(|_| state.servers.unstored_life(enlist).is_none()) else {
        return Ok(());
    };
    check_life(state, suspects, same, enlist.nonce, "disk")
}

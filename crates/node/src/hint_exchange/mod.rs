//! Hints about hot data: each member sends a list of its hot keys to two other members, and keeps
//! the lists of others. A member that has recovered a server's data requests that server's list, so
//! that its hot data can be loaded into memory.
//!
//! **Invariants**
//! - H1: hints are only advice: nothing waits for them, and a lost one is sent again with the next
//!   change, or not at all.
//! - H2: one hint is kept for each server, which that server itself has sent while it was UP, of at
//!   most `HINT_BYTES_MAX`; [`HELD_BYTES_MAX`] in all, the oldest goes first. A server that is not
//!   in the list any more was recovered, and its hint is dropped [`FORGET_US`] later.
//! - H3: a member sends its hint to the two that follow it by id among those that are UP; a search
//!   for a hint asks those that follow the dead server, a few, one after the other.
//!
//! **Concurrency** none: one owner, the node.
//!
//! Paper: none, since in Ousterhout15 all is in memory; docs/traps.md, trap 37.

use crate::effects::Effects;
use crate::requests::{PeerCall, PeerRequest};
use duramen_base::ids::ServerId;
use duramen_base::units::MIB;
use duramen_cluster::membership::Members;
use duramen_format::heat::{BLOCK_BYTES, HINT_BYTES_MAX};
use duramen_wire::native::Slice;
use duramen_wire::native::message::{Peer, PeerAnswer, Refusal};
use std::collections::{BTreeMap, VecDeque};

/// Interval of the checks for hints to send or to drop.
const LOOK_US: u64 = 500_000;
/// A hint that was not accepted is sent again after this time.
const AGAIN_US: u64 = 5_000_000;
/// Timeout of a request.
const PATIENCE_US: u64 = 2_000_000;
/// See H2.
const FORGET_US: u64 = 300_000_000;
const HELD_BYTES_MAX: usize = 16 * MIB as usize;
/// Members that get the hint, and the most that a search asks (H3).
const TOLD: usize = 2;
const ASKED_MAX: usize = 4;
/// Most dead servers with hints still to be requested.
const WANTED_MAX: usize = 64;

/// A hint of another server that is kept here, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldHint {
    pub server: ServerId,
    pub bytes: usize,
    /// Time since the hint was received.
    pub age_ms: u64,
}

/// The hint of another server.
struct StoredHint {
    blocks: Slice,
    since_us: u64,
    /// The time since which the list does not have the server.
    gone_us: Option<u64>,
}

/// The last hint sent to one of its receivers.
struct SentHint {
    call: PeerCall,
    /// When it is sent again.
    due_us: u64,
}

/// A search for a dead server's hint.
struct Search {
    server: ServerId,
    /// The request in flight, and its deadline.
    asked: Option<(PeerCall, u64)>,
    /// Servers still to be asked.
    left: VecDeque<ServerId>,
}

/// The hints of a member; see the module.
#[derive(Default)]
pub(crate) struct HintExchange {
    held: BTreeMap<ServerId, StoredHint>,
    mine: Option<Slice>,
    sent: BTreeMap<ServerId, SentHint>,
    wanted: VecDeque<ServerId>,
    search: Option<Search>,
    /// Found, and not returned yet.
    found: Vec<(ServerId, Slice)>,
    /// Whether this member has hints of its own.
    is_warm: bool,
    look_us: u64,
    next: u64,
}

impl HintExchange {
    /// `is_warm`: this member has a second tier, and hints of its own.
    pub fn new(is_warm: bool) -> HintExchange {
        HintExchange {
            is_warm,
            ..HintExchange::default()
        }
    }

    /// The hints kept here, for people.
    pub fn held(&self, now_us: u64) -> Vec<HeldHint> {
        let held = self.held.iter().map(|(server, held)| HeldHint {
            server: *server,
            bytes: held.blocks.len(),
            age_ms: now_us.saturating_sub(held.since_us) / 1000,
        });
        held.collect()
    }

    pub fn due_us(&self) -> u64 {
        let search = match &self.search {
            Some(search) => search.asked.map_or(0, |(_, until_us)| until_us),
            None if !self.wanted.is_empty() => 0,
            None => u64::MAX,
        };
        match self.is_warm || !self.held.is_empty() {
            true => search.min(self.look_us),
            false => search,
        }
    }

    /// Keeps the hint of a server (H2).
    pub fn put(
        &mut self,
        now_us: u64,
        server: ServerId,
        blocks: Vec<u8>,
        members: &Members,
    ) -> PeerAnswer {
        if !members.is_up(server) {
            return PeerAnswer::Refused(Refusal::NotUp(server));
        }
        if blocks.len() > HINT_BYTES_MAX || !blocks.len().is_multiple_of(BLOCK_BYTES) {
            let reason = format!("{} bytes of hints", blocks.len());
            return PeerAnswer::Refused(Refusal::Invalid(reason));
        }
        let held = StoredHint {
            blocks: blocks.into(),
            since_us: now_us,
            gone_us: None,
        };
        self.held.insert(server, held);
        let bytes = |held: &BTreeMap<ServerId, StoredHint>| {
            held.values().map(|held| held.blocks.len()).sum::<usize>()
        };
        while bytes(&self.held) > HELD_BYTES_MAX {
            let others = self.held.iter().filter(|(id, _)| **id != server);
            let oldest = others.min_by_key(|(_, held)| held.since_us);
            let oldest = *oldest.expect("one alone is not too long").0;
            self.held.remove(&oldest);
        }
        PeerAnswer::Heat
    }

    /// The hint of a server, if it is still there.
    pub fn get(&self, server: ServerId) -> Option<Slice> {
        self.held.get(&server).map(|held| held.blocks.clone())
    }

    /// This member has data of this dead server from now on.
    pub fn recovered(&mut self, server: ServerId) {
        let is_known = self.wanted.contains(&server);
        if self.is_warm && !is_known && self.wanted.len() < WANTED_MAX {
            self.wanted.push_back(server);
        }
    }

    /// Sends, requests and drops the due hints. `hint` returns the own hint, if it has changed.
    /// Returns hints that were requested.
    pub fn poll(
        &mut self,
        now_us: u64,
        me: ServerId,
        members: &Members,
        hint: impl FnOnce() -> Option<Slice>,
        out: &mut Effects,
    ) -> Vec<(ServerId, Slice)> {
        if now_us >= self.look_us && (self.is_warm || !self.held.is_empty()) {
            self.look_us = now_us + LOOK_US;
            self.forget(now_us, members);
            if let Some(hint) = hint() {
                self.mine = Some(hint);
                self.sent.clear();
            }
            self.tell(now_us, me, members, out);
        }
        self.search(now_us, me, members, out);
        std::mem::take(&mut self.found)
    }

    fn forget(&mut self, now_us: u64, members: &Members) {
        self.held.retain(|server, held| {
            held.gone_us = match members.get(*server) {
                Some(_) => None,
                None => Some(held.gone_us.unwrap_or(now_us)),
            };
            held.gone_us
                .is_none_or(|gone_us| now_us < gone_us + FORGET_US)
        });
    }

    fn tell(&mut self, now_us: u64, me: ServerId, members: &Members, out: &mut Effects) {
        let Some(mine) = &self.mine else {
            return;
        };
        let others: Vec<ServerId> = following(me, me, members).take(TOLD).collect();
        self.sent.retain(|server, _| others.contains(server));
        for to in others {
            if self.sent.get(&to).is_some_and(|sent| now_us < sent.due_us) {
                continue;
            }
            self.next += 1;
            let call = PeerCall::Hint(self.next);
            let due_us = now_us + AGAIN_US;
            self.sent.insert(to, SentHint { call, due_us });
            out.requests.push(PeerRequest {
                call,
                to,
                question: Peer::PutHeat,
                payload: mine.clone(),
            });
        }
    }

    fn search(&mut self, now_us: u64, me: ServerId, members: &Members, out: &mut Effects) {
        if self.search.is_none() {
            let Some(server) = self.wanted.pop_front() else {
                return;
            };
            if let Some(blocks) = self.get(server) {
                return self.found.push((server, blocks));
            }
            self.search = Some(Search {
                server,
                asked: None,
                left: following(server, me, members).take(ASKED_MAX).collect(),
            });
        }
        let search = self.search.as_mut().expect("there is one");
        if search.asked.is_some_and(|(_, until_us)| now_us < until_us) {
            return;
        }
        let Some(to) = search.left.pop_front() else {
            self.search = None; // no server has it: hot data are loaded when they are read
            return;
        };
        self.next += 1;
        let call = PeerCall::Hint(self.next);
        search.asked = Some((call, now_us + PATIENCE_US));
        out.requests.push(PeerRequest {
            call,
            to,
            question: Peer::GetHeat {
                server: search.server,
            },
            payload: Slice::default(),
        });
    }

    /// The answer of a member; `None`: it was not reached, or does not support the request.
    pub fn answered(&mut self, call: PeerCall, answer: Option<(PeerAnswer, Slice)>) {
        let blocks = match answer {
            Some((PeerAnswer::Heat, blocks)) => Some(blocks),
            _ => None,
        };
        if let Some(sent) = self.sent.values_mut().find(|sent| sent.call == call) {
            if blocks.is_some() {
                sent.due_us = u64::MAX; // until the hint changes
            }
            return;
        }
        let is_asked = |search: &mut Search| search.asked.is_some_and(|(asked, _)| asked == call);
        let Some(mut search) = self.search.take_if(is_asked) else {
            return; // of a request that was given up
        };
        let blocks = blocks.filter(|blocks| !blocks.is_empty() && blocks.len() <= HINT_BYTES_MAX);
        match blocks {
            Some(blocks) => self.found.push((search.server, blocks)),
            None => {
                search.asked = None;
                self.search = Some(search);
            }
        }
    }
}

/// The servers that are UP and follow a server by id, cyclically, without that server and this one.
fn following(
    server: ServerId,
    me: ServerId,
    members: &Members,
) -> impl Iterator<Item = ServerId> + '_ {
    let ids = move || members.up().map(|entry| entry.server);
    let after = ids().filter(move |id| *id > server);
    let before = ids().filter(move |id| *id < server);
    after.chain(before).filter(move |id| *id != me)
}

#[cfg(test)]
mod tests;

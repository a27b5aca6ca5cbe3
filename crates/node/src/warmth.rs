//! What is read often here, told to two other members; what others told, kept for them; and who has
//! recovered a server's data asks for it, so that memory can be filled with what was hot there.
//!
//! **Invariants**
//! - H1: all of it is advice: nothing waits for it, and what gets lost is told again with the next
//!   news, or not at all.
//! - H2: kept is one hint for each server, which that server itself has put while it was UP,
//!   `HINT_BYTES_MAX` at most; [`HELD_BYTES_MAX`] in all, the oldest goes first. A server that no
//!   list names any more was recovered, and is forgotten [`FORGET_US`] later.
//! - H3: a member tells the two that follow it by id among those that are UP; who looks for a hint
//!   asks those that follow the dead one, a few, one after the other.
//!
//! **Concurrency** none: one owner, the node.
//!
//! Paper: 40-flash.md, hottest first, for a recovery; not in Ousterhout15, where all is in memory.

use crate::recovery::Effects;
use crate::remote::{Asked, PeerCall};
use duramen_base::ids::ServerId;
use duramen_base::units::MIB;
use duramen_cluster::membership::Members;
use duramen_format::heat::{BLOCK_BYTES, HINT_BYTES_MAX};
use duramen_wire::native::Slice;
use duramen_wire::native::message::{Peer, PeerAnswer, Refusal};
use std::collections::{BTreeMap, VecDeque};

/// Calls from here on, up to the next bit, are those of this file.
const WARMTH_NAMES: u64 = 1 << 57;
/// How often it looks whether there is something to tell, or to forget.
const LOOK_US: u64 = 500_000;
/// A hint that was not taken is told again after this time.
const AGAIN_US: u64 = 5_000_000;
/// Who does not answer in this time is not waited for.
const PATIENCE_US: u64 = 2_000_000;
/// See H2.
const FORGET_US: u64 = 300_000_000;
const HELD_BYTES_MAX: usize = 16 * MIB as usize;
/// Members that are told, and those that are asked at most (H3).
const TOLD: usize = 2;
const ASKED_MAX: usize = 4;
/// Dead servers whose hints are still to be asked for, at most.
const WANTED_MAX: usize = 64;

/// A hint of another server's that is kept here, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldHint {
    pub server: ServerId,
    pub bytes: usize,
    /// Since it was put.
    pub age_ms: u64,
}

/// What another server put here.
struct Held {
    blocks: Slice,
    since_us: u64,
    /// Since when no list names it.
    gone_us: Option<u64>,
}

/// The last hint, on its way to one of those that are told.
struct Told {
    call: PeerCall,
    /// It is told again then.
    due_us: u64,
}

/// A search for a dead server's hint.
struct Search {
    server: ServerId,
    /// Whose answer is waited for, until then.
    asked: Option<(PeerCall, u64)>,
    /// To be asked.
    left: VecDeque<ServerId>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Warmth {
    held: BTreeMap<ServerId, Held>,
    mine: Option<Slice>,
    told: BTreeMap<ServerId, Told>,
    wanted: VecDeque<ServerId>,
    search: Option<Search>,
    /// Found, and not given out yet.
    found: Vec<(ServerId, Slice)>,
    /// There are hints of this member.
    is_warm: bool,
    look_us: u64,
    next: u64,
}

impl Warmth {
    /// `is_warm`: this member has a second tier, and hints of its own.
    pub fn new(is_warm: bool) -> Warmth {
        Warmth {
            is_warm,
            ..Warmth::default()
        }
    }

    /// Whether an answer of another server's is for here.
    pub fn is_call(call: PeerCall) -> bool {
        call.0 >> 57 == 1
    }

    /// For people.
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

    /// A server says what is read often there (H2).
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
        let held = Held {
            blocks: blocks.into(),
            since_us: now_us,
            gone_us: None,
        };
        self.held.insert(server, held);
        let bytes = |held: &BTreeMap<ServerId, Held>| {
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

    /// What a server put, if it is still there.
    pub fn get(&self, server: ServerId) -> Option<Slice> {
        self.held.get(&server).map(|held| held.blocks.clone())
    }

    /// Data of this dead server is served here from now on.
    pub fn recovered(&mut self, server: ServerId) {
        let is_known = self.wanted.contains(&server);
        if self.is_warm && !is_known && self.wanted.len() < WANTED_MAX {
            self.wanted.push_back(server);
        }
    }

    /// Tells, asks and forgets what is due. `hint` gives what is read often here, if there is news.
    /// Returns hints that were asked for.
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
                self.told.clear();
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
        self.told.retain(|server, _| others.contains(server));
        for to in others {
            if self.told.get(&to).is_some_and(|told| now_us < told.due_us) {
                continue;
            }
            self.next += 1;
            let call = PeerCall(WARMTH_NAMES | self.next);
            let due_us = now_us + AGAIN_US;
            self.told.insert(to, Told { call, due_us });
            out.asked.push(Asked {
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
            self.search = None; // nobody knows: what is hot is fetched by who reads it
            return;
        };
        self.next += 1;
        let call = PeerCall(WARMTH_NAMES | self.next);
        search.asked = Some((call, now_us + PATIENCE_US));
        out.asked.push(Asked {
            call,
            to,
            question: Peer::GetHeat {
                server: search.server,
            },
            payload: Slice::default(),
        });
    }

    /// A member answered; `None`: it was not reached, or does not know the question.
    pub fn answered(&mut self, call: PeerCall, answer: Option<(PeerAnswer, Slice)>) {
        let blocks = match answer {
            Some((PeerAnswer::Heat, blocks)) => Some(blocks),
            _ => None,
        };
        if let Some(told) = self.told.values_mut().find(|told| told.call == call) {
            if blocks.is_some() {
                told.due_us = u64::MAX; // until there is news
            }
            return;
        }
        let is_asked = |search: &mut Search| search.asked.is_some_and(|(asked, _)| asked == call);
        let Some(mut search) = self.search.take_if(is_asked) else {
            return; // of a question that was given up
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

/// Those that are UP and follow a server by id, around, without this one and that one.
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

//! A master whose engine a test plays: it appends, closes and cleans segments, and knows what was
//! promised of each.

use crate::replication::disk::{Disk, Message, Stored};
use duramen_base::ids::{Level, SegmentId};
use duramen_base::random::Random;
use duramen_cluster::control::State;
use duramen_cluster::replication::{BackupId, Config, Effect, Master, Send};
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;
use std::collections::{BTreeMap, BTreeSet};

/// The length that each segment had when it was promised.
pub type Promised = BTreeMap<SegmentId, u32>;

pub struct Writer {
    pub config: Config,
    pub master: Master,
    pub next_id: u64,
    /// Open segment of each head, with its length.
    pub heads: Vec<Option<(SegmentId, u32)>>,
    closed: BTreeSet<SegmentId>,
    /// Highest lengths that were ever promised, at levels buffered and synced.
    pub promised: [Promised; 2],
    /// The previous segment of the same head, and its final length.
    before: BTreeMap<SegmentId, (SegmentId, u32)>,
    pub swaps: BTreeMap<u64, Vec<SegmentId>>,
    in_swap: BTreeSet<SegmentId>,
    pub swapped_out: BTreeSet<SegmentId>,
}

/// The contents of data segments are their lengths.
fn certificate_at(segment: SegmentId, length: u32) -> Certificate {
    Certificate {
        length,
        crc: (segment.0 as u32).wrapping_mul(7919) ^ length.wrapping_mul(31),
    }
}

impl Writer {
    pub fn new(config: Config, backups: &[BackupId]) -> Writer {
        Writer {
            config,
            master: Master::new(config, State::default(), backups, &[]),
            next_id: 1,
            heads: vec![None, None],
            closed: BTreeSet::new(),
            promised: Default::default(),
            before: BTreeMap::new(),
            swaps: BTreeMap::new(),
            in_swap: BTreeSet::new(),
            swapped_out: BTreeSet::new(),
        }
    }

    fn id(&mut self) -> SegmentId {
        self.next_id += 1;
        SegmentId(self.next_id - 1)
    }

    pub fn append(&mut self, head: usize, random: &mut Random) {
        let Some((segment, length)) = self.heads[head] else {
            return self.roll_head(head);
        };
        let length = length + 8 + random.index(5) as u32 * 8;
        self.heads[head] = Some((segment, length));
        self.master
            .appended(segment, certificate_at(segment, length));
    }

    pub fn roll_head(&mut self, head: usize) {
        let segment = self.id();
        if let Some((last, length)) = self.heads[head] {
            self.master.closed(last);
            self.closed.insert(last);
            self.before.insert(segment, (last, length));
        }
        self.heads[head] = Some((segment, 64));
        self.master.opened(segment, Kind::Head, head as u32);
        self.master.appended(segment, certificate_at(segment, 64));
    }

    /// Proposes to replace one or two closed segments by a survivor. `beside`: the disk of the only
    /// backup, on which the survivor is written beside the stream, durable at once.
    pub fn clean(&mut self, beside: Option<&mut [&mut Disk]>, random: &mut Random) {
        let free = self.closed.difference(&self.in_swap).copied();
        let free: Vec<SegmentId> = free.collect();
        if free.is_empty() {
            return;
        }
        let take = 1 + random.index(2);
        let remove: Vec<SegmentId> = free.into_iter().take(take).collect();
        self.in_swap.extend(&remove);
        let survivor = self.id();
        let certificate = certificate_at(survivor, 100);
        if let Some(disks) = beside {
            let stored = Stored {
                epoch: 0,
                kind: Kind::Survivor,
                certificate,
                closed: true,
                bytes: Vec::new(),
            };
            for disk in disks {
                disk.insert(survivor, stored.clone());
            }
            self.master
                .segments_mut()
                .survivor_durable(survivor, BackupId(0), certificate);
        } else {
            self.master.opened(survivor, Kind::Survivor, 0);
            self.master.appended(survivor, certificate);
            self.master.closed(survivor);
        }
        let number = self
            .master
            .swap(vec![(survivor, certificate)], remove.clone(), 0);
        self.swaps.insert(number, remove);
    }

    /// The master's effects; swaps are carried out.
    pub fn poll(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        let next_id = &mut self.next_id;
        let mut fresh = || {
            *next_id += 1;
            SegmentId(*next_id - 1)
        };
        self.master.poll(&mut fresh, &mut effects);
        for effect in &effects {
            if let Effect::Swapped { swap } = effect {
                let victims = self.swaps.remove(swap).expect("a swap that was proposed");
                self.closed.retain(|segment| !victims.contains(segment));
                self.swapped_out.extend(victims);
            }
        }
        effects
    }

    pub fn message(&self, send: Send) -> Message {
        let range = send.from as usize..send.certificate.length as usize;
        let bytes = match send.kind {
            Kind::Control => self.master.control().bytes(send.segment)[range].to_vec(),
            _ => Vec::new(),
        };
        Message { send, bytes }
    }

    /// Notes what the master promises now.
    pub fn promise(&mut self) {
        let heads = self.heads.iter().flatten().map(|(id, _)| id);
        for id in self.closed.iter().chain(heads) {
            for (n, level) in [Level::Buffered, Level::Synced].into_iter().enumerate() {
                let durable = self.master.durable_bytes(*id, level);
                let known = self.promised[n].entry(*id).or_default();
                *known = (*known).max(durable);
            }
        }
    }

    /// The length of a replica, if it is valid. Backups that came back have closed ones of older
    /// epochs, which are whole.
    pub fn valid(&self, state: &State, id: SegmentId, stored: &Stored) -> Option<u32> {
        let listed = &state.segments[&id];
        let is_valid = match listed.closed {
            Some(certificate) => stored.certificate == certificate,
            None => stored.epoch >= listed.epoch || stored.closed && self.config.coordinated,
        };
        is_valid.then_some(stored.certificate.length)
    }

    /// The longest valid replica of a segment.
    fn best(&self, state: &State, disks: &[Disk], id: SegmentId) -> Option<u32> {
        let replicas = disks.iter().filter_map(|disk| disk.get(&id));
        replicas
            .filter_map(|stored| self.valid(state, id, stored))
            .max()
    }

    /// Checks the result of a recovery from these disks, of which no control segment below `floor`
    /// counts. `must`: it may not wait for other backups.
    pub fn check_recovery(
        &self,
        disks: &[Disk],
        promised: &Promised,
        floor: Option<SegmentId>,
        must: bool,
    ) {
        let nothing = || promised.values().all(|length| *length == 0);
        let control = disks
            .iter()
            .flatten()
            .filter(|(_, stored)| stored.kind == Kind::Control && stored.certificate.length > 0)
            .filter(|(id, _)| floor.is_none_or(|floor| **id >= floor))
            .max_by_key(|(id, stored)| (**id, stored.certificate.length));
        let Some((id, control)) = control else {
            assert!(
                !must || nothing(),
                "promised something without a control log"
            );
            return;
        };
        let mut all = disks.iter().filter_map(|disk| disk.get(id));
        if all.any(|stored| stored.closed) {
            assert!(
                !must || self.config.coordinated && nothing(),
                "control segment {id} is closed, and there is no other"
            );
            return; // it waits for the next one
        }
        let state = State::replay(*id, &control.bytes).expect("an eligible control segment");
        for (id, listed) in &state.segments {
            if self.best(&state, disks, *id).is_none() {
                assert!(
                    !must,
                    "segment {id} is listed ({listed:?}) and not to be had"
                );
                return; // it waits for other backups
            }
        }
        for victim in &self.swapped_out {
            let back = state.segments.contains_key(victim);
            assert!(!back, "segment {victim} was swapped out and is back");
        }
        self.check_promises(&state, disks, promised);
        self.check_order(&state, disks);
    }

    fn check_promises(&self, state: &State, disks: &[Disk], promised: &Promised) {
        for (id, length) in promised {
            if self.swapped_out.contains(id) || *length == 0 {
                continue;
            }
            if !state.segments.contains_key(id) {
                // Its swap is in flight, and the record was stored.
                assert!(self.in_swap.contains(id), "segment {id} was promised");
                continue;
            }
            let found = self.best(state, disks, *id).expect("checked before");
            assert!(
                found >= *length,
                "segment {id}: {found} bytes of {length} that were promised"
            );
        }
    }

    /// replication::O3: if a head's segment has data, the ones before it are whole.
    fn check_order(&self, state: &State, disks: &[Disk]) {
        for id in state.segments.keys() {
            let has_data = self
                .best(state, disks, *id)
                .is_some_and(|length| length > 0);
            if let (true, Some((before, length))) = (has_data, self.before.get(id))
                && state.segments.contains_key(before)
            {
                assert_eq!(
                    self.best(state, disks, *before),
                    Some(*length),
                    "{before} is before {id}"
                );
            }
        }
    }
}

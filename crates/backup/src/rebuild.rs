//! Restart: rebuilds the replicas, as of the last commit, from slots and the write-ahead log.
//!
//! **Invariants**
//! - U1: slots are read first; a commit changes a replica only beyond the bytes in its slot. So
//!   replay may be repeated.
//! - U2: a frame that a commit names belongs to that commit's segment unless a slot or a later
//!   commit says otherwise.
//! - U4: of two instances of a replica (it was given up and opened again) the one with the higher
//!   replication epoch counts: an id is opened again at a higher epoch only.
//! - U3: a replica that can't be rebuilt becomes a damaged replica, never a shorter one. Whether it
//!   matters depends on the control log: freed replicas may reappear, whole or in part
//!   (docs/traps.md, trap 1).
//! - U5: of a frame's newest slot one flipped bit is put back (format::mend), in its block and in
//!   its tail, if its replica is damaged or missing without it: then no power cut tore the slot, as
//!   the commits that it replaced would be in the log. The replica counts as damaged all the same,
//!   so that its master replaces it.

use std::collections::{BTreeMap, BTreeSet};

use duramen_base::planted::{Bug, has_bug};
use duramen_format::certificate::Certificate;
use duramen_format::frame::{self, SLOT_BYTES, Slot, State};
use duramen_format::mend;
use duramen_format::wal::{Held, Mark, Record};

use crate::buffer::Buffer;
use crate::disk::BLOCK_BYTES;
use crate::error::Error;
use crate::region::Region;
use crate::replica::{Data, Decay, Replica};
use crate::types::{Damaged, Geometry, ReplicaId};

/// Slots read at once: 4 MiB, in parts side by side.
const SLOTS_AT_ONCE: u32 = 256;

/// The slots of one frame, as found.
pub(crate) struct FoundSlot {
    pub(crate) frame: u32,
    /// The frame's valid slot.
    pub(crate) slot: Option<Slot>,
    /// Its number; for a frame without a valid slot, the number of the slot not to be written next.
    pub(crate) current: u8,
    /// Number of slots that were written but don't match their CRC.
    pub(crate) broken: u32,
    /// The tail of the valid slot.
    pub(crate) tail: Vec<u8>,
    /// A newer slot with a flipped bit that was put back (U5).
    pub(crate) mended: Option<MendedSlot>,
}

/// A slot with a flipped bit that was put back; it counts if no power cut tore it (U5).
pub(crate) struct MendedSlot {
    pub(crate) slot: Slot,
    number: u8,
    tail: Vec<u8>,
    /// The flipped bits.
    pub(crate) what: String,
}

impl MendedSlot {
    fn of(number: u8, bytes: &[u8]) -> Option<MendedSlot> {
        let mut bytes = bytes.to_vec();
        let (block, tail) = bytes.split_at_mut_checked(frame::BLOCK_BYTES)?;
        let in_block = mend::block(block);
        let slot = Slot::decode(block).ok()?;
        let mut in_tail = None;
        if !slot.tail_matches(tail) {
            in_tail = mend::body(tail.get_mut(..slot.tail_bytes as usize)?, slot.tail_crc);
        }
        let flips = in_block.map(|flip| ("slot", flip)).into_iter();
        let flips = flips.chain(in_tail.map(|flip| ("slot's tail", flip)));
        let what = flips.map(|(part, mend::Flip { byte, bit })| {
            format!("byte {byte} of its {part}: bit {bit} had flipped and was put back")
        });
        let what = what.collect::<Vec<_>>().join("; ");
        slot.tail_matches(tail).then(|| MendedSlot {
            slot,
            number,
            tail: tail[..slot.tail_bytes as usize].to_vec(),
            what,
        })
    }
}

/// Reads the slots of all frames, in their order, up to the end of the file: a damaged or forged
/// superblock may count more.
///
/// # Errors
/// Those of the visitor. Unreadable slots count as broken.
pub(crate) fn slots(
    region: &Region,
    geometry: &Geometry,
    visit: &mut dyn FnMut(FoundSlot) -> Result<(), Error>,
) -> Result<(), Error> {
    let pair = 2 * SLOT_BYTES as usize;
    let there = region.bytes().unwrap_or(u64::MAX);
    let there = there
        .saturating_sub(frame::slot_at(0, 0))
        .div_ceil(pair as u64);
    let frames = u64::from(geometry.frames).min(there) as u32;
    let at_once = SLOTS_AT_ONCE.min(frames) as usize;
    let mut buffer = Buffer::with_capacity(at_once * pair);
    buffer.resize(at_once * pair);
    let bytes = buffer.bytes_mut();
    let mut first = 0;
    while first < frames {
        let count = SLOTS_AT_ONCE.min(frames - first);
        let part = &mut bytes[..count as usize * pair];
        let whole = region.read_at(frame::slot_at(first, 0), part).is_ok();
        for (index, pair) in part.chunks_exact_mut(pair).enumerate() {
            let frame = first + index as u32;
            // One bad sector must not hide its neighbours.
            let readable = whole || region.read_at(frame::slot_at(frame, 0), pair).is_ok();
            let found = if readable {
                decode(frame, pair)
            } else {
                FoundSlot {
                    frame,
                    slot: None,
                    current: 0,
                    broken: 2,
                    tail: Vec::new(),
                    mended: None,
                }
            };
            visit(found)?;
        }
        first += count;
    }
    Ok(())
}

pub(crate) fn decode(frame: u32, pair: &[u8]) -> FoundSlot {
    let mut found = FoundSlot {
        frame,
        slot: None,
        current: 1,
        broken: 0,
        tail: Vec::new(),
        mended: None,
    };
    let mut broken_at = None;
    for (number, bytes) in pair.chunks_exact(SLOT_BYTES as usize).enumerate() {
        match Slot::decode(bytes) {
            Ok(slot) if slot.tail_matches(tail_of(bytes)) => {
                if found.slot.is_none_or(|best| best.stamp < slot.stamp) {
                    found.slot = Some(slot);
                    found.current = number as u8;
                    found.tail = tail_of(bytes)[..slot.tail_bytes as usize].to_vec();
                }
            }
            Err(frame::Damage::Blank) => {}
            Err(_) if is_blank_but_for_a_bit(bytes) => {}
            _ => {
                found.broken += 1;
                broken_at = Some(number as u8);
                let mended = MendedSlot::of(number as u8, bytes);
                let newest = found.mended.as_ref().map_or(0, |known| known.slot.stamp);
                found.mended = mended
                    .filter(|mended| mended.slot.stamp > newest)
                    .or(found.mended);
            }
        }
    }
    let newest = found.slot.map_or(0, |slot| slot.stamp);
    found.mended.take_if(|mended| mended.slot.stamp <= newest);
    if let (None, Some(broken)) = (found.slot, broken_at) {
        found.current = 1 - broken; // the broken slot is written next
    }
    found
}

/// U5: one flipped bit of a slot that was never written. A torn slot has more of them.
fn is_blank_but_for_a_bit(slot: &[u8]) -> bool {
    let block = slot.get(..frame::BLOCK_BYTES).unwrap_or_default();
    let ones = block.iter().map(|byte| byte.count_ones()).sum::<u32>();
    ones == 1 && !has_bug(Bug::FlippedSlotIsLost)
}

/// The part of a replica that its slot covers.
#[derive(Clone, Copy, Default)]
struct Covered {
    /// Commits up to this lsn are in the slot.
    lsn: u64,
    /// The frame's other slot was written and does not match its CRC.
    broken: bool,
    /// The write-ahead log has a later commit for this replica.
    later: bool,
}

/// The second block of a slot.
fn tail_of(slot: &[u8]) -> &[u8] {
    slot.get(frame::BLOCK_BYTES..).unwrap_or(&[])
}

/// Replicas that are being rebuilt.
pub(crate) struct Rebuild<'a> {
    geometry: &'a Geometry,
    pub(crate) replicas: BTreeMap<ReplicaId, Replica>,
    /// Per frame: its owner, and the lsn of the record that names it.
    owners: Vec<Option<(ReplicaId, u64)>>,
    /// The part that a slot covers, for each segment in a frame.
    covered: BTreeMap<ReplicaId, Covered>,
    pub(crate) current: Vec<u8>,
    /// The stamp of each frame's valid slot; 0: it has none.
    pub(crate) best: Vec<u64>,
    /// Frames with two broken slots: their contents are unknown, so nothing overwrites them.
    unknown: BTreeSet<u32>,
    pub(crate) stamp: u64,
    /// Commits up to this one were durable when a slot was written (frame::P3).
    pub(crate) durable_lsn: u64,
    stamps: BTreeMap<ReplicaId, u64>,
    /// Replicas that were freed according to a slot, with their epochs: commits of such a replica
    /// up to that epoch do not count (U4).
    freed: BTreeMap<ReplicaId, u64>,
    /// Frames whose mended slot counts (U5).
    accepted: BTreeSet<u32>,
    /// The mended slots of all other frames.
    mended: BTreeMap<u32, Slot>,
}

impl<'a> Rebuild<'a> {
    pub(crate) fn new(geometry: &'a Geometry, accepted: BTreeSet<u32>) -> Rebuild<'a> {
        Rebuild {
            accepted,
            geometry,
            replicas: BTreeMap::new(),
            owners: vec![None; geometry.frames as usize],
            covered: BTreeMap::new(),
            current: vec![1; geometry.frames as usize],
            best: vec![0; geometry.frames as usize],
            unknown: BTreeSet::new(),
            stamp: 0,
            durable_lsn: 0,
            stamps: BTreeMap::new(),
            freed: BTreeMap::new(),
            mended: BTreeMap::new(),
        }
    }

    /// Adds the slots of a frame.
    pub(crate) fn slot(&mut self, mut found: FoundSlot) {
        let mut decay = None;
        match found.mended.take() {
            Some(mended) if self.accepted.contains(&found.frame) => {
                found.slot = Some(mended.slot);
                found.current = mended.number;
                found.tail = mended.tail;
                found.broken -= 1;
                decay = Some(Decay::mendable(mended.what));
            }
            Some(mended) => drop(self.mended.insert(found.frame, mended.slot)),
            None => {}
        }
        self.current[found.frame as usize] = found.current;
        let Some(slot) = found.slot else {
            if found.broken == 2 {
                self.unknown.insert(found.frame);
            }
            return;
        };
        self.stamp = self.stamp.max(slot.stamp);
        self.durable_lsn = self.durable_lsn.max(slot.lsn);
        self.best[found.frame as usize] = slot.stamp;
        let id = ReplicaId {
            log: slot.log,
            segment: slot.segment,
        };
        if slot.state == State::Free {
            let freed = self.freed.entry(id).or_default();
            *freed = slot.epoch.max(*freed);
            return;
        }
        // If two frames hold the same segment, the one with the later stamp counts: the other was
        // to be freed.
        let known = self.stamps.get(&id).copied().unwrap_or(0);
        if slot.stamp < known {
            return;
        }
        if let Some(older) = self.replicas.remove(&id).and_then(|r| r.frame) {
            self.owners[older as usize] = None;
        }
        self.stamps.insert(id, slot.stamp);
        let mut replica = self.replica_of(&slot, &found.tail);
        replica.frame = Some(found.frame);
        replica.in_slot = true;
        replica.decay = decay;
        self.owners[found.frame as usize] = Some((id, slot.lsn));
        let covered = Covered {
            lsn: slot.lsn,
            broken: found.broken > 0,
            later: false,
        };
        self.covered.insert(id, covered);
        self.replicas.insert(id, replica);
    }

    fn replica_of(&self, slot: &Slot, tail: &[u8]) -> Replica {
        let closed = slot.state == State::Closed;
        let mut replica = if closed {
            Replica::new(slot.kind, slot.epoch, Data::InFrame)
        } else {
            let mut buffer = Buffer::with_capacity(self.geometry.segment_bytes as usize);
            buffer.extend(tail);
            Replica::new(slot.kind, slot.epoch, Data::Growing(buffer))
        };
        replica.certificate = slot.certificate;
        replica.received = slot.certificate.length;
        replica.base = slot.data_bytes();
        replica.closed = closed;
        let fits = slot.certificate.length <= self.geometry.segment_bytes
            && (closed || u64::from(slot.data_bytes()).is_multiple_of(BLOCK_BYTES));
        if !fits {
            // No memory is allocated for a false length.
            replica.certificate = Certificate::EMPTY;
            (replica.received, replica.base) = (0, 0);
            replica.damaged = Some("its slot has lengths that make no sense".to_owned());
        }
        replica
    }

    /// Adds one record of a commit.
    pub(crate) fn record(&mut self, lsn: u64, record: &Record<'_>) {
        let id = id_of(record);
        if self
            .freed
            .get(&id)
            .is_some_and(|epoch| record.epoch <= *epoch)
        {
            return;
        }
        let known = self.replicas.get(&id).map(|replica| replica.epoch);
        if known.is_some_and(|epoch| epoch < record.epoch) && record.open {
            self.forget(&id); // U4: an older instance
        } else if let Some(replica) = self.replicas.get(&id) {
            let covered = self.covered.entry(id).or_default();
            if record.epoch < replica.epoch {
                return; // U4: a record of an older instance
            }
            if replica.closed || lsn <= covered.lsn && contained(replica, record) {
                return; // U1: the slot has it already
            }
            covered.later |= lsn > covered.lsn;
        }
        let end = u64::from(record.offset) + record.payload.len() as u64;
        let fits = end <= u64::from(self.geometry.segment_bytes)
            && record
                .frame
                .is_none_or(|frame| frame < self.geometry.frames)
            && record
                .certificate
                .is_none_or(|certificate| u64::from(certificate.length) <= end);
        let problem = if !fits {
            Some("a commit has lengths that make no sense")
        } else if let Some(frame) = record.frame {
            self.claim(lsn, record, frame)
        } else {
            self.append(lsn, record)
        };
        let capacity = self.geometry.segment_bytes as usize;
        let replica = self
            .replicas
            .entry(id)
            .or_insert_with(|| blank(record, capacity));
        replica.wal_from.get_or_insert(lsn);
        match problem {
            Some(problem) => {
                replica.damaged.get_or_insert_with(|| problem.to_owned()); // U3
            }
            None => settle(replica, lsn, record),
        }
    }

    /// Drops an older instance of a replica; its frame may be used again.
    fn forget(&mut self, id: &ReplicaId) {
        if let Some(frame) = self.replicas.remove(id).and_then(|replica| replica.frame) {
            self.owners[frame as usize] = None;
        }
        self.covered.remove(id);
    }

    /// Applies a record that places all bytes before its payload in this frame.
    fn claim(&mut self, lsn: u64, record: &Record<'_>, frame: u32) -> Option<&'static str> {
        if let Some((owner, since)) = self.owners[frame as usize]
            && owner != id_of(record)
        {
            if since >= lsn {
                return Some("its frame was used again");
            }
            // U2: the previous owner of the frame was freed.
            self.replicas.remove(&owner);
            self.covered.remove(&owner);
        }
        self.owners[frame as usize] = Some((id_of(record), lsn));
        let capacity = self.geometry.segment_bytes as usize;
        let replica = self
            .replicas
            .entry(id_of(record))
            .or_insert_with(|| blank(record, capacity));
        if replica.base > record.offset {
            return None; // the slot covers more
        }
        let mut buffer = Buffer::with_capacity(capacity);
        buffer.extend(record.payload);
        replica.data = Data::Growing(buffer);
        replica.base = record.offset;
        replica.in_slot &= replica.frame == Some(frame);
        replica.frame = Some(frame);
        replica.received = record.offset + record.payload.len() as u32;
        replica.wal_from = Some(lsn);
        replica.damaged = None; // bytes that were missing before are in the frame
        None
    }

    /// Applies a record with a payload that continues where the last one ended.
    fn append(&mut self, lsn: u64, record: &Record<'_>) -> Option<&'static str> {
        let capacity = self.geometry.segment_bytes as usize;
        let begins = record.open && record.offset == 0;
        if !begins && !self.replicas.contains_key(&id_of(record)) {
            return Some("its beginning is in no frame and no commit");
        }
        let replica = self
            .replicas
            .entry(id_of(record))
            .or_insert_with(|| blank(record, capacity));
        replica.wal_from.get_or_insert(lsn);
        if record.offset > replica.received {
            return Some("bytes in its middle are in no frame and no commit");
        }
        let held = (replica.received - record.offset) as usize;
        if let (Some(new), Data::Growing(buffer)) = (record.payload.get(held..), &mut replica.data)
        {
            buffer.extend(new);
            replica.received += new.len() as u32;
        }
        None
    }

    /// U5, after [`finish`](Self::finish): frames with a mended slot without which their replica is
    /// damaged or missing. If there are any, the caller rebuilds anew with these accepted.
    pub(crate) fn wanted(&self) -> BTreeSet<u32> {
        let is_wanted = |slot: &Slot| {
            let id = ReplicaId {
                log: slot.log,
                segment: slot.segment,
            };
            let is_lost = match self.replicas.get(&id) {
                Some(replica) => replica.damaged.is_some(),
                None => !self.freed.contains_key(&id),
            };
            is_lost && slot.state != State::Free && !has_bug(Bug::FlippedSlotIsLost)
        };
        let mended = self.mended.iter();
        let wanted = mended.filter(|(_, slot)| is_wanted(slot));
        wanted.map(|(frame, _)| *frame).collect()
    }

    /// Replicas with a slot that was mended, for their master.
    pub(crate) fn mended_slots(&self) -> Vec<Damaged> {
        let decayed = self.replicas.iter().filter_map(|(id, replica)| {
            let reason = replica.decay.as_ref()?.reason.clone();
            Some(Damaged {
                log: id.log,
                segment: id.segment,
                kind: replica.kind,
                frame: replica.frame,
                unreadable: false,
                reason,
            })
        });
        decayed.collect()
    }

    /// wal::W6: replicas whose newest slot is neither there nor replaced by a later one, and those
    /// that an earlier restart has missed and nobody has opened again (U4).
    pub(crate) fn miss(&mut self, marks: &[Mark]) {
        for mark in marks {
            let id = ReplicaId {
                log: mark.log,
                segment: mark.segment,
            };
            let (is_there, epoch) = match mark.held {
                Held::Slot(stamp) => {
                    // No later slot may look as if it were the lost one.
                    self.stamp = self.stamp.max(stamp);
                    let best = self.best.get(mark.frame as usize).copied().unwrap_or(0);
                    let elsewhere = self.stamps.get(&id).copied().unwrap_or(0);
                    (best.max(elsewhere) >= stamp, 0)
                }
                Held::Lost(epoch) => {
                    let found = self.replicas.get(&id);
                    (found.is_some_and(|found| found.epoch > epoch), epoch)
                }
            };
            if is_there {
                continue;
            }
            let lost = || Replica::new(mark.kind, epoch, Data::Growing(Buffer::with_capacity(0)));
            let replica = self.replicas.entry(id).or_insert_with(lost);
            let frame = Some(mark.frame).filter(|frame| *frame < self.geometry.frames);
            replica.damaged.get_or_insert_with(|| match frame {
                Some(frame) => format!(
                    "the newest slot of frame {frame} was lost, or the frames are an older copy"
                ),
                None => "its slot was lost, or the frames are an older copy".to_owned(),
            });
            self.unknown.extend(frame);
        }
    }

    /// Completes the replicas after all input was read. Returns the frames in use.
    pub(crate) fn finish(&mut self) -> BTreeSet<u32> {
        for (id, replica) in &mut self.replicas {
            let covered = self.covered.get(id).copied().unwrap_or_default();
            // The newest slot of an open replica is lost. If a power cut tore it, then the commits
            // that made it necessary are still in the log, as trimming comes after. If there are
            // none, the slot had been complete, and was damaged later.
            if covered.broken && !replica.closed && !covered.later {
                replica
                    .damaged
                    .get_or_insert_with(|| "its newest slot does not match its CRC".to_owned());
            }
            replica.committed = true;
            // Uncertified bytes belong to an incomplete batch; its sender is gone.
            if let Data::Growing(buffer) = &mut replica.data {
                let certified = replica.certificate.length.saturating_sub(replica.base);
                buffer.truncate(certified as usize);
            }
            replica.received = replica.certificate.length;
            replica.uncertified_from = None;
            replica.rolling = replica.certificate;
            replica.staged_certified = replica.certificate.length;
            replica.staged_closed = replica.closed;
            replica.staged_base = replica.base;
            if replica.base > replica.certificate.length {
                replica.damaged.get_or_insert_with(|| {
                    "its certificate covers less than its frame holds".to_owned()
                });
            }
            if replica.damaged.is_some() {
                // No flush will ever hold its bytes, so it must not keep commits from being
                // trimmed. Its mark keeps it damaged (wal::W6).
                replica.wal_from = None;
            }
        }
        let mut taken = self.unknown.clone();
        taken.extend(self.replicas.values().filter_map(|replica| replica.frame));
        taken
    }
}

fn id_of(record: &Record<'_>) -> ReplicaId {
    ReplicaId {
        log: record.log,
        segment: record.segment,
    }
}

fn blank(record: &Record<'_>, capacity: usize) -> Replica {
    let data = Data::Growing(Buffer::with_capacity(capacity));
    Replica::new(record.kind, record.epoch, data)
}

/// Whether a record adds nothing to a replica.
fn contained(replica: &Replica, record: &Record<'_>) -> bool {
    let end = u64::from(record.offset) + record.payload.len() as u64;
    end <= u64::from(replica.received) && !record.close
}

/// Applies a record to its replica, apart from the bytes.
fn settle(replica: &mut Replica, lsn: u64, record: &Record<'_>) {
    replica.epoch = replica.epoch.max(record.epoch);
    match record.certificate {
        Some(certificate) if certificate.length >= replica.certificate.length => {
            replica.certificate = certificate;
            replica.uncertified_from = None;
        }
        Some(_) => {}
        None => {
            replica.uncertified_from.get_or_insert(lsn);
        }
    }
    replica.closed |= record.close;
}

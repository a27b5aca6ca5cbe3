//! Losses that an operator has accepted: `duramen accept-loss` (docs/protocols.md, "Accepting a
//! loss").
//!
//! **Invariants**
//! - Z1: a start looks at accepted losses only after it was refused for damage. It leaves out
//!   exactly what was accepted, segment by segment: the loss of each is computed anew, and must
//!   have the accepted token. Any other damage refuses the start as before.
//! - Z2: the key of each lost entry is removed, durably, before anything is served, unless a newer
//!   version of it is whole. So no older version of it appears. New versions are above the lost
//!   ones: a repetition of this after a crash removes nothing that was written since. Without room
//!   on the disk the keys are removed in memory, and the commits follow when there is room. Until
//!   then no reply that shows a removal is given, and a crash repeats all of this.
//! - Z3: the damaged segments are replaced once that is durable: the Swap waits for all that was
//!   appended before it (swap::D2). The list stays: it has no effect without these segments, whose
//!   ids are never given again.
//! - Z4: a tombstone takes the place of each lost entry, even if its key is absent or has a newer
//!   version: the lost entry may have been the only one that named the segment of an older one.
//!   Entries that name a damaged segment stay needed as long as a segment is listed that the start
//!   has found, also after the damaged one is replaced.
//! - Z5: of an open segment whose newest slot is lost, the end is not known: the certificate of an
//!   older slot, or of none, says nothing about the newest data. Such a loss cannot be accepted.
//!
//! **Layout** of the file `accepted-loss`: lines of text, `duramen accepted-loss COUNT`, then for
//! each segment its id and its token in hexadecimal; filled with line ends to whole blocks. A raw
//! device has no such file.

use crate::durable::Durable;
use crate::{Error, Table, control};
use duramen_backup::disk::{BLOCK_BYTES, Disk, OpenHow};
use duramen_backup::{Backup, ReplicaInfo};
use duramen_base::ids::{Level, SegmentId};
use duramen_base::planted::{Bug, has_bug};
use duramen_cluster::control::{Listed, State};
use duramen_format::certificate::Certificate;
use duramen_format::entry::Kind as EntryKind;
use duramen_format::loss::{Claim, Examined, Loss, examine};
use duramen_format::mend;
use duramen_format::segment::Header;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

const FILE: &str = "accepted-loss";
const MAGIC: &str = "duramen accepted-loss";
/// Keys that are removed in one commit.
const STEP_KEYS: usize = 1000;

/// The parts of segments that a start leaves out.
#[derive(Default)]
pub(crate) struct Left {
    /// The rest of damaged segments.
    pub images: BTreeMap<SegmentId, Vec<u8>>,
    losses: Vec<Loss>,
    /// All listed segments.
    listed: Vec<SegmentId>,
}

impl Left {
    /// The losses that were accepted for this store; `None`: there are none.
    ///
    /// # Errors
    /// A segment has lost something else by now (Z1); the device failed.
    pub(crate) fn of(
        backup: &Backup,
        state: &State,
        replicas: &[ReplicaInfo],
    ) -> Result<Option<Left>, Error> {
        let Some(accepted) = read(&**backup.disk()).map_err(|error| failed(backup, error))? else {
            return Ok(None);
        };
        let mut left = Left {
            listed: state.segments.keys().copied().collect(),
            ..Left::default()
        };
        for (segment, token) in accepted {
            let replica = replicas.iter().find(|replica| replica.segment == segment);
            let Some((listed, replica)) = state.segments.get(&segment).zip(replica) else {
                continue; // Z3
            };
            if has_unknown_end(listed, replica) {
                continue; // stays refused (Z5)
            }
            let Examined { sound, loss } = look(backup, listed, replica)?;
            let Some(loss) = loss else { continue };
            if loss.token() != token && !has_bug(Bug::AcceptsMore) {
                return Err(Error::Damaged {
                    place: backup.disk().label(),
                    reason: format!("segment {segment} has not lost what was accepted"),
                });
            }
            left.images.insert(segment, sound);
            left.losses.push(loss);
        }
        Ok(Some(left))
    }

    fn claims(&self) -> impl Iterator<Item = &Claim> {
        self.losses.iter().flat_map(|loss| &loss.claims)
    }

    /// The highest version of a lost entry.
    pub(crate) fn version_max(&self) -> u64 {
        self.claims().map(|claim| claim.version).max().unwrap_or(0)
    }

    /// Z2 and Z4, then Z3. No other thread uses the store.
    pub(crate) fn settle(&self, durable: &Durable, backup: &Backup) -> Result<(), Error> {
        let common = &durable.common;
        if !has_bug(Bug::LostNamesForgotten) {
            let lost: Vec<SegmentId> = self.images.keys().copied().collect();
            common.log().swaps().announce_lost(&lost, &self.listed);
        }
        let mut claims: Vec<(SegmentId, &Claim)> = Vec::new();
        for loss in &self.losses {
            claims.extend(loss.claims.iter().map(|claim| (loss.segment, claim)));
        }
        let mut session = common.engine.brief_session()?;
        for claims in claims.chunks(STEP_KEYS) {
            common.log().disk_full(false); // Z2: only the commit needs the disk
            for (segment, claim) in claims.iter().filter(|_| !has_bug(Bug::OlderIsShown)) {
                let table = Table(claim.table);
                let is_object = match claim.kind {
                    EntryKind::Object => true,
                    EntryKind::Tombstone => false,
                    EntryKind::Completion => continue,
                };
                if !common.engine.tables().has(table.whole()) {
                    continue;
                }
                let mut guard = session.pin();
                let key = (guard.hash(&claim.key), &claim.key[..]);
                guard.bury_lost(table, key, *segment, (claim.version, is_object))?;
                let _ = guard.order().take_position(); // the commit has everything
            }
            match durable.commit_once(&mut common.lock(), Level::Synced) {
                Ok(()) => {}
                Err(Error::DiskFull(_)) => common.log().disk_full(true),
                Err(error) => return Err(error),
            }
        }
        for loss in &self.losses {
            let (bytes, keys) = (loss.bytes(), loss.claims.len());
            let what = format!("{bytes} bytes with {keys} known keys are lost, as was accepted");
            backup.reader().note_flipped(loss.segment, 0, what);
        }
        Ok(())
    }
}

/// The losses of a stopped store.
#[derive(Debug, Default)]
pub struct Losses {
    /// Segment by segment.
    pub losses: Vec<Loss>,
    /// Damage that cannot be accepted, with the remedy: a line each.
    pub others: Vec<String>,
    /// Tables by their ids.
    pub tables: BTreeMap<u32, String>,
}

impl Losses {
    /// The token that names all of these losses.
    pub fn token(&self) -> String {
        let tokens = self.losses.iter();
        let bytes: Vec<u8> = tokens.flat_map(|loss| loss.token().to_le_bytes()).collect();
        format!("{:08x}", duramen_format::checksum::crc32c(&bytes))
    }
}

/// Finds what a start of this stopped store lacks. Nothing is written.
///
/// # Errors
/// [`Error::Disk`]: there is no store. [`Error::Damaged`]: the write-ahead log or the control log
/// is damaged, so the rest is not known.
pub fn losses(disk: &Arc<dyn Disk>) -> Result<Losses, Error> {
    let opened = Backup::open_to_read(disk.clone(), &duramen_backup::Options::default());
    let (backup, replicas) = opened.map_err(Error::Disk)?;
    let own = backup.identity().server;
    let mine: Vec<ReplicaInfo> = replicas.into_iter().filter(|of| of.log == own).collect();
    let mut found = Losses::default();
    if mine.is_empty() {
        return Ok(found);
    }
    let state = control::read(&backup, &mine, 0)?;
    let mut scratch = vec![0; backup.geometry().segment_bytes as usize];
    for (segment, listed) in &state.segments {
        let Some(replica) = mine.iter().find(|replica| replica.segment == *segment) else {
            found.others.push(format!(
                "segment {segment} is missing as a whole: use `duramen fsck --repair`, or a snapshot"
            ));
            continue;
        };
        if has_unknown_end(listed, replica) {
            found.others.push(format!(
                "segment {segment} was open, and its newest slot is lost: from byte {} to an \
                 unknown end any key may have been in it: use `duramen fsck --repair`, or a snapshot",
                replica.length
            ));
            continue;
        }
        if is_sound(&backup, listed, replica, &mut scratch) {
            continue;
        }
        found.losses.extend(look(&backup, listed, replica)?.loss);
    }
    let names = state.tables.iter();
    found.tables = names.map(|(id, table)| (*id, table.name.clone())).collect();
    Ok(found)
}

/// Notes that exactly these losses are accepted: the next start leaves them out.
///
/// # Errors
/// As the device gives them. A raw device is refused: it has no place for the list.
pub fn accept(disk: &dyn Disk, losses: &[Loss]) -> io::Result<()> {
    if disk.is_raw() {
        return Err(io::Error::other(
            "a raw device has no place for the list: use `duramen fsck --repair`, or a snapshot",
        ));
    }
    let mut text = format!("{MAGIC} {}\n", losses.len());
    for loss in losses {
        text += &format!("{} {:08x}\n", loss.segment.0, loss.token());
    }
    let blocks = (text.len() as u64).div_ceil(BLOCK_BYTES);
    let mut bytes = text.into_bytes();
    bytes.resize((blocks * BLOCK_BYTES) as usize, b'\n');
    disk.put_file(FILE, &bytes)
}

/// The accepted tokens by segment; `None`: there is no list, or it is not whole.
fn read(disk: &dyn Disk) -> io::Result<Option<BTreeMap<SegmentId, u32>>> {
    if disk.is_raw() {
        return Ok(None);
    }
    let file = match disk.open(FILE, OpenHow::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let (mut text, mut block) = (String::new(), vec![0; BLOCK_BYTES as usize]);
    for at in (0..).step_by(BLOCK_BYTES as usize) {
        match file.read_at(at, &mut block) {
            Ok(()) => text.push_str(&String::from_utf8_lossy(&block)),
            Err(_) => break, // its end
        }
    }
    Ok(parse(&text))
}

fn parse(text: &str) -> Option<BTreeMap<SegmentId, u32>> {
    let mut lines = text.lines();
    let count = lines.next()?.strip_prefix(MAGIC)?.trim().parse().ok()?;
    let line = |line: &str| {
        let (segment, token) = line.split_once(' ')?;
        let token = u32::from_str_radix(token, 16).ok()?;
        Some((SegmentId(segment.parse().ok()?), token))
    };
    let accepted: Option<BTreeMap<_, _>> = lines.take(count).map(line).collect();
    accepted.filter(|accepted| accepted.len() == count)
}

/// The certificate of a listed segment.
fn certificate(listed: &Listed, replica: &ReplicaInfo) -> Certificate {
    listed.closed.unwrap_or(replica.certificate())
}

/// Z5: the newest data of an open segment were behind what the replica's certificate covers.
fn has_unknown_end(listed: &Listed, replica: &ReplicaInfo) -> bool {
    let is_older = !replica.closed && replica.epoch < listed.epoch;
    listed.closed.is_none() && (replica.damaged || is_older) && !has_bug(Bug::EndIsBelieved)
}

/// Whether a start takes this replica.
fn is_sound(backup: &Backup, listed: &Listed, replica: &ReplicaInfo, scratch: &mut [u8]) -> bool {
    let is_listed = replica.certificate() == certificate(listed, replica);
    if !is_listed || replica.damaged || backup.read(replica.segment, scratch).is_err() {
        return false;
    }
    let bytes = &mut scratch[..replica.length as usize];
    bytes.is_empty() || mend::segment(bytes, replica.kind, usize::MAX).is_ok()
}

fn look(backup: &Backup, listed: &Listed, replica: &ReplicaInfo) -> Result<Examined, Error> {
    let geometry = backup.geometry();
    let mut image = vec![0; geometry.segment_bytes as usize];
    let read = backup.reader().read_raw(replica.id(), &mut image);
    let read = read.map_err(Error::Disk)?;
    image.truncate(read.length as usize);
    let header = Header {
        kind: listed.kind,
        segment: replica.segment,
        log: replica.log,
        head: listed.head,
        capacity: geometry.segment_bytes,
    };
    Ok(examine(&[image], &header, certificate(listed, replica)))
}

fn failed(backup: &Backup, error: io::Error) -> Error {
    let place = backup.disk().label();
    Error::Disk(duramen_backup::Error::io(
        &place,
        "read `accepted-loss`",
        error,
    ))
}

//! Checks a stopped store piece by piece, and reports the damage of each: for `duramen fsck` and
//! `duramen log dump`.
//!
//! Reads only. No check stops at the first problem. This shows the contents of the store;
//! [`Backup::open_to_read`](crate::Backup::open_to_read) shows the result of a restart.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use duramen_base::ids::SegmentId;
use duramen_format::frame::Slot;
use duramen_format::segment::Kind;
use duramen_format::superblock::{self, COPY_AT, Superblock};
use duramen_format::wal::{self, BLOCK_BYTES, Commit, HEADER_AT, Header, Record};

use crate::create::{self, Probe, Purpose};
use crate::disk::{Disk, OpenHow};
use crate::error::Error;
use crate::open::open_to_read_as;
use crate::rebuild;
use crate::region::{self, Region};
use crate::scan::{self, Reader};
use crate::types::{Expected, Geometry, Identity, Options, ReplicaInfo};

/// A stopped store.
pub struct Inspector {
    place: String,
    superblock: Superblock,
    identity: Identity,
    geometry: Geometry,
    wal: Region,
    frames: Region,
    copies: Vec<Result<Superblock, superblock::Damage>>,
}

/// A commit of the write-ahead log.
#[derive(Debug)]
pub struct CommitView<'a> {
    pub commit: Commit,
    /// Bytes from the log's tail to its start.
    pub offset: u64,
    pub records: &'a [Record<'a>],
}

/// The end of the write-ahead log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalEnd {
    /// The lsn of the first commit, and the one after the last.
    pub from_lsn: u64,
    pub to_lsn: u64,
    pub bytes: u64,
    /// Whether the server had recorded this end when it stopped.
    pub clean: bool,
    /// Commits of which a flipped bit was put back.
    pub mended: u64,
    /// Commits that are newer than the end. A power cut may leave some; otherwise a commit at the
    /// end is damaged.
    pub behind: u64,
}

/// The contents of a frame's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotView {
    pub frame: u32,
    /// The valid slot; `None` if the frame was never used, or both slots are damaged.
    pub slot: Option<Slot>,
    /// Slots that were written and don't match their CRC. A power cut may cause one.
    pub damaged: u32,
    /// Whether one flipped bit explains the damage of the newest slot.
    pub is_mendable: bool,
}

/// One replica, verified.
#[derive(Debug)]
pub struct ReplicaCheck {
    pub info: ReplicaInfo,
    /// The damage of the replica, if there is any.
    pub problem: Option<Error>,
    /// Flipped bits that were put back in its bytes or in its slot.
    pub mended: Option<String>,
    /// It is the newest control segment of its log, readable or not: the one that a start reads.
    pub is_newest_control: bool,
}

impl Inspector {
    /// Opens a disk for inspection.
    ///
    /// # Errors
    /// There is no store, or its superblock can't be read at all.
    pub fn new(disk: &dyn Disk) -> Result<Inspector, Error> {
        Inspector::with_purpose(disk, Purpose::Store)
    }

    /// Opens a copy that may not be finished.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of_copy(disk: &dyn Disk) -> Result<Inspector, Error> {
        Inspector::with_purpose(disk, Purpose::Copy)
    }

    fn with_purpose(disk: &dyn Disk, purpose: Purpose) -> Result<Inspector, Error> {
        let place = disk.label();
        let Probe::Store(superblock) = create::probe(disk)? else {
            return Err(Error::Absent { place });
        };
        let accepted = create::accept(disk, *superblock, &Expected::default(), purpose)?;
        let how = OpenHow::Read;
        let region = region::superblock(disk, how)
            .map_err(|error| Error::io(&place, "open the superblock", error))?;
        let copies = COPY_AT
            .iter()
            .map(|at| {
                let mut block = vec![0; superblock::BLOCK_BYTES];
                match region.read_at(*at, &mut block) {
                    Ok(()) => Superblock::decode(&block).map(|copy| accepted.revealed(copy)),
                    Err(_) => Err(superblock::Damage::Truncated { available: 0 }),
                }
            })
            .collect();
        let held = Arc::default();
        let wal = accepted.wal(disk, how, &held)?;
        let frames = accepted.frames(disk, how, &held)?;
        Ok(Inspector {
            place,
            superblock: accepted.superblock,
            identity: accepted.identity,
            geometry: accepted.geometry,
            wal,
            frames,
            copies,
        })
    }

    /// The valid superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Both of its copies.
    pub fn superblock_copies(&self) -> &[Result<Superblock, superblock::Damage>] {
        &self.copies
    }

    /// The owner of the store.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The sizes of the store.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Both header blocks of the write-ahead log.
    pub fn wal_headers(&self) -> Vec<Result<Header, wal::Damage>> {
        HEADER_AT
            .iter()
            .map(|at| {
                let mut block = vec![0; BLOCK_BYTES];
                match self.wal.read_at(*at, &mut block) {
                    Ok(()) => Header::decode(&block),
                    Err(_) => Err(wal::Damage::Truncated {
                        needed: BLOCK_BYTES,
                        available: 0,
                    }),
                }
            })
            .collect()
    }

    /// Visits the commits that a restart would read, in order.
    ///
    /// # Errors
    /// [`Error::DamagedWal`], or [`Error::DamagedFile`] if it is too short, after every commit
    /// before the damage was visited.
    pub fn commits(
        &self,
        visit: &mut dyn FnMut(&CommitView<'_>) -> ControlFlow<()>,
    ) -> Result<WalEnd, Error> {
        let (header, _) = scan::headers(&self.wal, self.identity.server);
        let header = header
            .filter(|header| header.tail_at < self.geometry.wal_bytes)
            .ok_or_else(|| Error::DamagedWal {
                place: self.place.clone(),
                lsn: 0,
                offset: 0,
            })?;
        let mut reader = Reader::new(&self.wal, self.geometry.wal_bytes);
        let mut enough = false;
        let end = scan::scan(&mut reader, &self.place, &header, (true, 0), &mut |found| {
            let view = CommitView {
                commit: found.commit,
                offset: found.offset,
                records: &found.records,
            };
            enough = enough || visit(&view).is_break();
            Ok(())
        })
        .map_err(|error| self.short_wal().unwrap_or(error))?;
        Ok(WalEnd {
            from_lsn: header.tail_lsn,
            to_lsn: end.lsn,
            bytes: end.bytes,
            clean: header.end_lsn == end.lsn,
            mended: end.mended,
            behind: match header.end_lsn == end.lsn {
                true => 0,
                false => scan::commits_behind(&mut reader, &header.salts, &end)
                    .map_or(0, |behind| behind.len() as u64),
            },
        })
    }

    /// The error for a write-ahead log with a file that is too short.
    fn short_wal(&self) -> Option<Error> {
        let (here, whole) = (self.wal.bytes().ok()?, self.geometry.wal_bytes);
        let reason = format!("it has {here} bytes of {whole}");
        (here < whole).then(|| Error::damaged_file(&self.place, region::WAL, reason))
    }

    /// Visits the slots of every frame.
    pub fn slots(&self, visit: &mut dyn FnMut(&SlotView)) {
        let visited = rebuild::slots(&self.frames, &self.geometry, &mut |found| {
            visit(&SlotView {
                frame: found.frame,
                slot: found.slot,
                damaged: found.broken,
                is_mendable: found.mended.is_some(),
            });
            Ok(())
        });
        debug_assert!(visited.is_ok(), "the visitor gives no errors");
    }
}

/// Verifies every replica that a restart would find, with its bytes. `progress` gets the bytes read
/// so far and in total.
///
/// # Errors
/// The reason why a restart would refuse the store.
pub fn check_replicas(
    disk: Arc<dyn Disk>,
    progress: &mut dyn FnMut(u64, u64),
    visit: &mut dyn FnMut(&ReplicaCheck, &[u8]),
) -> Result<(), Error> {
    check_as(Purpose::Store, disk, progress, visit)
}

/// As [`check_replicas`], for a copy that may not be finished.
///
/// # Errors
/// Those of [`check_replicas`].
pub fn check_copy(
    disk: Arc<dyn Disk>,
    progress: &mut dyn FnMut(u64, u64),
    visit: &mut dyn FnMut(&ReplicaCheck, &[u8]),
) -> Result<(), Error> {
    check_as(Purpose::Copy, disk, progress, visit)
}

fn check_as(
    purpose: Purpose,
    disk: Arc<dyn Disk>,
    progress: &mut dyn FnMut(u64, u64),
    visit: &mut dyn FnMut(&ReplicaCheck, &[u8]),
) -> Result<(), Error> {
    let (backup, replicas) = open_to_read_as(purpose, disk, &Options::default())?;
    let total = replicas.iter().map(|info| u64::from(info.length)).sum();
    let mut newest: BTreeMap<u64, SegmentId> = BTreeMap::new();
    for info in replicas.iter().filter(|info| info.kind == Kind::Control) {
        let known = newest.entry(info.log).or_insert(info.segment);
        *known = info.segment.max(*known);
    }
    let mut done = 0;
    let mut bytes = vec![0; backup.geometry().segment_bytes as usize];
    for info in replicas {
        let problem = backup.read_of(info.id(), &mut bytes).err();
        let mended = backup.reader().mended_text(info.id());
        let valid = match &problem {
            None => &bytes[..info.length as usize],
            Some(_) => &[],
        };
        let check = ReplicaCheck {
            info,
            problem,
            mended,
            is_newest_control: newest.get(&info.log) == Some(&info.segment),
        };
        visit(&check, valid);
        done += u64::from(info.length);
        progress(done, total);
    }
    Ok(())
}

/// The record as a text for people.
pub fn describe(record: &Record<'_>) -> String {
    let mut text = format!(
        "{} segment {} epoch {} bytes {}..{}",
        record.kind.name(),
        record.segment,
        record.epoch,
        record.offset,
        u64::from(record.offset) + record.payload.len() as u64
    );
    if record.segment == SegmentId::NONE {
        text.push_str(" (no segment)");
    }
    if record.open {
        text.push_str(" open");
    }
    if record.close {
        text.push_str(" close");
    }
    if let Some(frame) = record.frame {
        text.push_str(&format!(" rest in frame {frame}"));
    }
    match record.certificate {
        Some(certificate) => text.push_str(&format!(
            " certified {} crc {:08x}",
            certificate.length, certificate.crc
        )),
        None => text.push_str(" uncertified"),
    }
    text
}

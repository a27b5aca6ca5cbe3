//! Opens a store: from superblock, write-ahead log and slots to a backup that accepts writes.

use duramen_base::planted::{Bug, has_bug};
use std::any::Any;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::sync::Arc;

use duramen_format::wal::{Header, RING_AT};

use crate::backup::Backup;
use crate::create::{self, Accepted, Probe, Purpose};
use crate::device::Device;
use crate::disk::{Disk, OpenHow};
use crate::error::Error;
use crate::frames::Frames;
use crate::rebuild::{self, Rebuild};
use crate::region::{self, Region};
use crate::ring::{Live, Ring};
use crate::scan::{self, Reader};
use crate::state::State;
use crate::types::{Expected, Geometry, Identity, Options, ReplicaId, ReplicaInfo, Stats};

impl Backup {
    /// Whether there is a store on this disk. Writes nothing.
    ///
    /// # Errors
    /// The contents are not a store, or damaged; each error says what to do.
    pub fn exists(disk: &dyn Disk) -> Result<bool, Error> {
        Ok(matches!(create::probe(disk)?, Probe::Store(_)))
    }

    /// Creates an empty store on an empty disk (or continues an interrupted creation) and opens it.
    ///
    /// # Errors
    /// [`Error::Exists`] if there is a store, [`Error::NotDuramen`] if there are other contents:
    /// nothing is overwritten.
    pub fn create(
        disk: Arc<dyn Disk>,
        options: &Options,
        geometry: &Geometry,
        identity: &Identity,
    ) -> Result<Backup, Error> {
        create_for(Purpose::Store, disk, options, geometry, identity)
    }

    /// Creates the target of a copy on an empty disk. It can't be opened before
    /// [`finish_copy`](Self::finish_copy).
    ///
    /// # Errors
    /// As [`create`](Self::create); an interrupted copy is not continued: [`Error::Unfinished`].
    pub fn create_copy(
        disk: Arc<dyn Disk>,
        options: &Options,
        geometry: &Geometry,
        identity: &Identity,
    ) -> Result<Backup, Error> {
        create_for(Purpose::Copy, disk, options, geometry, identity)
    }

    /// As [`close`](Self::close); then the copy is a store.
    ///
    /// # Errors
    /// As [`close`](Self::close), [`Error::Io`]: it can be opened, or is refused as unfinished.
    pub fn finish_copy(&self) -> Result<(), Error> {
        self.close()?;
        create::finish(&**self.disk())
    }

    /// Opens a store: reads the write-ahead log and rebuilds replicas that were open.
    ///
    /// # Errors
    /// [`Error::Absent`] if the disk is empty; each other error says what is wrong and what to do.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: &Options,
        expected: &Expected,
    ) -> Result<(Backup, Vec<ReplicaInfo>), Error> {
        let place = disk.label();
        if let Probe::Empty = create::probe(&*disk)? {
            return Err(Error::Absent { place });
        }
        let lock = lock(&*disk, &place)?;
        open_locked(
            disk,
            options,
            expected,
            lock,
            OpenHow::ReadWrite,
            Purpose::Store,
        )
    }

    /// Opens a store that no server has open, for inspection: nothing is written, no lock is taken,
    /// every write is refused.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_to_read(
        disk: Arc<dyn Disk>,
        options: &Options,
    ) -> Result<(Backup, Vec<ReplicaInfo>), Error> {
        open_to_read_as(Purpose::Store, disk, options)
    }
}

fn create_for(
    purpose: Purpose,
    disk: Arc<dyn Disk>,
    options: &Options,
    geometry: &Geometry,
    identity: &Identity,
) -> Result<Backup, Error> {
    let place = disk.label();
    create::probe(&*disk)?;
    let lock = lock(&*disk, &place)?;
    match create::probe(&*disk)? {
        Probe::Store(found) if found.unfinished => return Err(Error::Unfinished { place }),
        Probe::Store(_) => return Err(Error::Exists { place }),
        Probe::Empty => create::format(&*disk, geometry, identity, purpose)?,
    }
    let expected = Expected::default();
    let how = OpenHow::ReadWrite;
    let (backup, _) = open_locked(disk, options, &expected, lock, how, purpose)?;
    backup.committer().begin()?; // no interrupted creation any more (create::K1)
    Ok(backup)
}

/// As [`Backup::open_to_read`]; with the purpose `Copy`, also for an unfinished
/// copy.
pub(crate) fn open_to_read_as(
    purpose: Purpose,
    disk: Arc<dyn Disk>,
    options: &Options,
) -> Result<(Backup, Vec<ReplicaInfo>), Error> {
    let anybody = Expected::default();
    open_locked(
        disk,
        options,
        &anybody,
        Box::new(()),
        OpenHow::Read,
        purpose,
    )
}

fn open_locked(
    disk: Arc<dyn Disk>,
    options: &Options,
    expected: &Expected,
    lock: Box<dyn Any + Send + Sync>,
    how: OpenHow,
    purpose: Purpose,
) -> Result<(Backup, Vec<ReplicaInfo>), Error> {
    let place = disk.label();
    let Probe::Store(superblock) = create::probe(&*disk)? else {
        return Err(Error::Absent { place });
    };
    let accepted = create::accept(&*disk, *superblock, expected, purpose)?;
    let held = Arc::default();
    let wal = accepted.wal(&*disk, how, &held)?;
    let frames = accepted.frames(&*disk, how, &held)?;
    let Accepted {
        identity,
        geometry,
        ciphers,
        ..
    } = accepted;
    let lock = match how {
        OpenHow::Read => lock,
        _ => Box::new((disk.lock_files().map_err(lock_error(&place))?, lock)),
    };
    let read = || {
        let look_ahead = !has_bug(Bug::NoLookAhead);
        let regions = (&wal, &frames, disk.is_raw());
        let state = restore(&place, regions, &identity, &geometry, look_ahead)?;
        Ok::<_, Error>(state.counted(&held))
    };
    let mut state = match how {
        OpenHow::Read => read()?,
        _ => {
            let ended = settle_medium(&*disk, &place, &wal, &frames, &identity)?;
            read_settled(&place, &frames, ended, read)?
        }
    };
    if how == OpenHow::Read {
        state.failed = Some("it was opened to be read alone".to_owned());
    } else if purpose == Purpose::Store {
        fill_holes(&*disk, &place, &wal, &frames, &mut state)?;
    }
    let whose = (identity, geometry);
    let device = Device::new(disk, *options, whose, (wal, frames), held, state);
    let backup = Backup::new(device, ciphers, lock);
    let replicas = backup.replicas();
    backup.stats(); // notes the first counters
    Ok((backup, replicas))
}

/// Makes sure that the reads that follow show what is on the medium, before new data depend on
/// them.
///
/// The data of a killed process that are in the page cache alone are made durable. If that fails
/// now, or failed for that process, then the cache shows bytes that are not on the medium, and no
/// later sync writes them (trap 12): reads go past the cache. It is emptied too, for file systems
/// without such reads; pages that another process maps stay in it. After a clean end all was synced
/// without an error, so the frames may be read from the cache: then it returns the end's lsn.
fn settle_medium(
    disk: &dyn Disk,
    place: &str,
    wal: &Region,
    frames: &Region,
    identity: &Identity,
) -> Result<Option<u64>, Error> {
    let synced = sync_all(disk, place, wal, frames);
    let forgotten = forget(place, wal);
    let header = scan::headers(wal, identity.server).0;
    let ended = header.filter(|header| header.end_lsn > 0 && synced.is_ok());
    match ended {
        Some(_) => frames.trust_cache(true),
        None => forget(place, frames)?,
    }
    synced.and(forgotten)?;
    Ok(ended.map(|header| header.end_lsn))
}

/// Reads the state after [`settle_medium`], which returned `ended`.
fn read_settled(
    place: &str,
    frames: &Region,
    ended: Option<u64>,
    read: impl Fn() -> Result<State, Error>,
) -> Result<State, Error> {
    let state = read()?;
    if ended.is_none_or(|lsn| lsn == state.ring.committed_lsn + 1) {
        return Ok(state);
    }
    // The store was closed, and used again since.
    frames.trust_cache(false);
    forget(place, frames)?;
    read()
}

fn forget(place: &str, region: &Region) -> Result<(), Error> {
    region
        .forget_cached()
        .map_err(|error| Error::io(place, "read the files anew", error))
}

/// Syncs commits and slots, and, after a creation, the superblock and the names.
fn sync_all(disk: &dyn Disk, place: &str, wal: &Region, frames: &Region) -> Result<(), Error> {
    region::superblock(disk, OpenHow::ReadWrite)
        .and_then(|superblock| superblock.sync())
        .and_then(|()| frames.sync())
        .and_then(|()| wal.sync())
        .and_then(|()| disk.sync_dir())
        .map_err(|error| Error::io(place, "sync the files", error))
}

/// Reserves the space that a store has from its beginning, and what it had when it ended: a copy
/// of its files may have more holes. So a write in place never fails for lack of space (ring::G4).
/// Frames without space get it when they are needed.
fn fill_holes(
    disk: &dyn Disk,
    place: &str,
    wal: &Region,
    frames: &Region,
    state: &mut State,
) -> Result<(), Error> {
    let mut filled = || -> io::Result<bool> {
        let whole = |region: &Region, bytes| io::Result::Ok(region.fill_holes(0, bytes)? >= bytes);
        let superblock = region::superblock(disk, OpenHow::ReadWrite)?;
        if !whole(&superblock, superblock.bytes()?)? || !whole(wal, RING_AT + state.ring.ready)? {
            return Ok(false);
        }
        state.frames.fill_holes(frames)
    };
    match filled() {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::Holes {
            place: place.to_owned(),
        }),
        Err(error) => Err(Error::io(place, "reserve space for the files", error)),
    }
}

pub(crate) fn lock(disk: &dyn Disk, place: &str) -> Result<Box<dyn Any + Send + Sync>, Error> {
    disk.lock().map_err(lock_error(place))
}

fn lock_error(place: &str) -> impl Fn(io::Error) -> Error + '_ {
    move |error| match error.kind() {
        io::ErrorKind::WouldBlock => Error::Locked {
            place: place.to_owned(),
        },
        io::ErrorKind::ResourceBusy => Error::Claimed {
            place: place.to_owned(),
        },
        _ => Error::io(place, "take the lock", error),
    }
}

/// A number that cannot be guessed and does not repeat, and not 0, which is in every blank block.
fn random() -> u64 {
    // The operating system's randomness seeds the standard library's map keys.
    RandomState::new().build_hasher().finish().max(1)
}

/// No store lives long enough to count this far; sums with such numbers do not overflow.
const NUMBER_MAX: u64 = u64::MAX / 2;

/// The length of the frames' region, if no region is too short.
fn measured(place: &str, wal: &Region, frames: &Region, geometry: &Geometry) -> Result<u64, Error> {
    let wal_bytes = wal
        .bytes()
        .map_err(|error| Error::io(place, "measure the write-ahead log", error))?;
    if wal_bytes < geometry.wal_bytes {
        let reason = format!("it has {wal_bytes} bytes of {}", geometry.wal_bytes);
        return Err(Error::damaged_file(place, region::WAL, reason));
    }
    let frames_bytes = frames
        .bytes()
        .map_err(|error| Error::io(place, "measure the frames", error))?;
    check_slots(place, frames_bytes, geometry.frames)?;
    Ok(frames_bytes)
}

/// Refuses frames that are too short for their slots, all of which were written at creation.
pub(crate) fn check_slots(place: &str, frames_bytes: u64, frames: u32) -> Result<(), Error> {
    let needed = duramen_format::frame::data_start(frames);
    if frames_bytes < needed {
        let reason = format!("it has {frames_bytes} bytes, and its slots alone take {needed}");
        return Err(Error::damaged_file(place, region::FRAMES, reason));
    }
    Ok(())
}

/// The result of reading slots and the write-ahead log.
struct Rebuilt<'a> {
    rebuild: Rebuild<'a>,
    taken: BTreeSet<u32>,
    ring: Ring,
    /// Commits that were mended.
    mended: u64,
}

/// Reads slots and the write-ahead log. `accepted`: frames whose mended slot counts.
fn rebuild<'a>(
    (place, identity): (&str, &Identity),
    wal: &Region,
    frames: &Region,
    geometry: &'a Geometry,
    look_ahead: bool,
    accepted: BTreeSet<u32>,
) -> Result<Rebuilt<'a>, Error> {
    let header = newest_header(place, wal, identity, geometry)?;
    let mut rebuild = Rebuild::new(geometry, accepted);
    rebuild::slots(frames, geometry, &mut |found| {
        rebuild.slot(found);
        Ok(())
    })?;
    let (ring, mended) = restore_ring(place, wal, &header, geometry, look_ahead, &mut rebuild)?;
    if ring.committed_lsn < rebuild.durable_lsn && !has_bug(Bug::NoLookAhead) {
        let (ends, durable) = (ring.committed_lsn, rebuild.durable_lsn);
        let reason = format!(
            "it ends with commit {ends}, and `{}` has commit {durable}: it is an older copy, or has lost its end",
            region::FRAMES
        );
        return Err(Error::damaged_file(place, region::WAL, reason)); // frame::P3
    }
    rebuild.miss(&header.marks);
    let taken = rebuild.finish();
    Ok(Rebuilt {
        rebuild,
        taken,
        ring,
        mended,
    })
}

/// The state as of the last commit.
fn restore(
    place: &str,
    (wal, frames, is_raw): (&Region, &Region, bool),
    identity: &Identity,
    geometry: &Geometry,
    look_ahead: bool,
) -> Result<State, Error> {
    let frames_bytes = measured(place, wal, frames, geometry)?;
    let by = |accepted| {
        let whose = (place, identity);
        rebuild(whose, wal, frames, geometry, look_ahead, accepted)
    };
    let mut rebuilt = by(BTreeSet::new())?;
    let written = wal.first_hole();
    let written =
        written.map_err(|error| Error::io(place, "measure the write-ahead log", error))?;
    let wanted = rebuilt.rebuild.wanted();
    if !wanted.is_empty() {
        rebuilt = by(wanted)?; // rebuild::U5: with these mended slots
    }
    let Rebuilt {
        mut rebuild,
        taken,
        mut ring,
        mended,
    } = rebuilt;
    ring.begin(region::ring_bytes_first(geometry, is_raw), written);
    let damaged = rebuild.mended_slots();
    let data = duramen_format::frame::data_start(geometry.frames);
    let allocated = frames_bytes.saturating_sub(data) / u64::from(geometry.segment_bytes);
    let needs = rebuild
        .replicas
        .iter()
        .filter_map(|(id, replica)| Some((replica.wal_from?, *id)))
        .collect();
    Ok(State {
        needs,
        frames: Frames::new(
            *geometry,
            std::mem::take(&mut rebuild.current),
            std::mem::take(&mut rebuild.best),
            &taken,
            allocated.min(u64::from(geometry.frames)) as u32,
        ),
        ring,
        stamp: rebuild.stamp,
        replicas: rebuild.replicas,
        failed: None,
        doomed: BTreeMap::new(),
        mended: Vec::new(),
        log_is_mended: mended > 0,
        pool: Vec::new(),
        held: Arc::default(),
        fenced: BTreeSet::new(),
        scrub_after: ReplicaId::default(),
        stats: Stats {
            flipped_bits: mended + damaged.len() as u64,
            damaged: damaged.len() as u64,
            ..Stats::default()
        },
        damaged,
    })
}

fn damaged(place: &str, lsn: u64, offset: u64) -> Error {
    Error::DamagedWal {
        place: place.to_owned(),
        lsn,
        offset,
    }
}

/// The newer header of the write-ahead log, if its numbers can be those of a store.
fn newest_header(
    place: &str,
    wal: &Region,
    identity: &Identity,
    geometry: &Geometry,
) -> Result<Header, Error> {
    let (header, _) = scan::headers(wal, identity.server);
    let header = header.ok_or_else(|| damaged(place, 0, 0))?;
    let numbers = [header.tail_lsn, header.generation, header.sequence];
    let absurd = header.tail_lsn == 0 || numbers.iter().any(|number| *number > NUMBER_MAX);
    if absurd || header.tail_at >= geometry.wal_bytes {
        return Err(damaged(place, header.tail_lsn, header.tail_at));
    }
    Ok(header)
}

/// Scans the write-ahead log: its records go to `rebuild`. The ring continues behind its end, in a
/// new generation. Also returns the number of commits that were mended.
fn restore_ring(
    place: &str,
    wal: &Region,
    header: &Header,
    geometry: &Geometry,
    look_ahead: bool,
    rebuild: &mut Rebuild,
) -> Result<(Ring, u64), Error> {
    let tail = header.tail_at - RING_AT;
    let mut live: VecDeque<Live> = VecDeque::new();
    let (mut skip, mut next) = ((0, 0), tail);
    let mut clock_ms = 0;
    let mut reader = Reader::new(wal, geometry.wal_bytes);
    let how = (look_ahead, rebuild.durable_lsn);
    let end = scan::scan(&mut reader, place, header, how, &mut |found| {
        for record in &found.records {
            rebuild.record(found.commit.lsn, record);
        }
        clock_ms = found.commit.clock_ms;
        let (start, bytes) = (tail + found.offset, found.commit.padded_bytes());
        if start > next {
            skip = (next, start);
        }
        next = start + bytes;
        live.push_back(Live {
            lsn: found.commit.lsn,
            start,
            bytes,
            generation: found.commit.generation,
        });
        Ok(())
    })?;
    if end.generation > NUMBER_MAX {
        return Err(damaged(place, end.lsn, tail + end.bytes));
    }
    let generation = end.generation.max(header.generation) + 1;
    let mut salts = header.salts.clone();
    salts.add(generation, random());
    let ring = Ring {
        server: header.server,
        capacity: geometry.wal_bytes - RING_AT,
        ready: 0,
        reserved: 0,
        is_refused: false,
        filled: (0, clock_ms),
        skip,
        generation,
        salts,
        begun: false,
        head: tail + end.bytes,
        tail,
        committed_lsn: end.lsn - 1,
        durable_lsn: end.lsn - 1,
        sequence: header.sequence,
        live,
        clock_ms: clock_ms.max(header.clock_ms),
        header_clock_ms: header.clock_ms,
    };
    Ok((ring, end.mended))
}

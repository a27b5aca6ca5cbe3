//! A log writer over a simulated disk with a model of the data that must survive.
//!
//! Every commit has a number. After a crash the replicas must be those after some commit `k`, the
//! same for all segments: not less than the last commit that was acknowledged at the level that
//! survives the crash, not more than the last that was tried. That is docs/traps.md, scenarios 1, 2
//! and 39, at once: all or nothing, nothing acknowledged lost.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use duramen_backup::{
    Backup, Chunk, Error, Expected, Geometry, Identity, Options, ReplicaId, ReplicaInfo, ScrubStep,
};
use duramen_base::ids::{Level, SegmentId};
use duramen_cipher::{KeySource, MasterKey};
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;
use duramen_sim::Random;
use duramen_sim::disk::{Fault, SimDisk};

/// Small enough that a short run goes round the write-ahead log and through all frames.
pub const GEOMETRY: Geometry = Geometry {
    segment_bytes: 24 << 10,
    wal_bytes: 136 << 10,
    frames: 14,
};

pub fn identity() -> Identity {
    Identity {
        cluster: "sim".to_owned(),
        server: 0xfeed,
        hash_seed: 1,
    }
}

pub fn options() -> Options {
    Options {
        bypass_bytes: 9000,
        wal_fill_percent: 40,
        ..Options::default()
    }
}

thread_local! {
    /// Bytes of segments that were made before: making them anew would take most of a run.
    static CONTENTS: RefCell<BTreeMap<u64, Vec<u8>>> = const { RefCell::new(BTreeMap::new()) };
}

/// The bytes of a segment, which depend on its id alone.
pub fn content(segment: u64, from: u32, to: u32) -> Vec<u8> {
    let make = || {
        (0..GEOMETRY.segment_bytes)
            .map(|n| {
                let place = u64::from(n).wrapping_mul(0x9e37_79b9) >> 11;
                (place ^ segment.wrapping_mul(0x85eb) ^ (segment >> 3)) as u8
            })
            .collect()
    };
    CONTENTS.with_borrow_mut(|contents| {
        contents.entry(segment).or_insert_with(make)[from as usize..to as usize].to_vec()
    })
}

fn certificate(segment: u64, length: u32) -> Certificate {
    Certificate::of(&content(segment, 0, length))
}

/// The replica of a number of this model: odd numbers are segments of the own log, even ones of
/// other masters' logs, each of which has eight numbers. Segment ids occur in both.
pub fn replica(id: u64) -> ReplicaId {
    let log = if id % 2 == 1 {
        identity().server
    } else {
        0xb000 + (id >> 4)
    };
    ReplicaId {
        log,
        segment: SegmentId(id / 2 + 1),
    }
}

/// The inverse of [`replica`].
fn number(id: ReplicaId) -> u64 {
    let twice = (id.segment.0 - 1) * 2;
    twice + u64::from(id.log == identity().server)
}

/// The state of a segment after a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stage {
    commit: u64,
    length: u32,
    closed: bool,
}

#[derive(Default)]
struct Segment {
    staged: u32,
    closed: bool,
    history: Vec<Stage>,
    /// Its freeing was tried: it may be there or not.
    freed: bool,
    /// Set if it was written directly to a frame: `true` if it is certainly there, `false` if the
    /// call did not return.
    survivor: Option<bool>,
}

impl Segment {
    fn at(&self, commit: u64) -> Option<(u32, bool)> {
        let stage = self
            .history
            .iter()
            .rev()
            .find(|stage| stage.commit <= commit)?;
        Some((stage.length, stage.closed))
    }
}

/// A run of the backup.
pub struct Run {
    pub disk: SimDisk,
    pub backup: Option<Backup>,
    options: Options,
    random: Random,
    segments: BTreeMap<u64, Segment>,
    /// Segments with staged bytes, and whether these are certified.
    staged: Vec<(u64, bool)>,
    next_segment: u64,
    tried: u64,
    buffered: u64,
    synced: u64,
    /// Logs that were fenced in this life of the backup, with their replicas at that time; `None`
    /// if these are not settled.
    fenced: BTreeMap<u64, Option<Vec<ReplicaInfo>>>,
    /// Whether the disk reports writes as done that it did not do.
    lies: bool,
}

/// The kind of crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    Power,
    Kill,
}

impl Run {
    /// A run on a disk with an empty store.
    pub fn new(disk: SimDisk, seed: u64) -> Run {
        let mut options = options();
        if seed.is_multiple_of(3) {
            options.memory_bytes = 40 << 10; // commits wait for memory before the write-ahead log is full
        }
        let (backup, _) = Backup::open(Arc::new(disk.clone()), &options, &Expected::default())
            .expect("an empty store opens");
        Run {
            disk,
            backup: Some(backup),
            options,
            random: Random::new(seed),
            segments: BTreeMap::new(),
            staged: Vec::new(),
            next_segment: 1,
            tried: 0,
            buffered: 0,
            synced: 0,
            fenced: BTreeMap::new(),
            lies: false,
        }
    }

    fn backup(&self) -> &Backup {
        self.backup.as_ref().expect("the store is open")
    }

    /// One step of a master, a flusher or a scrubber.
    ///
    /// # Errors
    /// The backup's.
    pub fn step(&mut self) -> Result<(), Error> {
        match self.any_step() {
            // A master waits for space, or frees some.
            Err(Error::Full { .. }) => match self.free_closed() {
                Err(Error::Full { .. }) => Ok(()),
                other => other,
            },
            other => other,
        }
    }

    /// As [`step`](Self::step), on a disk that loses writes silently: nothing is scrubbed.
    ///
    /// # Errors
    /// The backup's.
    pub fn step_unchecked(&mut self) -> Result<(), Error> {
        self.lies = true;
        self.step()
    }

    /// Whatever the disk did, each read returns the bytes that were written.
    ///
    /// # Errors
    /// The violation.
    pub fn nothing_wrong_is_read(&self) -> Result<(), String> {
        let Ok((backup, found)) = Backup::open_to_read(Arc::new(self.disk.clone()), &self.options)
        else {
            return Ok(());
        };
        for info in found {
            let mut into = vec![0; GEOMETRY.segment_bytes as usize];
            if let Ok(info) = backup.read_of(info.id(), &mut into)
                && into[..info.length as usize] != content(number(info.id()), 0, info.length)
            {
                return Err(format!("segment {} has other bytes", info.segment));
            }
        }
        Ok(())
    }

    fn any_step(&mut self) -> Result<(), Error> {
        match self.random.below(20) {
            0..=9 => self.append(),
            10..=13 => self.commit(),
            14..=16 => self.backup().flush_step().map(|_| ()),
            17 => self.write_frame(),
            18 => self.free(),
            _ => match self.random.below(4) {
                3 => self.fence(),
                0 => self.sync(),
                1 if !self.lies => self.scrub(),
                _ => self.close(),
            },
        }
    }

    fn open_heads(&self) -> Vec<u64> {
        self.segments
            .iter()
            .filter(|(_, segment)| !segment.closed && !segment.freed && segment.survivor.is_none())
            .filter(|(id, _)| !self.fenced.contains_key(&replica(**id).log))
            .map(|(id, _)| *id)
            .collect()
    }

    /// The next number whose log was not fenced.
    fn next_number(&self) -> u64 {
        (self.next_segment..)
            .find(|id| !self.fenced.contains_key(&replica(*id).log))
            .expect("numbers do not end")
    }

    /// Another master is declared crashed: its log is fenced. A log that was fenced before is
    /// recovered, and freed.
    fn fence(&mut self) -> Result<(), Error> {
        let settled = self.fenced.iter().find(|(_, found)| found.is_some());
        if let Some(log) = settled
            .map(|(log, _)| *log)
            .filter(|_| self.random.one_in(2))
        {
            self.check_fence(log);
            for (id, segment) in &mut self.segments {
                segment.freed |= replica(*id).log == log;
            }
            self.fenced.insert(log, Some(Vec::new()));
            self.backup().free_log(log)?;
            self.check_fence(log);
            return Ok(());
        }
        let open = self.open_heads().into_iter().filter(|id| id % 2 == 0);
        let Some(log) = open.map(|id| replica(id).log).next() else {
            return Ok(());
        };
        let fenced = self.backup().fence(log);
        if let Err(error @ Error::Full { .. }) = fenced {
            self.fenced.insert(log, None);
            return Err(error); // no answer was sent
        }
        // The fence commits the staged bytes.
        self.tried += u64::from(!self.staged.is_empty());
        self.staged.clear();
        fenced?;
        (self.buffered, self.synced) = (self.tried, self.tried);
        let found = self.backup().replicas_of(log);
        self.fenced.insert(log, Some(found));
        self.check_fence(log);
        Ok(())
    }

    /// many::M1: the replicas of a fenced log do not change, whatever its master tries.
    fn check_fence(&self, log: u64) {
        let backup = self.backup();
        let of_log = self
            .segments
            .iter()
            .filter(|(id, _)| replica(**id).log == log);
        for (id, segment) in of_log {
            let chunk = Chunk {
                segment: replica(*id).segment,
                epoch: 9,
                kind: Kind::Head,
                offset: segment.staged,
                bytes: b"late",
                certificate: None,
                open: segment.staged % 2 == 0,
                close: false,
            };
            let refused = [
                backup.stage_of(log, chunk).err(),
                backup.free_of(replica(*id)).err(),
                backup
                    .flusher()
                    .write_frame_of(replica(*id), 9, &[], Certificate::EMPTY, Kind::Survivor)
                    .err(),
            ];
            for error in refused {
                assert!(matches!(error, Some(Error::Fenced { .. })), "{error:?}");
            }
        }
        let now: Vec<_> = backup.replicas_of(log).iter().map(held).collect();
        let then = self.fenced[&log].iter().flatten().map(held);
        let then: Vec<_> = then.collect();
        assert_eq!(now, then, "log {log:x} changed after its fence");
    }

    fn append(&mut self) -> Result<(), Error> {
        let heads = self.open_heads();
        // Bytes without a certificate cannot leave the write-ahead log, so a writer completes these
        // segments first.
        let waiting = heads.iter().copied().find(|id| {
            let segment = &self.segments[id];
            let certified = segment.at(u64::MAX).map_or(0, |(length, _)| length);
            segment.staged > certified
        });
        let fresh =
            waiting.is_none() && (heads.len() < 3 && self.random.one_in(3) || heads.is_empty());
        let id = if let Some(id) = waiting {
            id
        } else if fresh {
            self.next_number()
        } else {
            heads[self.random.below(heads.len() as u64) as usize]
        };
        let from = self.segments.get(&id).map_or(0, |segment| segment.staged);
        let size = match self.random.below(8) {
            0 => 0,
            1..=4 => 1 + self.random.below(300),
            5 | 6 => self.random.below(5000),
            _ => 9000 + self.random.below(6000),
        } as u32;
        let to = (from + size).min(GEOMETRY.segment_bytes);
        let close = to == GEOMETRY.segment_bytes || self.random.one_in(9);
        let certified = close || waiting.is_some() || !self.random.one_in(6);
        let staged = self.backup().stage_of(
            replica(id).log,
            Chunk {
                segment: replica(id).segment,
                epoch: 1,
                kind: Kind::Head,
                offset: from,
                bytes: &content(id, from, to),
                certificate: certified.then(|| certificate(id, to)),
                open: fresh,
                close,
            },
        );
        match staged {
            Err(Error::CommitTooLarge { .. }) => return self.commit(),
            Err(Error::Busy { .. }) => return Ok(()), // the master chooses another backup
            other => other?,
        }
        self.next_segment = self.next_segment.max(id + 1);
        let segment = self.segments.entry(id).or_default();
        segment.staged = to;
        segment.closed |= close;
        self.staged.push((id, certified));
        let (length, closed) = segment.at(u64::MAX).unwrap_or((0, false));
        segment.history.push(Stage {
            commit: self.tried + 1,
            length: if certified { to } else { length },
            closed: closed | close,
        });
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Error> {
        if self.staged.is_empty() {
            return Ok(());
        }
        let level = if self.random.one_in(3) {
            Level::Buffered
        } else {
            Level::Synced
        };
        match self.backup().commit(level) {
            Err(error @ Error::Full { .. }) => return Err(error), // still staged
            Err(error) => {
                self.tried += 1;
                return Err(error);
            }
            Ok(committed) => {
                assert!(committed.level >= level, "a commit reaches its level");
                self.tried += 1;
                self.buffered = self.tried;
                if committed.level == Level::Synced {
                    self.synced = self.tried;
                }
            }
        }
        self.staged.clear();
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Error> {
        self.backup().sync()?;
        self.synced = self.buffered;
        Ok(())
    }

    fn scrub(&mut self) -> Result<(), Error> {
        match self.backup().scrubber().step()? {
            ScrubStep::Damaged { segment } => {
                let found = self.backup().reader().take_damaged();
                panic!("scrubbing found segment {segment} damaged: {found:?}")
            }
            ScrubStep::DamagedLog(damage) => panic!("scrubbing found {damage:?}"),
            _ => Ok(()),
        }
    }

    fn close(&mut self) -> Result<(), Error> {
        self.backup().close()?;
        self.synced = self.buffered;
        Ok(())
    }

    fn write_frame(&mut self) -> Result<(), Error> {
        let id = self.next_number();
        self.next_segment = id + 1;
        let length = 1 + self.random.below(u64::from(GEOMETRY.segment_bytes)) as u32;
        let segment = self.segments.entry(id).or_default();
        segment.survivor = Some(false);
        segment.closed = true;
        segment.staged = length;
        let written = self.backup().flusher().write_frame_of(
            replica(id),
            1,
            &content(id, 0, length),
            certificate(id, length),
            Kind::Survivor,
        );
        match written {
            Ok(()) => {
                if let Some(segment) = self.segments.get_mut(&id) {
                    segment.survivor = Some(true);
                }
                self.synced = self.buffered; // it syncs all that it builds on
                Ok(())
            }
            Err(Error::Full { .. }) => {
                // Perhaps it is there, if the slot was written; no control segment will list it.
                if let Some(segment) = self.segments.get_mut(&id) {
                    segment.freed = true;
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Frees a segment that is closed and durable, as a master does after a swap.
    fn free(&mut self) -> Result<(), Error> {
        let used = self.segments.len() as u64;
        if used < 5 {
            return Ok(());
        }
        self.free_closed()
    }

    fn free_closed(&mut self) -> Result<(), Error> {
        let synced = self.synced;
        let closed: Vec<u64> = self
            .segments
            .iter()
            .filter(|(_, segment)| {
                segment.survivor == Some(true)
                    || segment.at(synced).is_some_and(|(_, closed)| closed)
            })
            .filter(|(id, segment)| !segment.freed && !self.fenced.contains_key(&replica(**id).log))
            .map(|(id, _)| *id)
            .collect();
        for id in closed {
            if self.random.one_in(2) {
                if let Some(segment) = self.segments.get_mut(&id) {
                    segment.freed = true;
                }
                self.free_one(id)?;
            }
        }
        Ok(())
    }

    fn free_one(&self, id: u64) -> Result<(), Error> {
        self.backup().free_of(replica(id))
    }

    /// Stops the store: the crash has changed the disk already, or does so here.
    pub fn stop(&mut self, crash: Crash) {
        if crash == Crash::Power && !self.disk.is_down() {
            self.disk.cut_power();
        }
        self.backup = None;
        self.disk.restart();
        self.disk.restart();
    }

    /// Opens the store again and checks it. Afterwards the run can continue.
    ///
    /// # Errors
    /// The violation.
    pub fn reopen(&mut self, crash: Crash) -> Result<(), String> {
        let opened = Backup::open(
            Arc::new(self.disk.clone()),
            &self.options,
            &Expected::default(),
        );
        let (backup, found) = opened.map_err(|error| format!("does not open: {error}"))?;
        let kept = match crash {
            Crash::Power => self.synced,
            Crash::Kill => self.buffered,
        };
        let found: BTreeMap<u64, ReplicaInfo> = found
            .into_iter()
            .map(|info| (number(info.id()), info))
            .collect();
        let newest = self.tried;
        // Bytes staged for a commit that was never tried have no effect.
        let k = (kept..=newest)
            .rev()
            .find(|k| self.explains(*k, &found))
            .ok_or_else(|| self.describe(kept, newest, &found, &backup))?;
        for (id, info) in &found {
            let segment = self.segments.get(id);
            if segment.is_none_or(|segment| segment.freed) {
                continue;
            }
            let mut into = vec![0xee; GEOMETRY.segment_bytes as usize];
            backup
                .read_of(replica(*id), &mut into)
                .map_err(|error| format!("segment {id}: {error}"))?;
            if into[..info.length as usize] != content(*id, 0, info.length) {
                return Err(format!("segment {id} has other bytes"));
            }
        }
        self.settle(k, &found, &backup);
        self.backup = Some(backup);
        Ok(())
    }

    /// Whether the found replicas are those after commit `k`.
    fn explains(&self, k: u64, found: &BTreeMap<u64, ReplicaInfo>) -> bool {
        self.segments.iter().all(|(id, segment)| {
            if segment.freed {
                return true;
            }
            let found = found.get(id);
            match segment.survivor {
                Some(sure) => found.map_or(!sure, |found| {
                    !found.damaged && found.closed && found.length == segment.staged
                }),
                None => {
                    let found = found.map(|found| (found.length, found.closed, found.damaged));
                    found
                        == segment
                            .at(k)
                            .map(|(length, closed)| (length, closed, false))
                }
            }
        })
    }

    fn describe(
        &self,
        kept: u64,
        newest: u64,
        found: &BTreeMap<u64, ReplicaInfo>,
        backup: &Backup,
    ) -> String {
        let mut text = format!("no commit of {kept}..={newest} explains what is there:");
        for (id, segment) in self.segments.iter().filter(|(_, segment)| !segment.freed) {
            text += &format!(
                "\n  {id}: found {:?}, kept {:?}, newest {:?}, survivor {:?}",
                found
                    .get(id)
                    .map(|info| (info.length, info.closed, info.damaged, info.place)),
                segment.at(kept),
                segment.at(newest),
                segment.survivor,
            );
            let read = backup.read_of(replica(*id), &mut vec![0; GEOMETRY.segment_bytes as usize]);
            if let (Err(error), true) = (read, found.contains_key(id)) {
                text += &format!(", {error}");
            }
        }
        text
    }

    /// Sets the model to the found replicas.
    fn settle(&mut self, k: u64, found: &BTreeMap<u64, ReplicaInfo>, backup: &Backup) {
        for (id, info) in found {
            let known = self.segments.get(id).is_some_and(|segment| !segment.freed);
            if !known {
                // A freed replica that reappeared: no control segment lists it, so it is freed
                // again.
                backup
                    .free_of(info.id())
                    .expect("what reappeared can be freed");
            }
        }
        self.segments
            .retain(|id, segment| !segment.freed && found.contains_key(id));
        for (id, segment) in &mut self.segments {
            let info = found[id];
            segment.staged = info.length;
            segment.closed = info.closed;
            if segment.survivor.is_some() {
                segment.survivor = Some(true);
            } else {
                segment.history = vec![Stage {
                    commit: k,
                    length: info.length,
                    closed: info.closed,
                }];
            }
        }
        self.staged.clear();
        self.fenced.clear(); // a server that comes back has another id, which old masters do not know
        self.tried = k;
        self.buffered = k;
        self.synced = k; // opening synced everything that it found
        self.next_segment = self
            .next_segment
            .max(found.keys().last().map_or(0, |last| last + 1));
    }
}

/// The state of a replica that a fence keeps unchanged.
fn held(info: &ReplicaInfo) -> (SegmentId, u32, u32, bool) {
    (info.segment, info.length, info.crc, info.closed)
}

/// A disk with an empty store on it.
pub fn fresh_disk(seed: u64) -> SimDisk {
    fresh_disk_with(seed, None)
}

/// A key that was not used before.
pub fn some_key() -> KeySource {
    KeySource::Held(Arc::new(MasterKey::random().expect("random bytes")))
}

/// As [`fresh_disk`], encrypted with a key.
pub fn fresh_disk_with(seed: u64, key: Option<KeySource>) -> SimDisk {
    let disk = SimDisk::new(seed, 4 << 20).with_key(key);
    let made = Backup::create(Arc::new(disk.clone()), &options(), &GEOMETRY, &identity());
    drop(made.expect("a store is created"));
    disk
}

/// Runs `steps` steps with a fault at one operation, crashes, checks, and continues for as many
/// steps and another crash. After an error the process is restarted instead, in half of the runs:
/// then reads may show what is not on the medium. Returns the number of operations of the run
/// before the fault.
///
/// # Errors
/// The data that was lost.
pub fn crash_at(
    base: &SimDisk,
    seed: u64,
    steps: u32,
    fault: Option<(u64, Fault)>,
) -> Result<u64, String> {
    let disk = base.copy(seed ^ fault.map_or(0, |(at, _)| at << 20));
    let mut run = Run::new(disk, seed);
    if let Some((at, fault)) = fault {
        run.disk.inject(at, fault);
        if at % 4 == 0 {
            run.disk.pin_cache();
        }
    }
    let mut failed = None;
    for _ in 0..steps {
        if let Err(error) = run.step() {
            failed = Some(error);
            break;
        }
    }
    let operations = run.disk.operations();
    if let (Some(error), None) = (&failed, fault) {
        return Err(format!("without a fault: {error}"));
    }
    let crash = match fault {
        Some((_, Fault::Kill)) => Crash::Kill,
        _ => Crash::Power,
    };
    match fault {
        Some((at, Fault::Error)) if at % 2 == 0 => run.stop(Crash::Kill),
        _ => run.stop(crash),
    }
    run.reopen(crash)?;
    for _ in 0..steps / 2 {
        run.step()
            .map_err(|error| format!("after the restart: {error}"))?;
    }
    run.stop(Crash::Power);
    let before = if std::env::var_os("DURAMEN_SIM_SEED").is_some() {
        dump(&run.disk)
    } else {
        String::new()
    };
    run.reopen(Crash::Power)
        .map_err(|error| format!("{error}\n{before}"))
        .map_err(|error| format!("after the second crash: {error}"))?;
    Ok(operations)
}

/// The contents of the disk, to debug a failed run.
pub fn dump(disk: &SimDisk) -> String {
    use duramen_backup::inspect::{Inspector, describe};
    let mut text = String::new();
    let Ok(inspector) = Inspector::new(disk) else {
        return "no store".to_owned();
    };
    for header in inspector.wal_headers() {
        text += &format!("{header:?}\n");
    }
    inspector.slots(&mut |slot| {
        if slot.slot.is_some() || slot.damaged > 0 {
            text += &format!("{slot:?}\n");
        }
    });
    let end = inspector.commits(&mut |commit| {
        text += &format!("commit {} at +{}\n", commit.commit.lsn, commit.offset);
        for record in commit.records {
            text += &format!("  {}\n", describe(record));
        }
        std::ops::ControlFlow::Continue(())
    });
    text += &format!("{end:?}\n");
    for (number, operation) in disk.trace().iter().enumerate() {
        text += &format!("{number}: {operation}\n");
    }
    text
}

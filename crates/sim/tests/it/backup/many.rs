//! Two logs on one backup: a replica that is opened again, the reads of a recovery's masters, and
//! groups of several masters.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

use duramen_backup::{
    Backup, Chunk, Error, Expected, Group, Lookup, ReadAhead, ReplicaId, WantedKeys,
};
use duramen_base::ids::{KeyRange, Level, RouteHash, SegmentId};
use duramen_base::planted::{Bug, with_bug};
use duramen_format::certificate::Certificate;
use duramen_format::entry::{NewObject, parse};
use duramen_format::hash::KeyHasher;
use duramen_format::segment::{HEADER_BYTES, Header, Kind};
use duramen_sim::disk::{Fault, SimDisk};

use crate::backup::model::{GEOMETRY, content, fresh_disk, options};

const LOG: u64 = 0x1_0000_0002;
const ID: ReplicaId = ReplicaId {
    log: LOG,
    segment: SegmentId(7),
};

fn open(disk: &SimDisk) -> Backup {
    let disk = Arc::new(disk.clone());
    let (backup, _) =
        Backup::open(disk, &options(), &Expected::default()).expect("the store opens");
    backup
}

fn chunk(bytes: &[u8], from: u32, to: u32, epoch: u64, certified: bool) -> Chunk<'_> {
    Chunk {
        segment: ID.segment,
        epoch,
        kind: Kind::Head,
        offset: from,
        bytes: &bytes[from as usize..to as usize],
        certificate: certified.then(|| Certificate::of(&bytes[..to as usize])),
        open: from == 0,
        close: false,
    }
}

/// The last acknowledged state: epoch and length.
type Acknowledged = (u64, u32);

/// A replica of epoch 0, in the log alone or partly in its frame; then its master gives it up and
/// opens it again.
fn reopen(backup: &Backup, large: bool, acked: &mut Acknowledged) -> Result<(), Error> {
    let bytes = content(ID.segment.0, 0, GEOMETRY.segment_bytes);
    let first = if large { 12_000 } else { 3_000 };
    backup.stage_of(LOG, chunk(&bytes, 0, first, 0, true))?;
    backup.commit(Level::Synced)?;
    *acked = (0, first);
    while backup.flush_step()? {}
    // The same id in another log is another segment.
    let mut other = chunk(&bytes, 0, 100, 0, true);
    other.close = true;
    backup.stage_of(LOG + 1, other)?;
    *acked = (0, 0); // from here on the old replica was given up
    backup.stage_of(LOG, chunk(&bytes, 0, 500, 1, false))?;
    backup.commit(Level::Buffered)?;
    backup.stage_of(LOG, chunk(&bytes, 500, first + 2_000, 1, true))?;
    backup.commit(Level::Synced)?;
    *acked = (1, first + 2_000);
    while backup.flush_step()? {}
    backup.stage_of(LOG, chunk(&bytes, first + 2_000, first + 2_100, 1, true))?;
    backup.commit(Level::Synced)?;
    *acked = (1, first + 2_100);
    Ok(())
}

/// Scenario 6: re-replication onto a backup that holds an older replica, cut anywhere: afterwards
/// the replica is the old one or the new one, whole, and the new one once it was acknowledged.
#[test]
fn scenario_06_a_replica_opened_again_is_never_mixed() {
    let base = fresh_disk(7);
    let mut crashes = 0;
    for large in [false, true] {
        for fault in [Fault::PowerCut, Fault::PowerCutWithin, Fault::Kill] {
            for seed in 0..12 {
                let mut at = 0;
                loop {
                    let disk = base.copy(seed * 100 + at);
                    let backup = open(&disk);
                    let before = disk.operations();
                    disk.inject(before + at, fault);
                    let mut acked = (0, 0);
                    let done = reopen(&backup, large, &mut acked).is_ok();
                    drop(backup);
                    if fault != Fault::Kill && !disk.is_down() {
                        disk.cut_power();
                    }
                    disk.restart();
                    disk.restart();
                    check_reopened(&open(&disk), acked, (large, fault, seed, at));
                    crashes += 1;
                    at += 1;
                    if done {
                        break;
                    }
                }
            }
        }
    }
    assert!(crashes > 500, "{crashes}");
}

fn check_reopened(backup: &Backup, acked: Acknowledged, case: (bool, Fault, u64, u64)) {
    let mut into = vec![0; GEOMETRY.segment_bytes as usize];
    let found = backup.replicas_of(LOG);
    let Some(info) = found.first() else {
        return assert_eq!(acked, (0, 0), "{case:?}: it is gone");
    };
    assert!(
        (info.epoch, info.length) >= acked,
        "{case:?}: {info:?}, acknowledged {acked:?}"
    );
    if acked == (0, 0) && info.epoch == 0 && info.damaged {
        return; // given up, and its frame used again
    }
    let read = backup.read_of(ID, &mut into);
    let read = read.unwrap_or_else(|error| panic!("{case:?}: {error}; acknowledged {acked:?}"));
    let length = read.length as usize;
    assert!(
        into[..length] == content(ID.segment.0, 0, read.length),
        "{case:?}: other bytes"
    );
    // An epoch counts once it is complete.
    assert!(
        read.epoch == 0 || length == 0 || length >= 5_000,
        "{case:?}: {read:?}"
    );
}

/// A replica that stays when another one of its segment is lost gets the new epoch without a new
/// byte: the epoch counts only once it is durable, wherever the bytes are.
#[test]
fn an_epoch_that_comes_alone_is_durable() {
    for (seed, flushed_before, flushed_after) in [
        (1, false, false),
        (2, true, false),
        (3, false, true),
        (4, true, true),
    ] {
        let disk = fresh_disk(seed);
        let backup = open(&disk);
        let bytes = content(ID.segment.0, 0, GEOMETRY.segment_bytes);
        let flush = |wanted: bool| {
            while wanted && backup.flush_step().expect("the disk works") {}
        };
        backup
            .stage_of(LOG, chunk(&bytes, 0, 9_000, 0, true))
            .unwrap();
        backup.commit(Level::Synced).unwrap();
        flush(flushed_before);
        backup
            .stage_of(LOG, chunk(&bytes, 9_000, 9_000, 1, true))
            .unwrap();
        backup.commit(Level::Synced).unwrap();
        let epoch_of = |backup: &Backup| backup.replicas_of(LOG)[0].epoch;
        assert_eq!(epoch_of(&backup), 1, "seed {seed}");
        flush(flushed_after);
        drop(backup);
        disk.cut_power();
        disk.restart();
        assert_eq!(epoch_of(&open(&disk)), 1, "seed {seed}: after a power cut");
    }
}

/// A segment with `count` objects of two tables.
fn segment_of_entries(segment: u64, count: u32) -> Vec<u8> {
    let header = Header {
        kind: Kind::Head,
        segment: SegmentId(segment),
        log: LOG,
        head: 0,
        capacity: GEOMETRY.segment_bytes,
    };
    let mut bytes = header.encode().to_vec();
    for n in 0..count {
        let object = NewObject {
            table: n % 2,
            version: u64::from(n) + 1,
            expires_at_ms: None,
            key: format!("key {segment} {n}").as_bytes(),
            value: b"some value",
            victim: SegmentId::NONE,
            is_typed: false,
        }
        .to_bytes();
        bytes.extend(object);
    }
    bytes
}

trait ToBytes {
    fn to_bytes(&self) -> Vec<u8>;
}

impl ToBytes for NewObject<'_> {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.padded_bytes()];
        self.write_to(&mut bytes);
        bytes
    }
}

fn write_closed(backup: &Backup, segment: u64, bytes: &[u8]) {
    let id = ReplicaId {
        log: LOG,
        segment: SegmentId(segment),
    };
    backup
        .flusher()
        .write_frame_of(id, 0, bytes, Certificate::of(bytes), Kind::Head)
        .expect("a frame is written");
}

fn keys_of(mut bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut keys = Vec::new();
    while !bytes.is_empty() {
        let entry = parse(bytes).expect("whole entries");
        keys.push((entry.table, entry.key.to_vec()));
        bytes = &bytes[entry.padded_bytes..];
    }
    keys
}

/// Every entry is given to its range, once, and none from before the tablet belonged to its owner.
#[test]
fn recovery_masters_read_what_is_theirs() {
    let hasher = KeyHasher::new(5);
    let backup = open(&fresh_disk(3));
    let bytes = segment_of_entries(3, 200);
    write_closed(&backup, 3, &bytes);
    let middle = RouteHash(u64::MAX / 3);
    let (low, high) = KeyRange::ALL.split(middle).expect("two parts");
    let wanted = |table, keys, since| WantedKeys {
        table,
        keys,
        since: SegmentId(since),
    };
    let ranges = [
        wanted(0, low, 0),
        wanted(0, high, 3),
        wanted(1, high, 0),
        wanted(1, low, 4),
    ];
    let mut buckets = vec![Vec::new(); 4];
    let id = ReplicaId {
        log: LOG,
        segment: SegmentId(3),
    };
    let sorted = backup
        .reader()
        .read_sorted(id, &hasher, &mut Vec::new(), &Arc::default())
        .expect("it is sound");
    for (wanted, bucket) in ranges.iter().zip(&mut buckets) {
        bucket.extend_from_slice(sorted.range(wanted));
    }
    let mut seen = 0;
    for (range, bucket) in ranges.iter().zip(&buckets) {
        for (table, key) in keys_of(bucket) {
            assert!(table == range.table && range.keys.contains(hasher.route(&key)));
            seen += 1;
        }
    }
    let expected = keys_of(&bytes[HEADER_BYTES..])
        .into_iter()
        .filter(|(table, key)| *table == 0 || high.contains(hasher.route(key)))
        .count();
    assert_eq!(seen, expected);
    assert!(buckets[3].is_empty() && buckets[..3].iter().all(|bucket| !bucket.is_empty()));
}

/// many::M3: one flipped bit that the certificate covers is put back: every entry is given, and the
/// bit is told. With the planted bug the replica is bad, as all others of its segment are.
#[test]
fn one_flipped_bit_of_an_entry_does_not_stop_a_recovery() {
    let hasher = KeyHasher::new(5);
    let good = segment_of_entries(4, 50);
    for bit in (0..good.len() * 8).step_by(41) {
        let backup = open(&fresh_disk(3));
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        write_closed(&backup, 4, &bytes);
        let id = ReplicaId {
            log: LOG,
            segment: SegmentId(4),
        };
        let read = || {
            backup
                .reader()
                .read_sorted(id, &hasher, &mut Vec::new(), &Arc::default())
        };
        assert!(bit < 512 || with_bug(Bug::OneBitStopsRecovery, read).is_err());
        backup.reader().take_mended();
        let mut keys = keys_of(read().expect("one bit").as_ref());
        let mut expected = keys_of(&good[HEADER_BYTES..]);
        keys.sort();
        expected.sort();
        assert!(keys == expected, "bit {bit}");
        let told = backup.reader().take_mended();
        assert_eq!((told.len(), told[0].0), (1, id));
        let place = format!("byte {}: bit {} ", bit / 8, bit % 8);
        assert!(
            told[0].1.starts_with(&place),
            "{} is not {place}",
            told[0].1
        );
    }
}

/// Scenario 20: two flipped bits of an entry make the replica bad: none of its entries is given.
#[test]
fn scenario_20_a_damaged_replica_is_bad_as_a_whole() {
    let hasher = KeyHasher::new(5);
    let backup = open(&fresh_disk(3));
    let mut bytes = segment_of_entries(4, 50);
    let last = bytes.len() - 30;
    // In an entry; the certificate matches the wrong bytes, as from a master with bad memory.
    bytes[last] ^= 6;
    write_closed(&backup, 4, &bytes);
    let good = segment_of_entries(5, 50);
    write_closed(&backup, 5, &good);
    let order = vec![SegmentId(4), SegmentId(5)];
    let mut ahead = ReadAhead::new(LOG, order);
    let mut scratch = Vec::new();
    let mut read_one = |ahead: &mut ReadAhead| {
        let id = ahead.wanted(0, 1)?;
        let result = backup
            .reader()
            .read_sorted(id, &hasher, &mut scratch, &ahead.spare().clone());
        ahead.done(0, id.segment, result);
        Some(id.segment)
    };
    assert!(matches!(ahead.get(SegmentId(5)), Lookup::NotYet));
    assert_eq!(read_one(&mut ahead), Some(SegmentId(5))); // requested: before its turn
    assert_eq!(read_one(&mut ahead), None); // memory is full
    let Lookup::Ready(sorted) = ahead.get(SegmentId(5)) else {
        panic!("it was read");
    };
    assert!(sorted.memory_bytes() > 0 && ahead.memory_bytes() == sorted.memory_bytes());
    ahead.drop_segment(SegmentId(5));
    assert_eq!(ahead.memory_bytes(), 0);
    assert_eq!(read_one(&mut ahead), Some(SegmentId(4)));
    assert!(matches!(ahead.get(SegmentId(4)), Lookup::Bad));
    assert_eq!(read_one(&mut ahead), None);
}

/// A segment that was given to all masters is dropped from memory, and read again for a late one.
#[test]
fn what_was_given_is_read_again_for_the_late() {
    let hasher = KeyHasher::new(5);
    let backup = open(&fresh_disk(3));
    let bytes = segment_of_entries(4, 200);
    write_closed(&backup, 4, &bytes);
    let mut ahead = ReadAhead::new(LOG, vec![SegmentId(4)]);
    let mut scratch = Vec::new();
    for _ in 0..3 {
        let id = ahead.wanted(0, 1 << 20).expect("to be read");
        let spare = ahead.spare().clone();
        let read = backup
            .reader()
            .read_sorted(id, &hasher, &mut scratch, &spare);
        ahead.done(0, id.segment, read);
        let Lookup::Ready(sorted) = ahead.get(id.segment) else {
            panic!("it was read");
        };
        let all = (*sorted).as_ref().len();
        let of: Vec<_> = keys_of((*sorted).as_ref());
        assert_eq!(of.len(), keys_of(&bytes[HEADER_BYTES..]).len());
        ahead.given(id.segment, all - 1);
        assert!(matches!(ahead.get(id.segment), Lookup::Ready(_)));
        ahead.given(id.segment, 1);
        assert_eq!(ahead.memory_bytes(), 0);
        assert!(ahead.wanted(0, 1 << 20).is_none(), "nobody waits for it");
        assert!(matches!(ahead.get(id.segment), Lookup::NotYet));
    }
}

/// ahead::A4: three masters wait for a segment each, and repeat their requests every 5 ms. There is
/// memory for one, and two are read at a time. Each once dropped those of the others before their
/// masters came back, for ever.
#[test]
fn segments_that_masters_wait_for_are_given_before_they_go() {
    let hasher = KeyHasher::new(5);
    let backup = open(&fresh_disk(3));
    let segments = [4, 5, 6].map(SegmentId);
    for SegmentId(segment) in segments {
        write_closed(&backup, segment, &segment_of_entries(segment, 200));
    }
    let mut ahead = ReadAhead::new(LOG, Vec::new());
    let (mut scratch, mut reading) = (Vec::new(), Vec::new());
    let (mut waiting, mut reads) = (segments.to_vec(), 0);
    for now_us in (0..1_000_000).step_by(1_000) {
        for segment in segments.into_iter().filter(|_| now_us % 5_000 == 0) {
            if !waiting.contains(&segment) {
                continue;
            }
            if let Lookup::Ready(_) = ahead.get(segment) {
                ahead.given(segment, 1); // another master needs the rest
                waiting.retain(|waits| *waits != segment);
            }
        }
        // A read takes a millisecond, and the next one begins when it ends.
        for id in std::mem::take(&mut reading) {
            let spare = ahead.spare().clone();
            let read = backup
                .reader()
                .read_sorted(id, &hasher, &mut scratch, &spare);
            ahead.done(now_us, id.segment, read);
            reads += 1;
        }
        while reading.len() < 2
            && let Some(id) = ahead.wanted(now_us, 1)
        {
            reading.push(id);
        }
    }
    assert_eq!((waiting, reads), (Vec::new(), 3));
    // The newest went first. A master that does not come back holds the memory for a second.
    assert!(matches!(ahead.get(SegmentId(6)), Lookup::NotYet));
    let id = ahead.wanted(2_000_000, 1).expect("the others may go");
    let read = backup
        .reader()
        .read_sorted(id, &hasher, &mut scratch, &ahead.spare().clone());
    ahead.done(2_000_000, id.segment, read);
    assert!(matches!(ahead.get(SegmentId(5)), Lookup::NotYet));
    assert!(ahead.wanted(2_900_000, 1).is_none());
    assert!(ahead.wanted(3_000_000, 1).is_some());
}

/// A master that lags wants newer segments than the others, and they wait for it.
#[test]
fn of_those_requested_the_newest_is_read_first() {
    let mut ahead = ReadAhead::new(LOG, [9, 8, 7].map(SegmentId).to_vec());
    for segment in [3, 5, 4] {
        assert!(matches!(ahead.get(SegmentId(segment)), Lookup::NotYet));
    }
    let next = |ahead: &mut ReadAhead| ahead.wanted(0, 1 << 20).map(|id| id.segment.0);
    let order: Vec<u64> = std::iter::from_fn(|| next(&mut ahead)).collect();
    assert_eq!(order, [5, 4, 3, 9, 8, 7]);
}

/// Scenario 39: openings are refused before frames or the log run out, so all accepted ones can be
/// finished.
#[test]
fn scenario_39_openings_are_refused_in_time() {
    let backup = open(&fresh_disk(4));
    let bytes = content(1, 0, GEOMETRY.segment_bytes);
    let mut opened = Vec::new();
    let refused = (1..100).find_map(|segment| {
        let mut chunk = chunk(&bytes, 0, 64, 0, true);
        chunk.segment = SegmentId(segment);
        match backup.stage_of(LOG + segment % 3, chunk) {
            Ok(()) => opened.push(segment),
            Err(error) => return Some(error),
        }
        backup.commit(Level::Synced).expect("there is room");
        None
    });
    assert!(matches!(refused, Some(Error::Busy { .. })), "{refused:?}");
    assert!(opened.len() > 5, "{opened:?}");
    for segment in opened {
        let mut chunk = chunk(&bytes, 64, GEOMETRY.segment_bytes, 0, true);
        (chunk.segment, chunk.close) = (SegmentId(segment), true);
        backup
            .stage_of(LOG + segment % 3, chunk)
            .expect("what was opened can grow");
        backup.commit(Level::Synced).expect("and has a frame");
        while backup.flush_step().expect("at its end") {}
    }
}

/// Whole segments that a backup takes before it refuses one. It keeps `left` frames from copies.
/// `closes`: their openings close them.
fn taken(left: u32, epoch: u64, closes: bool) -> u32 {
    let backup = open(&fresh_disk(4));
    backup.flusher().keep_from_refills(left);
    let bytes = content(1, 0, GEOMETRY.segment_bytes);
    let mut taken = 0;
    loop {
        let mut opening = chunk(&bytes, 0, GEOMETRY.segment_bytes, epoch, true);
        opening.segment = SegmentId(100 + u64::from(taken));
        (opening.close, opening.kind) = (closes, Kind::Survivor);
        match backup.stage_of(LOG, opening) {
            Ok(()) => taken += 1,
            Err(Error::Busy { .. }) => return taken,
            Err(error) => panic!("{error}"),
        }
        let close = Chunk {
            offset: GEOMETRY.segment_bytes,
            bytes: &[],
            open: false,
            close: true,
            ..opening
        };
        backup.stage_of(LOG, close).expect("it is there");
        backup.commit(Level::Synced).expect("there is room");
        while backup.flush_step().expect("the disk works") {}
    }
}

/// All servers stopped one after the other, and each of the others filled its disk with copies of
/// what those had held: after the start no log had frames for its recovery. A recovery's own
/// segments are no copies, also when they come at a higher epoch because another backup refused
/// them.
#[test]
fn copies_of_lost_replicas_leave_frames_for_recoveries() {
    let all = taken(0, 1, true);
    assert_eq!((taken(0, 0, true), taken(4, 0, true)), (all, all));
    assert_eq!(taken(4, 1, false), all);
    assert_eq!(taken(4, 1, true), all - 4);
    let with_bug = with_bug(Bug::RefillsTakeAll, || taken(4, 1, true));
    assert_eq!(with_bug, all, "not found");
}

/// A restarted backup has a whole replica, and its master, which does not know that yet, sends
/// another copy. The backup dropped the one that it had, and then refused the copy: there was no
/// room, or its bytes were damaged. So a restart alone cost a good replica of each segment.
#[test]
fn a_refused_copy_leaves_the_older_replica() {
    let disk = fresh_disk(4);
    let backup = open(&disk);
    let bytes = content(ID.segment.0, 0, GEOMETRY.segment_bytes);
    let copy = |bytes, epoch| Chunk {
        close: true,
        ..chunk(bytes, 0, GEOMETRY.segment_bytes, epoch, true)
    };
    backup
        .stage_of(LOG, copy(&bytes, 0))
        .expect("there is room");
    backup.commit(Level::Synced).expect("there is room");
    while backup.flush_step().expect("the disk works") {}
    let is_there = |backup: &Backup| {
        let mut into = vec![0; GEOMETRY.segment_bytes as usize];
        let read = backup.read_of(ID, &mut into).expect("it is there");
        assert!(read.closed && read.certificate() == Certificate::of(&bytes) && into == bytes);
        read.epoch
    };
    let mut damaged = bytes.clone();
    damaged[77] ^= 1;
    let damaged = Chunk {
        certificate: Some(Certificate::of(&bytes)),
        ..copy(&damaged, 1)
    };
    let refused = backup.stage_of(LOG, damaged);
    assert!(
        matches!(refused, Err(Error::Certificate { .. })),
        "{refused:?}"
    );
    assert_eq!(is_there(&backup), 0);
    drop(backup);
    disk.cut_power();
    disk.restart();
    let backup = open(&disk);
    assert_eq!(is_there(&backup), 0);
    // With room for one more: the frame of the older one counts.
    let others = (100..).map_while(|segment| {
        let other = Chunk {
            segment: SegmentId(segment),
            ..copy(&bytes, 0)
        };
        backup.stage_of(LOG, other).ok()?;
        backup.commit(Level::Synced).expect("there is room");
        while backup.flush_step().expect("the disk works") {}
        Some(segment)
    });
    assert!(others.count() > 2);
    // A segment that arrives in parts needs more than that.
    let refused = backup.stage_of(LOG, chunk(&bytes, 0, 3_000, 1, true));
    assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    assert_eq!(is_there(&backup), 0);
    // None of the frames that are kept from copies is taken.
    backup.flusher().keep_from_refills(u32::MAX / 2);
    backup
        .stage_of(LOG, copy(&bytes, 1))
        .expect("its own frame");
    backup.commit(Level::Synced).expect("there is room");
    assert_eq!(is_there(&backup), 1);
}

/// An opened replica without further data does not hold up the write-ahead log: its master may be
/// waiting for room here itself.
#[test]
fn an_opening_without_data_does_not_hold_up_the_log() {
    let disk = fresh_disk(6);
    let backup = open(&disk);
    let opening = Chunk {
        bytes: &[],
        certificate: None,
        ..chunk(&[], 0, 0, 0, false)
    };
    backup.stage_of(LOG, opening).expect("there is room");
    backup.commit(Level::Synced).expect("there is room");
    let bytes = content(1, 0, GEOMETRY.segment_bytes);
    let mut written = 0;
    for segment in 20..400 {
        let mut chunk = chunk(&bytes, 0, 3_000, 0, true);
        (chunk.segment, chunk.close) = (SegmentId(segment), true);
        backup.stage_of(LOG + 1, chunk).expect("there is room");
        written += backup.commit(Level::Synced).expect("and in the log").bytes;
        while backup.flush_step().expect("the disk works") {}
        let other = ReplicaId {
            log: LOG + 1,
            segment: SegmentId(segment),
        };
        backup.free_of(other).expect("it is there");
    }
    assert!(written > 2 * GEOMETRY.wal_bytes, "{written}");
    drop(backup);
    disk.cut_power();
    disk.restart();
    let backup = open(&disk);
    let found = backup.replicas_of(LOG);
    assert_eq!((found.len(), found[0].length), (1, 0), "{found:?}");
    let all = content(ID.segment.0, 0, 500);
    let more = Chunk {
        open: false,
        ..chunk(&all, 0, 500, 0, true)
    };
    backup.stage_of(LOG, more).expect("it goes on");
    backup.commit(Level::Synced).expect("there is room");
    let mut into = vec![0; GEOMETRY.segment_bytes as usize];
    assert_eq!(
        backup.read_of(ID, &mut into).expect("it is there").length,
        500
    );
    assert!(into[..500] == all);
}

/// Three masters that wait for their answers before they send more share commits; a single one does
/// not wait.
#[test]
fn chunks_of_several_masters_share_a_commit() {
    let backup = open(&fresh_disk(5));
    let bytes = content(1, 0, GEOMETRY.segment_bytes);
    let group = Group::<u64>::default();
    let now = Cell::new(0);
    let clock = || {
        now.set(now.get() + 100); // a commit takes 100 us
        now.get()
    };
    let mut lengths = [0; 3];
    let send = |log: u64, lengths: &mut [u32; 3]| {
        let from = lengths[log as usize];
        lengths[log as usize] += 10;
        let chunk = chunk(&bytes, from, from + 10, 0, true);
        group
            .submit(&backup, LOG + log, chunk, Level::Synced, log, now.get())
            .expect("it is taken");
    };
    // Alone: due at once.
    for _ in 0..5 {
        send(0, &mut lengths);
        assert_eq!(group.due(), Some(now.get()));
        let answered = group.run(&backup, &clock).expect("it commits");
        assert!(answered.iter().all(|a| a.level == Level::Synced));
        assert_eq!(answered.len(), 1);
    }
    // Three masters that send again about 20 us after their answers.
    let before = backup.stats().commits;
    let mut arrivals: BTreeSet<(u64, u64)> = (0..3).map(|log| (now.get() + 7 * log, log)).collect();
    let mut answers = 0;
    while answers < 150 {
        let due = group.due().unwrap_or(u64::MAX);
        match arrivals.first().copied() {
            Some((at, log)) if at <= due.max(now.get()) => {
                arrivals.pop_first();
                now.set(at.max(now.get()));
                send(log, &mut lengths);
            }
            _ => {
                now.set(due.max(now.get()));
                for answer in group.run(&backup, &clock).expect("it commits") {
                    arrivals.insert((now.get() + 20 + answers % 7, answer.tag));
                    answers += 1;
                }
            }
        }
    }
    for (_, log) in arrivals {
        send(log, &mut lengths);
    }
    group.run(&backup, &clock).expect("it commits");
    let commits = backup.stats().commits - before;
    assert!(commits < 60, "{commits} commits for 50 rounds of three");
    assert_eq!(backup.stats().syncs.min(commits), commits); // one sync for each
    assert!(group.run(&backup, &clock).expect("nobody waits").is_empty());
    assert_eq!(group.due(), None);
}

/// Bytes that count as synced on a disk without room for frames.
fn counted_as_synced() -> u64 {
    const PART: u32 = 3 << 10;
    let disk = fresh_disk(6);
    let backup = open(&disk);
    disk.set_capacity(0);
    let group = Group::<u64>::default();
    let mut counted = 0;
    for from in (0..GEOMETRY.segment_bytes).step_by(PART as usize) {
        for segment in 0..8 {
            let bytes = content(segment, 0, GEOMETRY.segment_bytes);
            let mut part = chunk(&bytes, from, from + PART, 0, true);
            part.segment = SegmentId(100 + segment);
            let taken = group.submit(&backup, LOG, part, Level::Synced, segment, 0);
            if taken.is_ok() && group.run(&backup, &|| 0).is_ok() {
                counted += u64::from(PART);
            }
        }
    }
    counted
}

#[test]
fn a_commit_without_room_does_not_count() {
    assert!(counted_as_synced() <= GEOMETRY.wal_bytes);
}

#[test]
fn commits_without_room_that_count_are_found() {
    let counted = with_bug(Bug::FullIsStored, counted_as_synced);
    assert!(counted > counted_as_synced(), "{counted}");
}

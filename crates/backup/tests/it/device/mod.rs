//! The backup on real files, in every mode: written data are read back, across restarts; damage is
//! reported.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use duramen_backup::disk::{Disk, File, Front, Fronted, keyed};
use duramen_backup::os::{OsDisk, is_copy, remove_copy};
use duramen_backup::{
    Backup, Chunk, Error, Expected, Geometry, Identity, Mode, Options, Place, ReplicaInfo,
    ScrubStep,
};
use duramen_base::ids::{Level, SegmentId};
use duramen_cipher::{KeySource, MasterKey};
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;

mod encrypted;
mod forged;
mod memory;

const GEOMETRY: Geometry = Geometry {
    segment_bytes: 1 << 20,
    wal_bytes: 1 << 20,
    frames: 12,
};

fn identity() -> Identity {
    Identity {
        cluster: "home".to_owned(),
        server: 0x77,
        hash_seed: 5,
    }
}

fn disk(folder: &Path, mode: Mode, uring: bool) -> Arc<OsDisk> {
    let path = if mode == Mode::Raw {
        let path = folder.join("device");
        if !path.exists() {
            fs::File::create(&path).unwrap().set_len(24 << 20).unwrap();
        }
        path
    } else {
        folder.join("store")
    };
    Arc::new(if uring {
        OsDisk::new(&path, mode)
    } else {
        OsDisk::without_uring(&path, mode)
    })
}

/// Bytes of a segment: different in every place of every segment.
fn bytes_of(segment: u64, length: usize) -> Vec<u8> {
    (0..length as u64)
        .map(|n| (n.wrapping_mul(0x9e37_79b9).wrapping_add(segment * 77) >> 13) as u8)
        .collect()
}

/// A log writer that can compute the bytes that it wrote.
struct Writer<'a> {
    backup: &'a Backup,
}

impl Writer<'_> {
    fn append(&self, segment: u64, from: usize, to: usize, close: bool) -> Result<(), Error> {
        let all = bytes_of(segment, to);
        self.backup.stage(Chunk {
            segment: SegmentId(segment),
            epoch: 1,
            kind: Kind::Head,
            offset: from as u32,
            bytes: &all[from..],
            certificate: Some(Certificate::of(&all)),
            open: from == 0,
            close,
        })
    }
}

fn check(backup: &Backup, segment: u64, length: usize) -> ReplicaInfo {
    let mut into = vec![0; 1 << 20];
    let info = backup.read(SegmentId(segment), &mut into).unwrap();
    assert_eq!(info.length as usize, length, "segment {segment}");
    assert!(
        into[..length] == bytes_of(segment, length),
        "segment {segment}"
    );
    info
}

fn flush_all(backup: &Backup) {
    while backup.flush_step().unwrap() {}
}

/// Segment 1 stays open, 2 is closed, 3 goes directly to its frame in part, 4 is a survivor.
fn write_four(backup: &Backup) {
    let writer = Writer { backup };
    for (from, to) in [(0, 100), (100, 5000), (5000, 5001)] {
        writer.append(1, from, to, false).unwrap();
        let committed = backup.commit(Level::Synced).unwrap();
        assert_eq!(committed.level, Level::Synced);
    }
    writer.append(2, 0, 70_000, true).unwrap();
    writer.append(3, 0, 300_001, false).unwrap();
    assert_eq!(
        backup.commit(Level::Buffered).unwrap().level,
        Level::Buffered
    );
    writer.append(3, 300_001, 300_100, false).unwrap();
    assert_eq!(backup.commit(Level::Synced).unwrap().level, Level::Synced);
    let survivor = bytes_of(4, 777_777);
    let certificate = Certificate::of(&survivor);
    backup
        .flusher()
        .write_frame(SegmentId(4), 1, &survivor, certificate, Kind::Survivor)
        .unwrap();
}

fn check_four(backup: &Backup) {
    check(backup, 1, 5001);
    assert!(check(backup, 2, 70_000).closed);
    check(backup, 3, 300_100);
    assert_eq!(check(backup, 4, 777_777).place, Place::Frame);
}

fn write_and_read_again(mode: Mode, disk: &dyn Fn(&Path) -> Arc<dyn Disk>) {
    let folder = tempfile::tempdir().unwrap();
    let open = || disk(folder.path());
    let options = Options::default();
    let backup = Backup::create(open(), &options, &GEOMETRY, &identity()).unwrap();
    write_four(&backup);
    check_four(&backup);
    flush_all(&backup);
    check_four(&backup);
    assert_eq!(check(&backup, 2, 70_000).place, Place::Frame);
    let infos = backup.replicas();
    drop(backup); // as after kill -9: no clean end

    let (backup, found) = Backup::open(open(), &options, &Expected::default()).unwrap();
    assert_eq!(found, infos, "{mode:?}");
    check_four(&backup);
    let writer = Writer { backup: &backup };
    writer.append(1, 5001, 9000, true).unwrap();
    writer.append(3, 300_100, 500_000, true).unwrap();
    backup.commit(Level::Synced).unwrap();
    backup.free(SegmentId(2)).unwrap();
    flush_all(&backup);
    assert!(matches!(
        backup.read(SegmentId(2), &mut [0; 8]),
        Err(Error::UnknownSegment { .. })
    ));
    backup.close().unwrap();
    drop(backup);

    let (backup, found) = Backup::open(open(), &options, &Expected::default()).unwrap();
    // A freed replica may reappear: only listed segments count. It is freed again.
    if found.iter().any(|info| info.segment == SegmentId(2)) {
        backup.free(SegmentId(2)).unwrap();
    }
    assert_eq!(check(&backup, 1, 9000).place, Place::Frame);
    check(&backup, 3, 500_000);
    check(&backup, 4, 777_777);
    for _ in 0..6 {
        assert!(matches!(
            backup.scrubber().step().unwrap(),
            ScrubStep::Good { .. } | ScrubStep::GoodLog { .. }
        ));
    }
}

#[test]
fn what_goes_in_comes_out_in_every_mode() {
    let key = || KeySource::Held(Arc::new(MasterKey::random().unwrap()));
    for (mode, uring, key) in [
        (Mode::Buffered, true, None),
        (Mode::Direct, true, None),
        (Mode::Direct, false, None),
        (Mode::Raw, true, None),
        (Mode::Buffered, true, Some(key())),
        (Mode::Direct, true, Some(key())),
        (Mode::Raw, true, Some(key())),
    ] {
        write_and_read_again(mode, &|folder| {
            keyed(disk(folder, mode, uring), key.clone())
        });
    }
}

/// A file without space for large writes while the flag is set.
struct Tight {
    below: Arc<dyn File>,
    full: Arc<AtomicBool>,
}

impl Front for Tight {
    fn below(&self) -> &dyn File {
        &*self.below
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> std::io::Result<()> {
        if bytes.len() > 100_000 && self.full.load(Ordering::Acquire) {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.below.write_at(at, bytes)
    }
}

/// Stages `[from, to)` of segment 7 from memory that is aligned as the segment is, or not.
fn stage_large(
    backup: &Backup,
    from: usize,
    to: usize,
    aligned: bool,
    close: bool,
) -> Result<(), Error> {
    let all = bytes_of(7, to);
    let mut memory = vec![0; to + 4097];
    let start = memory.as_ptr().align_offset(4096) + usize::from(!aligned);
    memory[start..start + to].copy_from_slice(&all);
    backup.stage_certified(Chunk {
        segment: SegmentId(7),
        epoch: 1,
        kind: Kind::Head,
        offset: from as u32,
        bytes: &memory[start + from..start + to],
        certificate: Some(Certificate::of(&all)),
        open: from == 0,
        close,
    })
}

#[test]
fn large_chunks_lie_in_their_frame_and_a_full_disk_leaves_all_as_it_was() {
    let cuts = [
        vec![0, 700_000, 1 << 20],
        vec![0, 4096, 604_096, 1 << 20],
        vec![0, 5000, 5001, 650_007, 1_000_000, 1 << 20],
        vec![0, 100, 140_000, 800_000, 800_001],
    ];
    for (cuts, mode, at_once) in cuts
        .iter()
        .flat_map(|cuts| [Mode::Buffered, Mode::Direct].map(|mode| (cuts, mode)))
        .flat_map(|(cuts, mode)| [false, true].map(|at_once| (cuts, mode, at_once)))
    {
        for aligned in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let full = Arc::new(AtomicBool::new(false));
            let open = || -> Arc<dyn Disk> {
                let below = disk(folder.path(), mode, true);
                if at_once {
                    return below; // with its own way of large writes
                }
                let full = full.clone();
                Arc::new(Fronted::new(below, move |below| -> Arc<dyn File> {
                    let full = full.clone();
                    Arc::new(Tight { below, full })
                }))
            };
            let options = Options::default();
            let backup = Backup::create(open(), &options, &GEOMETRY, &identity()).unwrap();
            for (n, cut) in cuts.windows(2).enumerate() {
                let close = n + 2 == cuts.len();
                let stage = || stage_large(&backup, cut[0], cut[1], aligned, close);
                if !at_once && cut[1] - cut[0] > 131_072 {
                    full.store(true, Ordering::Release);
                    assert!(matches!(stage(), Err(Error::Full { .. })), "{cut:?}");
                    full.store(false, Ordering::Release);
                    if cut[0] > 0 {
                        check(&backup, 7, cut[0]);
                    }
                }
                stage().unwrap();
                if !at_once {
                    backup.commit(Level::Synced).unwrap();
                    check(&backup, 7, cut[1]);
                }
            }
            backup.commit(Level::Synced).unwrap();
            let end = cuts[cuts.len() - 1];
            assert!(check(&backup, 7, end).closed);
            let written = backup.stats().wal_written_bytes as usize;
            assert!(written < end / 2, "large chunks bypass the log: {written}");
            drop(backup);
            let (backup, _) = Backup::open(open(), &options, &Expected::default()).unwrap();
            assert!(check(&backup, 7, end).closed);
            flush_all(&backup);
            assert_eq!(check(&backup, 7, end).place, Place::Frame);
        }
    }
}

/// While one thread commits, the other stages: commits take the staged chunks, in order, and no
/// chunk is lost or mixed up.
#[test]
fn staging_goes_on_beside_commits() {
    let folder = tempfile::tempdir().unwrap();
    let open = || disk(folder.path(), Mode::Direct, true);
    let options = Options::default();
    let backup = Backup::create(open(), &options, &GEOMETRY, &identity()).unwrap();
    let staged = AtomicU64::new(0);
    let length = |n: u64| 1000 + (n as usize * 77_777) % 400_000;
    std::thread::scope(|scope| {
        let committer = scope.spawn(|| {
            let mut committed = 0;
            while committed < 10 * 3 {
                // Acquire: chunks staged before the count was raised are in the commit.
                let before = staged.load(Ordering::Acquire);
                let done = backup.commit(Level::Synced).unwrap();
                committed += u64::from(done.chunks);
                assert!(committed >= before, "{committed} of {before}");
            }
        });
        let writer = Writer { backup: &backup };
        for segment in 1..=10 {
            for part in 0..3 {
                let from = length(segment) / 3 * part;
                let to = length(segment) / 3 * (part + 1);
                writer.append(segment, from, to, part == 2).unwrap();
                staged.fetch_add(1, Ordering::Release);
            }
        }
        committer.join().unwrap();
    });
    drop(backup);
    let (backup, _) = Backup::open(open(), &options, &Expected::default()).unwrap();
    for segment in 1..=10 {
        assert!(check(&backup, segment, length(segment) / 3 * 3).closed);
    }
}

#[test]
fn a_log_much_smaller_than_the_data_goes_round() {
    let folder = tempfile::tempdir().unwrap();
    let geometry = Geometry {
        wal_bytes: 256 << 10,
        ..GEOMETRY
    };
    let open = || disk(folder.path(), Mode::Buffered, true);
    let options = Options::default();
    let backup = Backup::create(open(), &options, &geometry, &identity()).unwrap();
    let writer = Writer { backup: &backup };
    // Two heads grow by turns without a flusher: commits have to make their own room.
    let mut lengths = [0usize; 3];
    for round in 0..400 {
        let head = 1 + round % 2;
        let to = lengths[head] + 1 + round * 37 % 5000;
        writer
            .append(head as u64, lengths[head], to, false)
            .unwrap();
        backup.commit(Level::Buffered).unwrap();
        lengths[head] = to;
    }
    assert!(backup.stats().stalls > 0);
    for head in [1, 2] {
        check(&backup, head as u64, lengths[head]);
    }
    drop(backup);
    let (backup, _) = Backup::open(open(), &options, &Expected::default()).unwrap();
    for head in [1, 2] {
        check(&backup, head as u64, lengths[head]);
    }
}

#[test]
fn frames_that_are_all_taken_are_pushed_back_on_and_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let geometry = Geometry {
        segment_bytes: 64 << 10,
        wal_bytes: 128 << 10,
        frames: 2,
    };
    let backup = Backup::create(
        disk(folder.path(), Mode::Buffered, true),
        &Options::default(),
        &geometry,
        &identity(),
    )
    .unwrap();
    let writer = Writer { backup: &backup };
    let mut segment = 0;
    let full = loop {
        segment += 1;
        assert!(segment < 100, "it must get full");
        writer.append(segment, 0, 30_000, true).unwrap();
        if let Err(error) = backup.commit(Level::Synced) {
            break error;
        }
    };
    assert!(matches!(full, Error::Full { .. }), "{full}");
    assert!(matches!(
        backup.commit(Level::Synced),
        Err(Error::Full { .. })
    ));
    check(&backup, 1, 30_000); // reads continue
    backup.free(SegmentId(1)).unwrap();
    backup.commit(Level::Synced).unwrap(); // staged chunks are still there
    check(&backup, segment, 30_000);
    check(&backup, 2, 30_000);
}

#[test]
fn wrong_places_are_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options::default();
    let store = disk(folder.path(), Mode::Buffered, true);
    let refused = |expected: &Expected| Backup::open(store.clone(), &options, expected).map(|_| ());
    let anybody = Expected::default();
    assert!(matches!(refused(&anybody), Err(Error::Absent { .. })));
    assert!(!folder.path().join("store").exists());

    let backup = Backup::create(store.clone(), &options, &GEOMETRY, &identity()).unwrap();
    assert!(matches!(refused(&anybody), Err(Error::Locked { .. })));
    drop(backup);
    let again = Backup::create(store.clone(), &options, &GEOMETRY, &identity());
    assert!(matches!(again, Err(Error::Exists { .. })));
    let other = Expected {
        cluster: Some("away".to_owned()),
        server: None,
    };
    assert!(matches!(refused(&other), Err(Error::OtherCluster { .. })));
    let other = Expected {
        cluster: None,
        server: Some(1),
    };
    assert!(matches!(refused(&other), Err(Error::OtherServer { .. })));
    refused(&anybody).unwrap();

    // A foreign directory.
    let foreign = folder.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("photo.jpg"), "x").unwrap();
    let disk = Arc::new(OsDisk::new(&foreign, Mode::Buffered));
    let made = Backup::create(disk, &options, &GEOMETRY, &identity());
    assert!(matches!(made, Err(Error::NotDuramen { .. })));
    assert_eq!(fs::read_dir(&foreign).unwrap().count(), 1);

    // A missing superblock is no reason to create a new store.
    fs::remove_file(folder.path().join("store/superblock")).unwrap();
    let made = Backup::create(store.clone(), &options, &GEOMETRY, &identity());
    assert!(matches!(made, Err(Error::DamagedSuperblock { .. })));
}

#[test]
fn other_formats_and_small_devices_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options::default();
    let store = disk(folder.path(), Mode::Buffered, true);
    drop(Backup::create(store.clone(), &options, &GEOMETRY, &identity()).unwrap());
    let path = folder.path().join("store/superblock");
    let mut block = fs::read(&path).unwrap();
    let mut open_version = |version| {
        block[8] = version;
        let crc = crc32c::crc32c(&block[..4092]);
        block[4092..4096].copy_from_slice(&crc.to_le_bytes());
        fs::write(&path, &block).unwrap();
        let opened = Backup::open(store.clone(), &options, &Expected::default());
        opened.map(|_| ())
    };
    let (older, newer) = (open_version(1), open_version(9));
    assert!(matches!(older, Err(Error::OlderFormat { found: 1, .. })));
    assert!(matches!(newer, Err(Error::NewerFormat { found: 9, .. })));
    let device = disk(folder.path(), Mode::Raw, true);
    let large = Geometry {
        frames: 1000,
        ..GEOMETRY
    };
    let made = Backup::create(device.clone(), &options, &large, &identity());
    assert!(matches!(made, Err(Error::TooSmall { .. })));
    // Other data on a device.
    let path = folder.path().join("device");
    let mut bytes = fs::read(&path).unwrap();
    bytes[5] = 1;
    bytes[1080] = 0x53;
    fs::write(&path, &bytes).unwrap();
    let made = Backup::create(device, &options, &GEOMETRY, &identity());
    assert!(matches!(made, Err(Error::NotDuramen { .. })));
    assert!(fs::read(&path).unwrap() == bytes);
}

/// By mistake a second server was given `frames` of a running store as its flash file, and
/// overwrote all of it: only the file `LOCK` and the directory were locked.
#[test]
fn the_files_of_an_open_store_are_locked_and_no_device_for_another() {
    let folder = tempfile::tempdir().unwrap();
    let store = disk(folder.path(), Mode::Buffered, true);
    let file = |name| folder.path().join("store").join(name);
    let is_locked = |name| {
        let file = fs::File::open(file(name)).unwrap();
        file.try_lock().is_err()
    };
    let parts = ["superblock", "wal", "frames"];
    let backup = Backup::create(store.clone(), &Options::default(), &GEOMETRY, &identity());
    assert_eq!(parts.map(is_locked), [true; 3]);
    drop(backup.unwrap());
    assert_eq!(parts.map(is_locked), [false; 3]);
    let backup = Backup::open(store.clone(), &Options::default(), &Expected::default());
    assert_eq!(parts.map(is_locked), [true; 3]);
    drop(backup.unwrap());
    let other = fs::File::open(file("frames")).unwrap();
    other.lock().unwrap();
    let opened = Backup::open(store, &Options::default(), &Expected::default());
    assert!(matches!(opened.map(|_| ()), Err(Error::Locked { .. })));
    drop(other);
    for name in parts {
        let raw = Arc::new(OsDisk::new(&file(name), Mode::Raw));
        let before = fs::read(file(name)).unwrap();
        let made = Backup::create(raw, &Options::default(), &GEOMETRY, &identity());
        assert!(made.is_err(), "{name}");
        assert!(fs::read(file(name)).unwrap() == before, "{name}");
    }
}

#[test]
fn chunks_that_do_not_fit_together_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = disk(folder.path(), Mode::Buffered, true);
    let backup = Backup::create(store, &Options::default(), &GEOMETRY, &identity()).unwrap();
    let writer = Writer { backup: &backup };
    assert!(matches!(
        writer.append(1, 5, 10, false),
        Err(Error::UnknownSegment { .. })
    ));
    writer.append(1, 0, 10, false).unwrap();
    writer.append(1, 0, 10, false).unwrap(); // a repetition
    assert!(matches!(
        writer.append(1, 11, 12, false),
        Err(Error::Gap { .. })
    ));
    assert!(matches!(
        writer.append(1, 10, (1 << 20) + 1, false),
        Err(Error::TooLong { .. })
    ));
    let chunk = Chunk {
        segment: SegmentId(1),
        epoch: 0,
        kind: Kind::Head,
        offset: 10,
        bytes: b"x",
        certificate: None,
        open: false,
        close: false,
    };
    assert!(matches!(backup.stage(chunk), Err(Error::StaleEpoch { .. })));
    let wrong = Chunk {
        epoch: 1,
        certificate: Some(Certificate::of(b"x")),
        ..chunk
    };
    assert!(matches!(
        backup.stage(wrong),
        Err(Error::Certificate { .. })
    ));
    let committed = backup.commit(Level::Synced).unwrap();
    assert_eq!((committed.chunks, committed.bytes), (1, 10));
    check(&backup, 1, 10);
    writer.append(1, 10, 20, true).unwrap();
    writer.append(1, 20, 30, false).unwrap(); // closed: nothing is added
    backup.commit(Level::Synced).unwrap();
    check(&backup, 1, 20);
}

/// On two processors, three threads that take the same locks again at once can keep a fourth from
/// them for minutes.
fn let_others_in() {
    std::thread::sleep(std::time::Duration::from_micros(100));
}

/// Writes a segment in eight commits, and closes it. Returns its length. `committed` is called
/// after each commit.
fn write_in_steps(backup: &Backup, segment: u64, committed: impl Fn()) -> usize {
    let writer = Writer { backup };
    let mut length = 0;
    for step in 0..8 {
        let size = 1 + (segment as usize * 977 + step * 3331) % [700, 9000, 24_000][step % 3];
        let to = (length + size).min(64 << 10);
        writer.append(segment, length, to, step == 7).unwrap();
        let level = match step % 2 {
            0 => Level::Buffered,
            _ => Level::Synced,
        };
        backup.commit(level).unwrap();
        length = to;
        committed();
    }
    length
}

/// The log writer, the flusher, the scrubber and readers at once, in a store so small that they
/// always conflict.
#[test]
fn everybody_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let geometry = Geometry {
        segment_bytes: 64 << 10,
        wal_bytes: 256 << 10,
        frames: 40,
    };
    let options = Options {
        bypass_bytes: 20_000,
        ..Options::default()
    };
    let open = || disk(folder.path(), Mode::Buffered, true);
    let backup = Backup::create(open(), &options, &geometry, &identity()).unwrap();
    let stop = AtomicBool::new(false);
    let newest = AtomicU64::new(0);
    let mut lengths = std::collections::BTreeMap::new();
    let running = || !stop.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while running() {
                backup.flush_step().unwrap();
                let_others_in();
            }
        });
        scope.spawn(|| {
            while running() {
                let step = backup.scrubber().step().unwrap();
                let is_bad = matches!(step, ScrubStep::Damaged { .. } | ScrubStep::DamagedLog(_));
                assert!(!is_bad, "{step:?}");
                let_others_in();
            }
        });
        scope.spawn(|| {
            let mut into = vec![0; 64 << 10];
            while running() {
                let segment = newest.load(Ordering::Acquire);
                match backup.read(SegmentId(segment), &mut into) {
                    Ok(info) => {
                        let length = info.length as usize;
                        assert!(into[..length] == bytes_of(segment, length));
                    }
                    Err(Error::UnknownSegment { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
                let_others_in();
            }
        });
        for segment in 1..250u64 {
            let length = write_in_steps(&backup, segment, || {
                newest.store(segment, Ordering::Release);
            });
            lengths.insert(segment, length);
            if segment > 20 {
                backup.free(SegmentId(segment - 20)).unwrap();
                lengths.remove(&(segment - 20));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    for (segment, length) in &lengths {
        check(&backup, *segment, *length);
    }
    drop(backup);
    let (backup, _) = Backup::open(open(), &options, &Expected::default()).unwrap();
    for (segment, length) in &lengths {
        check(&backup, *segment, *length);
    }
}

/// A user's file called `wal` was taken for the beginning of a store, as its length was none of a
/// header's, and overwritten.
#[test]
fn a_file_that_happens_to_be_called_wal_is_left_alone() {
    for content in [&b"my notes about walls\n"[..], &[b'x'; 5000], &[0; 5000]] {
        let dir = tempfile::tempdir().unwrap();
        let mut content = content.to_vec();
        if let Some(last) = content.last_mut() {
            *last = b'!';
        }
        let path = dir.path().join("wal");
        std::fs::write(&path, &content).unwrap();
        let disk = Arc::new(OsDisk::new(dir.path(), Mode::Buffered));
        let refused = Backup::create(disk, &Options::default(), &GEOMETRY, &identity());
        assert!(refused.is_err(), "{} bytes", content.len());
        assert_eq!(std::fs::read(&path).unwrap(), content);
    }
}

/// The lock was a file that users delete ("a stale lock"): then two servers wrote to one directory.
#[test]
fn a_deleted_lock_file_does_not_let_a_second_server_in() {
    let dir = tempfile::tempdir().unwrap();
    let disk = || Arc::new(OsDisk::new(dir.path(), Mode::Buffered));
    let first = Backup::create(disk(), &Options::default(), &GEOMETRY, &identity()).unwrap();
    let open = || Backup::open(disk(), &Options::default(), &Expected::default()).map(|_| ());
    std::fs::remove_file(dir.path().join("LOCK")).unwrap();
    assert!(matches!(open(), Err(Error::Locked { .. })));
    drop(first);
    open().unwrap();
}

/// A truncated `frames` was reported as a damaged superblock, a truncated `wal` as an unreadable
/// commit.
#[test]
fn a_short_or_missing_file_is_named() {
    for name in ["wal", "frames"] {
        for length in [None, Some(0), Some(100_000)] {
            let dir = tempfile::tempdir().unwrap();
            let disk = || Arc::new(OsDisk::new(dir.path(), Mode::Buffered));
            drop(Backup::create(disk(), &Options::default(), &GEOMETRY, &identity()).unwrap());
            let path = dir.path().join(name);
            match length {
                None => fs::remove_file(&path).unwrap(),
                Some(length) => {
                    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
                    file.set_len(length).unwrap();
                }
            }
            let opened = Backup::open(disk(), &Options::default(), &Expected::default());
            match opened.map(|_| ()) {
                Err(Error::DamagedFile { file, .. }) => assert_eq!(file, name, "{length:?}"),
                other => panic!("{name}, {length:?}: {other:?}"),
            }
        }
    }
}

/// The remains of a failed or a killed snapshot are removed; foreign files never are, whatever the
/// name of their directory.
#[test]
fn only_a_copy_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("dump.new");
    remove_copy(&place).unwrap();
    let disk = || Arc::new(OsDisk::new(&place, Mode::Buffered));
    let copy = Backup::create_copy(disk(), &Options::default(), &GEOMETRY, &identity()).unwrap();
    assert!(remove_copy(&place).is_err(), "it is being written");
    drop(copy);
    std::fs::write(place.join("mine"), "precious").unwrap();
    assert!(remove_copy(&place).is_err());
    assert!(place.join("mine").exists() && place.join("superblock").exists());
    std::fs::remove_file(place.join("mine")).unwrap();
    remove_copy(&place).unwrap();
    assert!(!place.exists());
    // A server's data are not a copy, whatever their name.
    drop(Backup::create(disk(), &Options::default(), &GEOMETRY, &identity()).unwrap());
    assert!(remove_copy(&place).is_err() && is_copy(&place).is_err());
    assert!(place.join("superblock").exists());
    std::fs::remove_dir_all(&place).unwrap();
    // A removal that was interrupted is continued.
    drop(Backup::create_copy(disk(), &Options::default(), &GEOMETRY, &identity()).unwrap());
    let removed = dir.path().join(".dump.new.removed");
    std::fs::rename(&place, &removed).unwrap();
    std::fs::remove_file(removed.join("superblock")).unwrap();
    remove_copy(&place).unwrap();
    assert!(!removed.exists());
    for name in ["superblock", "wal"] {
        std::fs::create_dir(&place).unwrap();
        std::fs::write(place.join(name), [b'x'; 100_000]).unwrap();
        assert!(remove_copy(&place).is_err(), "{name}");
        std::fs::remove_dir_all(&place).unwrap();
    }
}
